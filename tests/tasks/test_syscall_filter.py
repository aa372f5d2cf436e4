"""The filter as the kernel would run it, on both machines: what is forbidden, allowed or reported."""

import struct

import pytest
from refusals import refused

from troll.tasks.sandbox import syscall_filter
from troll.tasks.sandbox.syscall_filter import _ALLOW, _ERRNO, _KILL, _NOTIFY, build_filter

DENY, NOT_THERE = _ERRNO | 1, _ERRNO | 38
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {
    "read": (0, 63),
    "openat": (257, 56),
    "futex": (202, 98),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "ptrace": (101, 117),
    "pidfd_open": (434, 434),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "flock": (73, 32),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prctl": (157, 167),
    "mount": (165, 40),
}
THREAD = 0x3D0F00


def run(program, machine, number, *arguments):
    """Classic BPF, as linux/filter.h defines it, for the instructions that seccomp knows and we use."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, ARCHITECTURES[machine], 0, *padded)
    code = [struct.unpack("=HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    at, loaded = 0, 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif operation == 0x05:
            at += value
        else:
            test = {0x15: loaded == value, 0x35: loaded >= value, 0x45: loaded & value}[operation]
            at += if_true if test else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "arguments", "verdict"),
    [
        *((name, (), _ALLOW) for name in ("read", "openat", "futex", "exit_group", "socketpair")),
        *((name, (), DENY) for name in ("execve", "ptrace", "pidfd_open", "socket", "flock", "mount")),
        ("clone3", (), NOT_THERE),
        ("clone", (THREAD,), _NOTIFY),
        ("clone", (17,), DENY),
        ("clone", (0x20000000 | 17,), DENY),
        ("exit", (0,), _NOTIFY),
        ("kill", (7, 9), _ALLOW),
        ("kill", (8, 9), DENY),
        ("kill", (0, 9), DENY),
        ("kill", (2**32 - 1, 9), DENY),
        ("kill", (2**64 - 1, 9), DENY),
        ("tgkill", (7, 9, 9), _ALLOW),
        ("tgkill", (1, 1, 9), DENY),
        ("prlimit64", (0,), _ALLOW),
        ("prlimit64", (7,), _ALLOW),
        ("prlimit64", (1,), DENY),
        *(("fcntl", (5, command), _ALLOW) for command in (0, 1, 2, 3, 5, 6, 7, 1030, 1032)),
        *(("fcntl", (5, command, 7), DENY) for command in (8, 10, 15, 1024, 1026, 1031, 1033)),
        ("fcntl", (5, 4, 0x800), _ALLOW),
        ("fcntl", (5, 4, 0x2800), DENY),
        ("fcntl", (5, 2**32 + 8, 7), DENY),
        *(("ioctl", (5, command), _ALLOW) for command in (0x5401, 0x5413, 0x541B, 0x5421)),
        *(("ioctl", (5, command), DENY) for command in (0x8901, 0x8902, 0x5452, 0x5412, 0x5410)),
        ("prctl", (15,), _ALLOW),
        *(("prctl", (option,), DENY) for option in (1, 4, 22, 36, 0x59616D61)),
    ],
)
def test_verdicts(machine, name, arguments, verdict):
    column = list(ARCHITECTURES).index(machine)
    program = build_filter(machine, 7, threads=_NOTIFY)
    assert run(program, machine, NUMBERS[name][column], *arguments) == verdict


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_forbidden_call_is_denied_and_the_others_are_not(machine):
    column = list(ARCHITECTURES).index(machine)
    program = build_filter(machine, 7)
    forbidden = {numbers[column] for numbers in syscall_filter._FORBIDDEN.values()} - {None}
    ruled = {entry[column] for entry in syscall_filter._ONLY_SELF.values()}
    ruled |= {entry[0][column] for entry in syscall_filter._ONLY_COMMANDS.values()}
    ruled |= {syscall_filter._FCNTL[0][column], syscall_filter.CLONE[column], syscall_filter._CLONE3}
    for number in set(range(500)) - ruled:
        assert run(program, machine, number) == (DENY if number in forbidden else _ALLOW), number


def test_other_machines_calls_are_not_for_us():
    program = build_filter("x86_64", 7)
    assert run(program, "aarch64", 63) == _KILL
    assert run(program, "x86_64", 0x40000000 | 57) == DENY
    with refused("riscv64", error=OSError):
        build_filter("riscv64", 7)
