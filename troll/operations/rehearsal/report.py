"""What a rehearsal leaves behind for `troll doctor`: rehearsal.json, and how it reads."""

from pathlib import Path
from typing import Literal

from troll.common.digests import digest_of_json
from troll.common.errors import UserError
from troll.common.files import read_json
from troll.experiment.experiment import Experiment

PREFIX = "rehearsal-"
"""Before the experiment's name: results/rehearsal-<name>, which no pattern on the real results matches."""
REPORT = "rehearsal.json"


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
    path = root_of(experiment.experiment, results) / REPORT
    again = "troll rehearse FILE"
    try:
        report = read_json(path)
        bad = [check for check in report["checks"] if check["state"] == "failed"]
        named = "; ".join(f"{check['key']}: {check['found']}" for check in bad[:3])
        summary = f"{report['runs']} of {report['planned']} runs, {report['when']}"
        same, passed = report["digest"] == digest_of(experiment), report["passed"]
    except (UserError, KeyError, TypeError):
        return "note", "none yet", again
    if not same:
        return "note", f"of another version of the file ({summary})", again
    if passed and not report["runs"]:
        return "note", f"of the plan alone ({summary})", again
    if passed and report["only"]:
        return "note", f"passed, of {', '.join(report['only'])} alone ({summary})", again
    if not passed:
        return "missing", f"{len(bad)} checks failed ({summary}): {named}", f"mend that, and {again}"
    return "ok", f"passed, {summary}", ""
