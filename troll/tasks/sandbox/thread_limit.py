"""Limits the number of threads of a candidate, whose system calls ``clone`` and ``exit`` wait for an answer.

The kernel reports them through the listener of the candidate's seccomp filter. Unlike RLIMIT_NPROC, this
limit also holds for root, and it needs no control groups. Standard library only: it runs inside the sandbox.
"""

import errno
import fcntl
import struct

import syscall_filter  # type: ignore[import-not-found]

MOST_ALIVE = 64  # per program at one time; the pool's workers bound the sum
MOST_STARTED = 10_000  # over a program's life
_MOST_REFUSED = 1_000  # after as many, the program is killed: each request takes the runner's time

# linux/seccomp.h
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_NOTIFICATION_BYTES, _NUMBER_OFFSET = 80, 16


class ThreadCount:
    """Counts the threads of one program, by the listener that `syscall_filter.confine` returned."""

    def __init__(self, listener: int) -> None:
        self.listener = listener
        self._alive, self._started, self._refused = 1, 0, 0

    def answer(self) -> bool:
        """Answers one waiting system call; returns False after too many refusals."""
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
            return True  # the caller is gone
        if ends:
            self._alive -= 1
        elif allowed:
            self._alive += 1
            self._started += 1
        else:
            self._refused += 1
        return self._refused < _MOST_REFUSED
