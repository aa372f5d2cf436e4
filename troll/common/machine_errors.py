"""What machines do to long runs, as one line: a full disk, an unwritable directory, memory that runs out."""

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
# What libraries say that write by themselves, with an error class of their own (safetensors), or of what
# came of it (torch.save: the archive is not where it should be, and its stream has failed).
_FULL_TEXT = (
    "No space left on device",
    "Disk quota exceeded",
    "file write failed",
    "unexpected pos",
    "iostream error",
)


@contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Turns a failure of the machine into a `UserError`; anything else passes."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        message = _explanation(error, directory)
        if message is None:
            raise
        raise UserError(message) from error
    except Exception as error:  # of a library, such as safetensors, that has classes of its own
        if not _mentions(error, _FULL_TEXT):
            raise
        raise UserError(_disk_full(directory)) from error


def in_a_line(error: OSError) -> str | None:
    """What the machine did, for commands that are simply given again; None if it did nothing of the kind."""
    if error.errno in _FULL:
        return "no space left on the disk; free some, and give the same command again"
    if error.errno in _CLOSED:
        return f"{error.filename}: cannot be written or read ({error.strerror}); change that, and try again"
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
        advice = "more training.micro_batches, or fewer training.micro_batch_tokens, need less"
        return f"{directory}: memory ran out{why}; {advice}. {_INTACT.capitalize()}"
    return None


def about_memory(error: Exception) -> bool:
    """Whether memory ran out: of the machine, or of a GPU."""
    # torch is not imported for the sake of a class: light commands fail, too.
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or _mentions(error, ("can't allocate memory", "CUDA out of memory"))


def _disk_full(directory: Path) -> str:
    return f"{directory}: no space left on the disk; free some. {_INTACT.capitalize()}"


def _mentions(error: Exception, texts: tuple[str, ...]) -> bool:
    return any(text in str(error) for text in texts)
