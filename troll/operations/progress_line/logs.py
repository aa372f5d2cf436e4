"""The last lines of a job's log."""

from pathlib import Path

_TAIL_LINES = 8
_TAIL_BYTES = 16_384


def tail(path: Path) -> list[str]:
    """The last lines of a log that are not empty."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-_TAIL_LINES:]
