"""A seccomp filter for one candidate process: no new processes, signals to others, sockets or namespaces.

The second wall inside the sandbox (the first is bubblewrap). It keeps the programs of one batch apart,
although they share a pid namespace, and it needs no privileges. The filter names what is forbidden
(EPERM); everything else an interpreter may need is allowed. Standard library only: it runs inside the
sandbox.
"""

import ctypes
import errno
import os
import platform
import struct

# audit architecture (linux/audit.h) and column of the table below
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name: system call numbers on x86_64 and aarch64 (None: not there); above 423 both are the same
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
    # channels between candidates, and memory that no limit counts
    "socket": (41, 198),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
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
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}
# allowed only when the first argument is this process: kill, tkill, tgkill; prlimit64 also with 0
_ONLY_SELF = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "prlimit64": (302, 261)}
_CLONE = (56, 220)
_CLONE3 = 435
_CLONE_THREAD = 0x00010000
_X32_BIT = 0x40000000

# classic BPF (linux/bpf_common.h, linux/seccomp.h)
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENT = 0, 4, 16

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_DUMPABLE = 38, 22, 2, 4


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def build_filter(machine: str, pid: int) -> bytes:
    """Builds the filter as classic BPF.

    Args:
        machine: ``platform.machine()`` of the kernel, x86_64 or aarch64.
        pid: the process the filter is for, as it sees itself.

    Raises:
        OSError: the machine is neither of the two.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call table for {machine}")
    architecture, column = _ARCHITECTURES[machine]
    deny = _instruction(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _instruction(_LOAD, _OFFSET_ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture, if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _OFFSET_NUMBER),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, if_false=1),
        deny,
        # clone3 hides its flags behind a pointer: "not there" makes the C library fall back to clone
        _instruction(_JUMP_EQUAL, _CLONE3, if_false=1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
        _instruction(_JUMP_EQUAL, _CLONE[column], if_false=4),
        _instruction(_LOAD, _OFFSET_ARGUMENT),
        _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, if_false=1),
        _instruction(_RETURN, _ALLOW),
        deny,
    ]
    for name, own in _ONLY_SELF.items():
        zero_too = name == "prlimit64"
        program += [
            _instruction(_JUMP_EQUAL, own[column], if_false=5 if zero_too else 4),
            _instruction(_LOAD, _OFFSET_ARGUMENT),
            *([_instruction(_JUMP_EQUAL, 0, if_true=1)] if zero_too else []),
            _instruction(_JUMP_EQUAL, pid, if_false=1),
            _instruction(_RETURN, _ALLOW),
            deny,
        ]
    for numbers in _FORBIDDEN.values():
        number = numbers[column]
        if number is not None:
            program += [_instruction(_JUMP_EQUAL, number, if_false=1), deny]
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)


_libc = ctypes.CDLL(None, use_errno=True)
_MACHINE = platform.machine()


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(ctypes.c_int(option), *padded) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def hide_from_others() -> None:
    """Refuses inspection of this process by others of the same user: core dumps, ptrace, /proc/PID/mem.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def confine() -> None:
    """Installs the filter in the calling process, for good.

    Raises:
        OSError: the kernel has no seccomp filters or refuses this one.
    """
    code = build_filter(_MACHINE, os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    descriptor = ctypes.create_string_buffer(header, len(header))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(descriptor))
