"""How many threads a candidate may have: its system calls ``clone`` and ``exit`` wait here for an answer.

The kernel reports them through the listener of the candidate's seccomp filter. So the limit holds for root
as for any user, where RLIMIT_NPROC does not, and needs no control groups. Standard library only: it runs
inside the sandbox.
"""

import errno
import fcntl
import struct

import syscall_filter  # type: ignore[import-not-found]

MOST_ALIVE = 64  # of one program at one time; the pool's workers bound the sum
MOST_STARTED = 10_000  # over a program's life
_MOST_REFUSED = 1_000  # who goes on after as many refusals keeps us from our work

# linux/seccomp.h
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_NOTIFICATION_BYTES, _NUMBER_OFFSET = 80, 16


class ThreadCount:
    """The threads of one program, whose listener `syscall_filter.confine` gave."""

    def __init__(self, listener: int) -> None:
        self.listener = listener
        self._alive, self._started, self._refused = 1, 0, 0

    def answer(self) -> bool:
        """Answers one waiting system call; False if the program asks in vain too often."""
        notification = bytearray(_NOTIFICATION_BYTES)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notification, True)
            (identity,) = struct.unpack_from("=Q", notification)
            (number,) = struct.unpack_from("=i", notification, _NUMBER_OFFSET)
            ends = number in syscall_filter.EXIT
            allowed = ends or (self._alive < MOST_ALIVE and self._started < MOST_STARTED)
            reply = struct.pack(
                "=QqiI", identity, 0, 0 if allowed else -errno.EAGAIN, _CONTINUE if allowed else 0
            )
            fcntl.ioctl(self.listener, _SEND, bytearray(reply), True)
        except OSError:
            return True  # who asked is gone
        if ends:
            self._alive -= 1
        elif allowed:
            self._alive += 1
            self._started += 1
        else:
            self._refused += 1
        return self._refused < _MOST_REFUSED
