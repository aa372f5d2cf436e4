"""What a rehearsal has to say: a line for each check, and rehearsal.json, which `troll doctor` reads."""

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
"""Before the experiment's name: results/rehearsal-<name>, which no pattern on the real results matches."""
REPORT = "rehearsal.json"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State  # ``ok``; ``note``: good to know, and no fault; ``failed``: the experiment would fail
    found: str
    key: str = ""  # the place in a configuration file that decides it; empty where all is well

    def line(self) -> str:
        """The check as a line of text."""
        mark = "FAILED" if self.state == "failed" else self.state
        return f"{mark:8}{self.name:18}{self.key}{': ' if self.key else ''}{self.found}"


def failures_or_ok(name: str, failures: Iterable[Check], otherwise: str) -> list[Check]:
    """The failures and notes of a check; without a failure, with the line that all is well."""
    checks = list(failures)
    return checks if failed(checks) else [*checks, Check(name, "ok", otherwise)]


def failed(checks: Sequence[Check]) -> list[Check]:
    """Those that failed."""
    return [check for check in checks if check.state == "failed"]


def root_of(name: str, results: Path) -> Path:
    """The directory of the rehearsal of the experiment of this name."""
    return results / f"{PREFIX}{name}"


def digest_of(experiment: Experiment) -> str:
    """What shows whether a rehearsal was of the experiment as it is."""
    return digest_of_json(experiment.model_dump(mode="json"))


def last_rehearsal(
    experiment: Experiment, results: Path
) -> tuple[Literal["ok", "note", "missing"], str, str]:
    """What the last rehearsal of an experiment has found: state, words, and what to do about it."""
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
        return "missing", f"{len(bad)} checks failed ({summary}): {named}", f"mend that, and {again}"
    if not report["runs"]:
        return "note", f"of the plan alone ({summary})", again
    if report["only"]:
        return "note", f"passed, of {', '.join(report['only'])} alone ({summary})", again
    return "ok", f"passed, {summary}", ""
