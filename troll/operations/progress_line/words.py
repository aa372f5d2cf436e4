"""What the line says, and the few lines that stay: verdicts, failed jobs."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from troll.operations.progress_line.state import State
from troll.operations.progress_line.steps import tail

_UNDECIDED = ("not run", "inconclusive")
_TAKEN = re.compile(r"\[base\] .+: taken from ")


class Stage(BaseModel):
    """The stage of `make results` that this run of Snakemake is."""

    title: str = ""  # such as ``look 2``; empty where there is one stage
    until: float | None = None  # when no further seeds are begun, in seconds since 1970; None where none are
    last: bool = True  # whether it is the last stage; only after it the log is named
    # whether it is the first: verdicts that are there before it are those of a release, or of an earlier run,
    # until its own claims are made
    first: bool = True


def read_stage(text: str | None) -> Stage:
    """The stage in the environment; the only one where there is none, or none that can be read."""
    try:
        return Stage.model_validate_json(text or "{}")
    except ValueError:
        return Stage()


def line_of(state: State, stage: Stage, claims: str = "", now: float | None = None) -> str:
    """How far it is, in one line; ``claims`` says how many are decided, ``now`` is seconds since 1970."""
    left, at_least, now = state.left(), state.at_least(), time.time() if now is None else now
    parts = [f"{100 * state.share():.0f} %, {state.finished} of {state.total} jobs"]
    if left is not None:
        parts.append(f"{roughly(left)} left")
    else:
        parts.append("time left not known yet" if at_least is None else f"more than {roughly(at_least)} left")
    if stage.until is not None and left is not None and now + left < stage.until:
        parts.append(f"further seeds may follow until {time.strftime('%H:%M', time.localtime(stage.until))}")
    head = f"{stage.title}: " if stage.title else ""
    text = head + ", ".join(parts)
    if claims:
        text += f"; {claims}"
    # Last, because a narrow terminal cuts it off.
    names = [
        f"{job.name} (step {job.steps.done:,} of {job.steps.total:,})" if job.steps else job.name
        for job in sorted(state.running.values(), key=lambda job: job.started)
    ]
    if names:
        text += f"; now: {', '.join(names[:2])}" + (f" and {len(names) - 2} more" if len(names) > 2 else "")
    return text


def roughly(seconds: float) -> str:
    """A time as people say it: ``40 s``, ``12 min``, ``3 h 20 min``, ``2 days 4 h``."""
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
    """Verdict and sentence of each claim of a ``claims.json``, by id; empty where it cannot be read."""
    try:
        claims = json.loads(path.read_text(encoding="utf-8"))["claims"]
        return {claim["id"]: (str(claim["verdict"]), str(claim["sentence"])) for claim in claims}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def decided(verdicts: Mapping[str, tuple[str, str]]) -> str:
    """How many claims that runs speak of have a verdict; empty where runs speak of none."""
    with_runs = [verdict for verdict, _ in verdicts.values() if verdict != "not run"]
    if not with_runs:
        return ""
    return f"{sum(verdict not in _UNDECIDED for verdict in with_runs)} of {len(with_runs)} claims decided"


def news(old: Mapping[str, tuple[str, str]], new: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """The verdicts that have become firm, or are firm no longer, since the last time."""
    for name, (verdict, sentence) in new.items():
        before = old.get(name, ("not run", ""))[0]
        if verdict != before and not (verdict in _UNDECIDED and before in _UNDECIDED):
            yield f"verdict: {verdict}: {sentence}"


def failure(rule: str, name: str, logs: Sequence[str], aux: Mapping[str, object]) -> Iterator[str]:
    """What people need of a job that failed: rule, job, log, and the log's last lines."""
    yield f"error: rule {rule} failed" + (f" ({name})" if name and name != rule else "")
    yield from (f"  {key}: {value}" for key, value in aux.items())
    for log in logs:
        yield f"  log: {log}"
        yield from (f"  | {line}" for line in tail(Path(log)))


def taken(logs: Sequence[str]) -> Iterator[str]:
    """The lines of finished jobs' logs that say of base models that they were taken from the shared place."""
    yield from (line for log in logs for line in tail(Path(log)) if _TAKEN.match(line))
