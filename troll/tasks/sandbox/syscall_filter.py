"""Confines a candidate process: a seccomp filter, no capabilities, and a Landlock domain.

The filter lists the system calls that are forbidden (EPERM). For ``fcntl``, ``ioctl`` and ``prctl`` it lists
the few commands that are allowed, since others reach other processes in many ways (``F_SETOWN``,
``FIOSETOWN``, ``F_SETLEASE``, ``F_NOTIFY``). Starts and ends of threads are reported to the holder of the
filter's listener (``thread_limit.py``). Where the kernel has Landlock scopes (Linux 6.12), signals cannot
leave the process either. Needs no privileges. Standard library only: it runs inside the sandbox.
"""

import ctypes
import errno
import functools
import os
import platform
import struct
from typing import Literal

# audit architecture (linux/audit.h) and column of the tables below
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name: system call numbers on x86_64 and aarch64 (None: does not exist); above 423 both are the same
_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # processes
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # other processes' memory and scheduling
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
    "process_mrelease": (448, 448),
    "get_robust_list": (274, 100),
    "setpgid": (109, 154),
    # channels between candidates, and memory that no limit counts
    "socket": (41, 198),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "flock": (73, 32),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # kernel surface that no solution needs
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),  # takes from a pool that the whole machine shares
    "membarrier": (324, 283),
    "modify_ldt": (154, None),
    "syslog": (103, 116),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}
# allowed only if the first argument is this process, or 0 for prlimit64
_ONLY_SELF = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "prlimit64": (302, 261)}
# name: numbers, index of the argument that is the command, allowed commands
_ONLY_COMMANDS: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    # TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    "ioctl": ((16, 29), 1, (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_SET_VMA
    "prctl": ((157, 167), 0, (15, 16, 3, 0x53564D41)),
}
# numbers; F_DUPFD, F_GETFD, F_SETFD, F_GETFL, locks, F_GETOWN, OFD locks, F_DUPFD_CLOEXEC, F_GETPIPE_SZ,
# F_GET_SEALS (F_SETFL is allowed without O_ASYNC)
_FCNTL = (72, 25), (0, 1, 2, 3, 5, 6, 7, 9, 36, 37, 38, 1030, 1032, 1034)
_F_SETFL, _O_ASYNC = 4, 0x2000
CLONE = (56, 220)
EXIT = (60, 93)
_CLONE3 = 435
_CLONE_THREAD = 0x00010000
_X32_BIT = 0x40000000

# classic BPF (linux/bpf_common.h, linux/seccomp.h)
_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO, _NOTIFY = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_REFUSE_THREADS = _ERRNO | errno.EAGAIN
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENT = 0, 4, 16

_PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 38, 4
_SECCOMP, _SECCOMP_SET_MODE_FILTER = (317, 277), 1
_FLAG_NEW_LISTENER, _FLAG_WAIT_KILLABLE = 8, 32
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT, _LANDLOCK_VERSION = 444, 446, 1
_LANDLOCK_SCOPES, _LANDLOCK_SCOPED_SINCE = 3, 6  # abstract sockets and signals; ABI version
_CAPABILITY_VERSION = 0x20080522


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load_argument(number: int) -> bytes:
    # the lower half of the argument; both architectures are little-endian
    return _instruction(_LOAD, _OFFSET_ARGUMENT + 8 * number)


def _among(commands: tuple[int, ...], allow: bytes, deny: bytes) -> list[bytes]:
    """Returns instructions that allow the loaded value if it is one of the commands."""
    tests = [_instruction(_JUMP_EQUAL, value, if_true=len(commands) - k) for k, value in enumerate(commands)]
    return [*tests, deny, allow]


def _dispatch(rules: list[tuple[int, list[bytes]]], otherwise: bytes) -> list[bytes]:
    """Returns instructions that find a system call's rule by bisection, since every call runs the filter."""
    if len(rules) <= 3:
        chain = [[_instruction(_JUMP_EQUAL, number, if_false=len(body)), *body] for number, body in rules]
        return [*(part for link in chain for part in link), otherwise]
    middle = len(rules) // 2
    lower, upper = (_dispatch(part, otherwise) for part in (rules[:middle], rules[middle:]))
    split = _instruction(_JUMP_AT_LEAST, rules[middle][0], if_false=1)
    return [split, _instruction(_JUMP, len(lower)), *lower, *upper]


@functools.cache
def build_filter(machine: str, pid: int, *, threads: int = _ALLOW) -> bytes:
    """Builds the filter as classic BPF, for a machine (`platform.machine()`) and the pid that a process sees.

    ``threads`` is the action on new threads; if it is to report them, their ends are reported, too.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call table for {machine}")
    architecture, column = _ARCHITECTURES[machine]
    deny, allow = _instruction(_RETURN, _ERRNO | errno.EPERM), _instruction(_RETURN, _ALLOW)
    rules = {denied[column]: [deny] for denied in _FORBIDDEN.values()}
    # clone3 passes its flags by pointer, which BPF cannot read; on ENOSYS the C library falls back to clone
    rules[_CLONE3] = [_instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    rules[CLONE[column]] = [
        _load_argument(0),
        _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, if_false=1),
        _instruction(_RETURN, threads),
        deny,
    ]
    if threads == _NOTIFY:
        rules[EXIT[column]] = [_instruction(_RETURN, _NOTIFY)]
    for name, own in _ONLY_SELF.items():
        processes = (pid, 0) if name == "prlimit64" else (pid,)
        rules[own[column]] = [_load_argument(0), *_among(processes, allow, deny)]
    for numbers, place, commands in _ONLY_COMMANDS.values():
        rules[numbers[column]] = [_load_argument(place), *_among(commands, allow, deny)]
    rules[_FCNTL[0][column]] = [
        _load_argument(1),
        _instruction(_JUMP_EQUAL, _F_SETFL, if_false=4),
        _load_argument(2),
        _instruction(_JUMP_ANY_BIT, _O_ASYNC, if_false=1),
        deny,
        allow,
        *_among(_FCNTL[1], allow, deny),
    ]
    program = [
        _instruction(_LOAD, _OFFSET_ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture, if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _OFFSET_NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, if_false=1),
        deny,
        *_dispatch(sorted((number, body) for number, body in rules.items() if number is not None), allow),
    ]
    return b"".join(program)


_libc = ctypes.CDLL(None, use_errno=True)
MACHINE = platform.machine()


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _call(number: int, *arguments: object) -> int:
    padded = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *padded))


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def prepare(pid: int) -> None:
    """Caches, before forking, what every process needs that will see itself as ``pid``."""
    for threads in (_NOTIFY, _REFUSE_THREADS):
        build_filter(MACHINE, pid, threads=threads)
    _ = _libc.capset, _libc.prctl, _libc.syscall
    _landlock_version()


def hide_from_others() -> None:
    """Forbids inspection of this process by others of the same user: core dumps, ptrace, /proc/PID/mem."""
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Gives up every capability of the calling process."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


@functools.cache
def _landlock_version() -> int:
    return _call(_LANDLOCK_CREATE, 0, 0, _LANDLOCK_VERSION)


def scope_signals() -> bool:
    """Enters a Landlock domain that signals cannot leave; returns False if the kernel cannot (before 6.12).

    Needs ``no_new_privs``, which `confine` sets.
    """
    if _landlock_version() < _LANDLOCK_SCOPED_SINCE:
        return False
    rules = struct.pack("=QQQ", 0, 0, _LANDLOCK_SCOPES)
    descriptor = _call(_LANDLOCK_CREATE, ctypes.c_char_p(rules), len(rules), 0)
    if descriptor < 0:
        return False
    try:
        return _call(_LANDLOCK_RESTRICT, descriptor, 0) == 0
    finally:
        os.close(descriptor)


def confine(*, threads: Literal["all", "counted", "none"] = "none") -> int | None:
    """Drops all capabilities and installs the filter in the calling process, irrevocably, or raises OSError.

    ``threads`` says which threads may be started. With ``counted``, their starts and ends are reported to a
    listener, whose descriptor is returned (see ``thread_limit.py``); if the kernel cannot provide one, the
    result is None, and no thread can be started.
    """
    drop_capabilities()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    scope_signals()
    for flags in (
        (_FLAG_NEW_LISTENER | _FLAG_WAIT_KILLABLE, _FLAG_NEW_LISTENER) if threads == "counted" else ()
    ):
        try:
            return _install(_NOTIFY, flags)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBUSY):
                raise
    _install(_ALLOW if threads == "all" else _REFUSE_THREADS, 0)
    return None


def _install(threads: int, flags: int) -> int:
    code = build_filter(MACHINE, os.getpid(), threads=threads)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    number = _SECCOMP[_ARCHITECTURES[MACHINE][1]]
    status = _call(number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.c_char_p(header))
    return _checked(status, "seccomp")
