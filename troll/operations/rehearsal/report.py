"""The report of a rehearsal: a line for each check, and rehearsal.json, which `troll doctor` reads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.common.files import read_json
from troll.experiment.experiment import Experiment

State = Literal["ok", "note", "failed"]
PREFIX = "rehearsal-"
"""Prefix of the experiment's name, which keeps results/rehearsal-<name> apart from the real results."""
REPORT = "rehearsal.json"


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    state: State  # ``ok``; ``note``: no problem, but good to know; ``failed``: the experiment would fail
    found: str
    key: str = ""  # the configuration key, file or run that the finding is about; empty for ``ok``

    def line(self) -> str:
        """Formats the check as a line of text."""
        mark = "FAILED" if self.state == "failed" else self.state
        return f"{mark:8}{self.name:18}{self.key}{': ' if self.key else ''}{self.found}"


def failures_or_ok(name: str, failures: Iterable[Check], otherwise: str) -> list[Check]:
    """Returns a check's failures and notes; if none failed, adds an ``ok`` with the text ``otherwise``."""
    checks = list(failures)
    return checks if failed(checks) else [*checks, Check(name, "ok", otherwise)]


def failed(checks: Sequence[Check]) -> list[Check]:
    """Returns the checks that failed."""
    return [check for check in checks if check.state == "failed"]


def root_of(name: str, results: Path) -> Path:
    """Returns the directory of the rehearsal of the experiment ``name``."""
    return results / f"{PREFIX}{name}"


def digest_of(experiment: Experiment) -> str:
    """Returns a digest that changes with the experiment's settings."""
    return digest_of_json(experiment.model_dump(mode="json"))


def last_rehearsal(
    experiment: Experiment, results: Path
) -> tuple[Literal["ok", "note", "missing"], str, str]:
    """Returns state, finding and fix, for `troll doctor`, from an experiment's last rehearsal."""
    again = "troll rehearse FILE"
    try:
        report = read_json(root_of(experiment.experiment, results) / REPORT)
        bad = [check for check in report["checks"] if check["state"] == "failed"]
        named = "; ".join(f"{check['key']}: {check['found']}" for check in bad[:3])
        summary = f"{report['runs']} of {report['planned']} runs, {report['when']}"
        same, passed = report["digest"] == digest_of(experiment), report["passed"]
    except (UserError, KeyError, TypeError):
        return "note", "none yet", again
    if not same:
        return "note", f"of another version of the file ({summary})", again
    if not passed:
        return "missing", f"{len(bad)} checks failed ({summary}): {named}", f"fix these, then run {again}"
    if not report["runs"]:
        return "note", f"of the plan only ({summary})", again
    if report["only"]:
        return "note", f"passed, for {', '.join(report['only'])} only ({summary})", again
    return "ok", f"passed, {summary}", ""
