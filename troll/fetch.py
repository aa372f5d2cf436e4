"""Downloads what an experiment needs from the hub, on a machine that can reach it."""

from collections.abc import Callable, Iterable

from troll.errors import UserError
from troll.experiments import Experiment, Run
from troll.hub import snapshot
from troll.pins import lock_path
from troll.progress import say
from troll.tasks import testbed
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import load

_GIB = 2**30


def runs_of(experiment: Experiment, groups: Iterable[str]) -> list[Run]:
    """The runs of these groups, each once; of none given, all runs.

    Raises:
        UserError: the experiment has no such group.
    """
    known = experiment.groups()
    found: dict[Run, None] = {}
    for group in groups:
        if group not in known:
            valid = ", ".join(known) or "none, no block has a group"
            raise UserError(f"experiment {experiment.experiment} has no group {group!r}; valid: {valid}")
        found.update(dict.fromkeys(known[group]))
    return list(found) if groups else experiment.runs()


def needed_models(experiment: Experiment, runs: Iterable[Run]) -> dict[str, bool]:
    """Ids of models on the hub, and whether their weights are needed or the tokenizer alone."""
    found: dict[str, bool] = {}
    for name in dict.fromkeys(run.model for run in runs):
        hub = experiment.models[name].hub
        if hub is not None:
            found[hub.id] = True
            if hub.chat_template_of is not None:
                found.setdefault(hub.chat_template_of, False)
    return found


def needed_data(experiment: Experiment, runs: Iterable[Run]) -> dict[str, list[str]]:
    """Splits of public data by name: all of a task, the test split of what is evaluated on."""
    tasks = dict.fromkeys(run.task for run in runs)
    found = {
        name: [split for split in DATA_SETS[name].parts if split != "all"]
        for name in tasks
        if name not in testbed.NAMES
    }
    for name in tasks:
        for suite in experiment.tasks[name].evaluate_on:
            found.setdefault(suite, ["test"])
    return found


def fetch(experiment: Experiment, groups: Iterable[str] = ()) -> None:
    """Downloads models and data, and pins both in the lock file; what is there is checked, not fetched again.

    A repository that the hub refuses (gated, or unknown) does not hold up the others.

    Args:
        experiment: checked.
        groups: of its runs; none for all.

    Raises:
        UserError: no such group, the hub cannot be reached, or something could not be had.
    """
    runs = runs_of(experiment, list(groups))
    models, data = needed_models(experiment, runs), needed_data(experiment, runs)
    work: list[tuple[str, Callable[[], str]]] = [
        (f"model {name}" + ("" if weights else " (tokenizer)"), _model(name, weights))
        for name, weights in models.items()
    ]
    work += [(f"data set {name}", _data(name, splits)) for name, splits in data.items()]
    refused = []
    for number, (what, get) in enumerate(work, start=1):
        say(f"[fetch] {number}/{len(work)} {what}")
        try:
            say(f"[fetch] {number}/{len(work)} {what}: {get()}")
        except UserError as error:
            if not _refused(error):
                raise
            say(f"[fetch] {number}/{len(work)} {what}: {error}")
            refused.append(what)
    if refused:
        raise UserError(
            f"fetch: the hub refuses {len(refused)} of {len(work)} ({', '.join(refused)}); accept their "
            "terms there, log in (hf auth login), and run this again"
        )
    say(
        f"[fetch] done: {len(models)} models, {len(data)} data sets; pinned in {lock_path()}. Jobs run with "
        "HF_HUB_OFFLINE=1 from here on"
    )


def _model(name: str, weights: bool) -> Callable[[], str]:
    def get() -> str:
        found = snapshot(name, weights=weights).provenance
        size = sum(int(facts["bytes"]) for facts in found["files"].values()) / _GIB
        return f"{size:.2f} GiB at {found['revision'] or 'the mirror'}"

    return get


def _data(name: str, splits: list[str]) -> Callable[[], str]:
    def get() -> str:
        loaded = [load(name, split) for split in splits]
        counts = ", ".join(f"{len(part.problems)} {part.split}" for part in loaded)
        where = loaded[0].provenance
        return f"{counts} problems from {where.get('revision') or where['source']}"

    return get


def _refused(error: UserError) -> bool:
    """Whether the hub has answered, and said no to this repository."""
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error.__context__, HfHubHTTPError)
