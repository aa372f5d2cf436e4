"""One-line messages for failures of the machine: full disk, unwritable directory, out of memory."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from troll.common.errors import UserError

_INTACT = "finished checkpoints are intact and the same command resumes from the newest"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO),
)
# Messages about a full disk from libraries with their own error classes (safetensors), and about what follows
# from it (torch.save: unexpected position in the archive, failed stream).
_FULL_TEXT = (
    "No space left on device",
    "Disk quota exceeded",
    "file write failed",
    "unexpected pos",
    "iostream error",
)


@contextmanager
def as_user_error(directory: Path) -> Iterator[None]:
    """Turns a failure of the machine into a `UserError`; other errors pass through."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        message = _explanation(error, directory)
        if message is None:
            raise
        raise UserError(message) from error
    except Exception as error:  # of libraries with their own error classes
        if not _mentions(error, _FULL_TEXT):
            raise
        raise UserError(_disk_full(directory)) from error


def in_a_line(error: OSError) -> str | None:
    """Describes a failure of the machine, for commands to be repeated as they are; None for other errors."""
    if error.errno in _FULL:
        return "no space left on the disk; free some, and run the same command again"
    if error.errno in _CLOSED:
        return f"{error.filename}: cannot be written or read ({error.strerror}); fix that, and try again"
    return None


def _explanation(error: Exception, directory: Path) -> str | None:
    where = getattr(error, "filename", None) or directory
    if getattr(error, "errno", None) in _FULL or _mentions(error, _FULL_TEXT):
        return _disk_full(directory)
    if isinstance(error, OSError) and error.errno in _CLOSED:
        return f"{where}: cannot be written ({error.strerror}); make it writable. {_INTACT.capitalize()}"
    if about_memory(error):
        cause = str(error).strip().partition("\n")[0].split(". ")[0]
        why = f" ({cause})" if cause else ""
        advice = "increase training.micro_batches or decrease training.micro_batch_tokens"
        return f"{directory}: memory ran out{why}; {advice}. {_INTACT.capitalize()}"
    return None


def about_memory(error: Exception) -> bool:
    """Whether the machine or a GPU ran out of memory."""
    # By name, because light commands do not import torch.
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or _mentions(error, ("can't allocate memory", "CUDA out of memory"))


def _disk_full(directory: Path) -> str:
    return f"{directory}: no space left on the disk; free some. {_INTACT.capitalize()}"


def _mentions(error: Exception, texts: tuple[str, ...]) -> bool:
    return any(text in str(error) for text in texts)
