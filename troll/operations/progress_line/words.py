"""Texts of the progress line, and of the lines that stay: verdicts and failed jobs."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from troll.operations.progress_line.state import BASES, State
from troll.operations.status import last_text

_UNDECIDED = ("not run", "inconclusive")
_TAIL_LINES, _TAIL_BYTES = 8, 16_384
_TAKEN = re.compile(r"\[base\] .+: taken from ")


def line_of(state: State, stage: str = "", claims: str = "", *, queued: bool = False) -> str:
    """Returns the progress line.

    ``stage`` precedes it, ``claims`` says how many are decided, and ``queued`` says that jobs go to a
    scheduler, so that they may wait instead of running.
    """
    text = f"{stage}: " if stage else ""
    text += f"{state.done.total()} of {state.jobs.total()} jobs"
    if state.unfinished("train", *BASES):  # other jobs take seconds
        left = state.left()
        text += ", time left not known yet" if left is None else f", {roughly(left)} left"
    text += f"; {claims}" if claims else ""
    # Last, because a narrow terminal cuts off the end.
    names = []
    for job in state.running.values():
        done, total = state.steps.get(job.run_id, (0, 0))
        names.append(f"{job.name} (step {done:,} of {total:,})" if done else job.name)
    if names:
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        text += f"; {'submitted' if queued else 'now'}: {', '.join(names[:2])}{more}"
    return text


def roughly(seconds: float) -> str:
    """Formats a rounded time: ``40 s``, ``12 min``, ``3 h 20 min``, ``2 days 4 h``."""
    if seconds < 90:
        return f"{max(round(seconds / 5) * 5, 5)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} day{'' if days == 1 else 's'}" + (f" {hours} h" if hours else "")


def verdicts_in(path: Path) -> dict[str, tuple[str, str]]:
    """Reads each claim's verdict and sentence from a ``claims.json``, by id; empty if it cannot be read."""
    try:
        claims = json.loads(path.read_text(encoding="utf-8"))["claims"]
        return {claim["id"]: (str(claim["verdict"]), str(claim["sentence"])) for claim in claims}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def decided(verdicts: Mapping[str, tuple[str, str]]) -> str:
    """Says how many of the claims with runs are decided; empty if no claim has runs."""
    with_runs = [verdict for verdict, _ in verdicts.values() if verdict != "not run"]
    if not with_runs:
        return ""
    return f"{sum(verdict not in _UNDECIDED for verdict in with_runs)} of {len(with_runs)} claims decided"


def news(old: Mapping[str, tuple[str, str]], new: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yields the verdicts that have changed, unless one kind of undecided has become another."""
    for name, (verdict, sentence) in new.items():
        before = old.get(name, ("not run", ""))[0]
        if verdict != before and not (verdict in _UNDECIDED and before in _UNDECIDED):
            yield f"verdict: {verdict}: {sentence}"


def failure(rule: str, name: str, logs: Sequence[str], aux: Mapping[str, object]) -> Iterator[str]:
    """Yields the lines about a failed job: rule, job, log path, and the log's last lines."""
    yield f"error: rule {rule} failed" + (f" ({name})" if name and name != rule else "")
    yield from (f"  {key}: {value}" for key, value in aux.items())
    for log in logs:
        yield f"  log: {log}"
        yield from (f"  | {line}" for line in tail(Path(log)))


def taken(logs: Sequence[str]) -> Iterator[str]:
    """Yields the lines of job logs which say that a base model was taken from the shared cache."""
    yield from (line for log in logs for line in tail(Path(log)) if _TAKEN.match(line))


def tail(path: Path) -> list[str]:
    """Returns the last non-empty lines of a job's log."""
    lines = last_text(path, _TAIL_BYTES).splitlines()
    return [line.rstrip() for line in lines if line.strip()][-_TAIL_LINES:]
