"""Hostile programs that attack concurrent programs, the runner, the machine or the judge.

Part of the corpus in ``hostile_programs.py``; as there, each defines ``f`` without computing the answer.
"""

# Process ids in a new pid namespace are small.
_OTHERS = """
    import ctypes, fcntl, os, signal, struct
    libc = ctypes.CDLL(None)
    others = [pid for pid in range(1, 300) if pid != os.getpid()]
    def each(attack):
        for pid in others:
            try: attack(pid)
            except (OSError, OverflowError): pass
        return 0
"""
_OWNED = """
    import socket
    def alarm(one, other, own):
        def attack(pid):
            fcntl.fcntl(one, 10, signal.SIGKILL)
            own(one, pid)
            fcntl.fcntl(one, fcntl.F_SETFL, os.O_NONBLOCK | 0x2000)
            os.write(other, b'x')
        return attack
    left, right = (end.detach() for end in socket.socketpair())
"""


def _on_others(line: str) -> str:
    return f"{_OTHERS}    def f(x): return each(lambda pid: {line})"


def _owned(line: str) -> str:
    return f"{_OTHERS}{_OWNED}    def f(x): return each(alarm(left, right, lambda one, pid: {line}))"


def _calls(*lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return f"{_OTHERS}    def f(x):\n{body}        return 0\n"


NEIGHBOURS: dict[str, str] = {
    # --- signals by ownership of a descriptor ------------------------------------------------------------
    "owner by F_SETOWN": _owned("fcntl.fcntl(one, 8, pid)"),
    "owner by F_SETOWN, group": _owned("fcntl.fcntl(one, 8, -pid)"),
    "owner by F_SETOWN_EX": _owned("fcntl.fcntl(one, 15, struct.pack('ii', 1, pid))"),
    "owner by F_SETOWN_EX, thread": _owned("fcntl.fcntl(one, 15, struct.pack('ii', 0, pid))"),
    "owner by FIOSETOWN": _owned("fcntl.ioctl(one, 0x8901, struct.pack('i', pid))"),
    "owner by SIOCSPGRP": _owned("fcntl.ioctl(one, 0x8902, struct.pack('i', pid))"),
    "owner, asynchronous by FIOASYNC": _owned(
        "(fcntl.ioctl(one, 0x8901, struct.pack('i', pid)), fcntl.ioctl(one, 0x5452, struct.pack('i', 1)))"
    ),
    "owner of a pipe": f"""{_OTHERS}{_OWNED}
    left, right = os.pipe()
    def f(x): return each(alarm(left, right, lambda one, pid: fcntl.fcntl(one, 8, pid)))""",
    "interrupt for the runner": f"""{_OTHERS}{_OWNED}
    signal.SIGKILL = signal.SIGINT
    def f(x): return each(alarm(left, right, lambda one, pid: fcntl.fcntl(one, 8, 1)))""",
    "lease on a library": _calls(
        "file = os.open(os.__file__, os.O_RDONLY)",
        "fcntl.fcntl(file, 10, signal.SIGKILL)",
        "fcntl.fcntl(file, 1024, 0)",
        "import time; time.sleep(1)",
    ),
    "notice of a directory": _calls(
        "folder = os.open('/', os.O_RDONLY)",
        "fcntl.fcntl(folder, 8, others[0])",
        "fcntl.fcntl(folder, 1026, 0x8000003f)",
    ),
    # --- signals -----------------------------------------------------------------------------------------
    "kill each": _on_others("os.kill(pid, signal.SIGKILL)"),
    "stop each": _on_others("os.kill(pid, signal.SIGSTOP)"),
    "kill each group": _on_others("os.killpg(pid, signal.SIGKILL)"),
    "kill all by libc": _calls("libc.kill(-1, 9)", "libc.kill(0, 9)"),
    "tkill": _on_others("libc.syscall(200, pid, 9)"),
    "tgkill": _on_others("libc.syscall(234, pid, pid, 9)"),
    "rt_sigqueueinfo": _on_others("libc.syscall(129, pid, 9, bytes(128))"),
    "rt_tgsigqueueinfo": _on_others("libc.syscall(297, pid, pid, 9, bytes(128))"),
    "pidfd_send_signal": _on_others("signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL)"),
    "signal when the parent dies": _calls(
        "libc.prctl(1, 9)", "libc.prctl(36, 1)", "os.kill(os.getppid(), 9)"
    ),
    "queue of signals": _calls(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])",
        "for _ in range(100000): libc.syscall(129, os.getpid(), 40, bytes(128)); libc.raise_(40)",
    ),
    # --- inspection and control of others ----------------------------------------------------------------
    "ptrace each": _on_others("libc.ptrace(16, pid, 0, 0)"),
    "seize each": _on_others("libc.ptrace(0x4206, pid, 0, 0)"),
    "pidfd_getfd": _on_others("libc.syscall(438, os.pidfd_open(pid), 5, 0)"),
    "read memory of each": _on_others("libc.process_vm_readv(pid, bytes(16), 1, bytes(16), 1, 0)"),
    "write memory of each": _on_others("libc.process_vm_writev(pid, bytes(16), 1, bytes(16), 1, 0)"),
    "memory files of each": _on_others("open(f'/proc/{pid}/mem', 'r+b').write(b'x')"),
    "score of each for the killer": _on_others("open(f'/proc/{pid}/oom_score_adj', 'w').write('1000')"),
    "compare descriptors": _on_others("libc.syscall(312, os.getpid(), pid, 0, 5, 5)"),
    "robust list of each": _on_others("libc.syscall(274, pid, bytes(8), bytes(8))"),
    "limits of each": f"""{_OTHERS}
    import resource
    def f(x): return each(lambda pid: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)))""",
    "priorities of each": _on_others("os.setpriority(os.PRIO_PROCESS, pid, 19)"),
    "priority of the user": _calls("os.setpriority(os.PRIO_USER, 0, 19)"),
    "scheduler of each": _on_others("os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))"),
    "processors of each": _on_others("os.sched_setaffinity(pid, {0})"),
    "input priority of each": _on_others("libc.syscall(251, 1, pid, 3 << 13)"),
    "pages of each": _on_others("libc.syscall(256, pid, 8, bytes(8), bytes(8))"),
    "group of each": _on_others("os.setpgid(0, pid)"),
    "reap others": _calls("import ctypes", "libc.prctl(36, 1, 0, 0, 0)", "os.waitpid(-1, 0)"),
    # --- channels ----------------------------------------------------------------------------------------
    "shared memory": _calls("segment = libc.shmget(7, 1 << 20, 0o1777)", "libc.shmctl(segment, 0, 0)"),
    "semaphores": _calls("libc.semget(7, 1, 0o1777)", "libc.semop(0, struct.pack('Hhh', 0, -1, 0), 1)"),
    "messages": _calls("queue = libc.msgget(7, 0o1777)", "libc.msgsnd(queue, bytes(64), 56, 0)"),
    "message queue": _calls("libc.mq_open(b'/q', os.O_CREAT | os.O_RDWR, 0o777, 0)"),
    "abstract socket": _calls(
        "listener = libc.syscall(41, 1, 1, 0)", "libc.bind(listener, b'\\1\\0\\0troll', 8)"
    ),
    "control messages on all descriptors": _calls(
        "import socket",
        'report = b\'{"id":0,"exit":0,"signal":0,"killed":null,"cpu_s":0,"wall_s":0}\'',
        "for number in range(3, 256):",
        "    try: socket.socket(fileno=number).sendmsg([report])",
        "    except OSError: pass",
    ),
    "descriptors through a socket": _calls(
        "import socket",
        "one, other = socket.socketpair()",
        "for number in range(256):",
        "    try: socket.send_fds(one, [b'x'], [number])",
        "    except OSError: pass",
    ),
    "lock the library": _calls(
        "fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX)", "while x: pass"
    ),
    "lock the devices": _calls(
        "for name in ('null', 'zero', 'urandom'):",
        "    device = os.open('/dev/' + name, os.O_RDWR)",
        "    fcntl.flock(device, fcntl.LOCK_EX); fcntl.lockf(device, fcntl.LOCK_EX)",
        "while x: pass",
    ),
    "watch files": _calls("libc.inotify_add_watch(libc.inotify_init1(0), b'/', 0xfff)"),
    "own file for others": _calls("open('/tmp/escaped', 'w').write('4')", "os.chmod('/tmp/escaped', 0o777)"),
    # --- namespaces and privileges -----------------------------------------------------------------------
    "mount over the library": _calls("libc.mount(b't', b'/usr', b'tmpfs', 0, 0)"),
    "unmount the library": _calls("libc.umount2(b'/usr', 2)", "libc.umount2(b'/tmp', 2)"),
    "change the root": _calls("libc.chroot(b'/tmp')", "libc.syscall(155, b'/tmp', b'/tmp')"),
    "runner's namespace": _on_others("libc.setns(os.pidfd_open(pid), 0x20000000)"),
    "own user namespace": _calls(
        "libc.unshare(0x10000000 | 0x20000)", "libc.mount(b't', b'/usr', b'tmpfs', 0, 0)"
    ),
    "clone into a namespace": _calls("return libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)"),
    "clone3": _calls("return libc.syscall(435, struct.pack('8Q', 0, 0, 0, 0, 17, 0, 0, 0), 64)"),
    "vfork": _calls("return libc.syscall(58)"),
    "capabilities again": _calls(
        "libc.capset(struct.pack('Ii', 0x20080522, 0), b'\\xff' * 24)",
        "libc.unshare(0x20000)",
        "libc.setuid(0)",
    ),
    "another filter": _calls("libc.prctl(22, 0)", "libc.prctl(38, 0)", "libc.prctl(4, 1)"),
    "calls of another machine": _calls(
        "libc.syscall(0x40000000 | 57)", "libc.syscall(0x40000000 | 62, 1, 9)"
    ),
    "kernel surface": _calls(
        "for number in (206, 250, 298, 321, 323, 324, 425, 447): libc.syscall(number, 1, bytes(256), 0, 0, 0)"
    ),
    # --- resources ---------------------------------------------------------------------------------------
    "thread bomb": """
        import threading, time
        threading.stack_size(1 << 15)
        def f(x):
            while True:
                try: threading.Thread(target=time.sleep, args=(9,)).start()
                except RuntimeError: pass""",
    "threads that start threads": """
        import _thread
        _thread.stack_size(1 << 15)
        def grow():
            while True:
                try: _thread.start_new_thread(grow, ())
                except RuntimeError: pass
        def f(x): grow()""",
    "threads that come and go": """
        import _thread
        def f(x):
            while True:
                try: _thread.start_new_thread(int, ())
                except RuntimeError: pass""",
    "threads with huge stacks": """
        import threading
        threading.stack_size(1 << 28)
        def f(x):
            while True: threading.Thread(target=threading.Event().wait).start()""",
    "threads hidden from the runner": """
        start = getattr(__import__('_thr' + 'ead'), 'start_new_thr' + 'ead')
        def f(x):
            while True: start(print, ())""",
    "descriptor bomb": _calls("while True: os.pipe()"),
    "wide pipes": _calls("for _ in range(20): fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)", "while x: pass"),
    "timer bomb": _calls("while libc.timer_create(1, 0, bytes(8)) == 0: pass"),
    "asynchronous input bomb": _calls("while libc.syscall(206, 60000, bytes(8)) == 0: pass"),
    "many small files": _calls("for number in range(1 << 30): open(f'/tmp/{number}', 'w').close()"),
    "large file": _calls("file = open('/tmp/large', 'wb')", "while True: file.write(bytes(1 << 20))"),
    "holes in a file": _calls("os.truncate(os.open('/tmp/hole', os.O_CREAT | os.O_RDWR), 1 << 50)"),
    "locked memory": _calls(
        "libc.mlockall(3)", "hoard = bytearray(1 << 28)", "libc.mlock(id(hoard), 1 << 28)"
    ),
    # --- the judge ---------------------------------------------------------------------------------------
    "more digits than Python writes": "def f(x): return (10 ** 5000,)",
    "key with more digits": "def f(x): return {10 ** 5000: 1}",
    "set of large integers": "def f(x): return {10 ** 5000 + i for i in range(50)}",
    "many large integers": "def f(x): return [1 << 100_000] * 100",
    "many empty lists": "def f(x): return [[]] * 1_300_000",
    "many empty sets": "def f(x): return [set()] * 200_000",
    "lists in lists": """
        def f(x):
            value = []
            for _ in range(98): value = [value]
            return [value] * 10_000""",
    "sets in sets": """
        def f(x):
            value = frozenset()
            for _ in range(60): value = frozenset([value])
            return value""",
    "number beyond floats": "def f(x): return 10 ** 400",
    "not a number, complex": "def f(x): return complex('nan')",
    "text of digits": "def f(x): return '4' * 1_000_000",
    "bytes": "def f(x): return b'4' * 1_000_000",
    "no numpy": """
        class int64:
            __eq__ = lambda self, other: True
            item = lambda self: self
        int64.__module__ = 'numpy'
        def f(x): return int64()""",
    "numpy array of objects": "import numpy\n        def f(x): return numpy.array([[object()]])",
    "numpy that lies": """
        import numpy
        class Liar(numpy.ndarray):
            __eq__ = lambda self, other: True
        def f(x): return numpy.zeros(1).view(Liar)""",
    # --- text of the program -----------------------------------------------------------------------------
    "comments without end": "#\n" * 50_000 + "from __future__ import braces",
    "fences without end": "- a\n" + "    ```python\n" * 20_000,
    "nested fences": "".join("`" * width + "\n" for width in range(300, 3, -1)),
}
