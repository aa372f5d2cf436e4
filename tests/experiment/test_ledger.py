"""The ledger of released settings: paper.yaml cannot leave it unseen, and no difference goes unexplained."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from refusals import refused

from troll.experiment.experiment import merged, resolve
from troll.experiment.files import load_experiment, parse_experiment
from troll.experiment.published.ledger import LEDGER, read_ledger, value_at

PAPER = "workflow/config/paper.yaml"


@pytest.fixture(scope="module")
def paper(repository):
    return load_experiment(repository / PAPER).model_dump()


def ledger_problems(ledger, settings):
    """A line for each key whose value in an experiment is not the one that the ledger knows.

    Also for each override, in a released run, of a setting of training that the ledger knows by its default
    alone.
    """
    listed = {place for entry in ledger.keys for place in (entry.ours, *entry.also)}
    return [
        f"{place}: is {found!r}, but the ledger has {entry.here!r} for {entry.key}"
        for entry in ledger.keys
        for place in ([entry.ours, *entry.also] if entry.ours else ())
        if (found := value_at(settings, place)) != entry.here
    ] + [
        f"{place}: is {value!r}, but the ledger has training.{setting} alone"
        for place, value in overrides(ledger, settings)
        if f"training.{(setting := place.partition('.training.')[2])}" in listed and place not in listed
    ]


def overrides(ledger, settings):
    """Place and value of what models, tasks, rules and estimators of released runs set of training."""
    blocks = [block for block in settings["matrix"] if block["group"] in ledger.groups]
    for section in ("tasks", "models", "trust_regions", "estimators"):
        for name in dict.fromkeys(name for block in blocks for name in block[section]):
            if name not in ledger.own:
                yield from leaves(settings[section][name]["training"], f"{section}.{name}.training.")


def leaves(settings, prefix):
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def test_paper_yaml_has_the_values_that_the_ledger_knows(paper):
    assert ledger_problems(read_ledger(), paper) == []
    states = [entry.state for entry in read_ledger().keys]
    assert {"same", "differs", "not readable"} == set(states) and len(states) > 60


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("training", "epochs"), 10),
        (("tasks", "dapo", "validate_on"), {"dapo": "all"}),
        (("trust_regions", "troll-kl0.01", "settings"), {"kl_bound": 0.02}),
        (("tasks", "eurus-code", "settings"), {}),
        (("tasks", "eurus-math", "validation"), 64),  # one of several places with the value
        (("models", "Qwen3-0.6B", "training"), {"micro_batch_tokens": 12000}),
    ],
)
def test_a_key_that_changes_without_the_ledger_is_named(paper, place, value):
    changed = copy.deepcopy(paper)
    *parents, last = place
    item = changed
    for name in parents:
        item = item[name]
    item[last] = value
    problems = ledger_problems(read_ledger(), changed)
    assert len(problems) == 1 and problems[0].startswith(".".join(place))


@pytest.mark.parametrize(
    ("section", "name", "training", "place"),
    [
        ("models", "Qwen3-8B", {"micro_batch_tokens": 6144}, "micro_batch_tokens"),
        ("tasks", "dapo", {"learning_rate": 1e-5}, "learning_rate"),
        ("estimators", "dr-grpo", {"vllm": {"memory": 0.3}}, "vllm.memory"),
        ("trust_regions", "troll-seq", {"keep": 16}, "keep"),
    ],
)
def test_an_override_that_the_ledger_does_not_list_is_named(paper, section, name, training, place):
    """The released value still stands at its own place, but some released runs no longer have it."""
    changed = copy.deepcopy(paper)
    changed[section][name]["training"] |= training
    (problem,) = ledger_problems(read_ledger(), changed)
    assert problem.startswith(f"{section}.{name}.training.{place}: is ")


@pytest.mark.parametrize(
    ("section", "name"), [("models", "CodeLlama-7B"), ("estimators", "ppo-max"), ("trust_regions", "quatro")]
)
def test_runs_that_no_released_file_has_may_be_set_as_they_need(paper, section, name):
    changed = copy.deepcopy(paper)
    changed[section][name]["training"] |= {"weight_decay": 0.1}
    assert ledger_problems(read_ledger(), changed) == []


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"here": 30}, ("trainer.total_epochs", "reason")),
        ({"file": ""}, ("trainer.total_epochs", "file")),
        ({"file": "abstract"}, ("trainer.total_epochs", "'abstract'", "files")),
        (None, ("trainer.logger", "'abstract'", "files")),  # of keys apart
    ],
)
def test_what_is_not_explained_is_refused(tmp_path, change, facts):
    text = yaml.safe_load(LEDGER.read_text())
    if change is None:
        text["apart"][0]["file"] = "abstract"
    else:
        next(entry for entry in text["keys"] if entry["key"] == "trainer.total_epochs").update(change)
    path = tmp_path / "ledger.yaml"
    path.write_text(yaml.safe_dump(text))
    with refused(path, *facts):
        read_ledger(path)


@pytest.mark.parametrize("variant", read_ledger().variants, ids=lambda item: item.name)
def test_a_variant_is_one_key_that_changes_runs_or_their_evaluation(repository, variant):
    contents = yaml.safe_load((repository / PAPER).read_text())
    released = parse_experiment(contents, PAPER)
    change = variant.value
    for name in reversed(variant.key.split(".")):
        change = {name: change}
    changed = parse_experiment(merged(contents, change), variant.name)
    before, after = ([resolve(item, run) for run in item.runs()] for item in (released, changed))
    different = [run for run, other in zip(before, after, strict=True) if run != other]
    evaluated, otherwise = (
        {name: task.evaluate_on for name, task in item.tasks.items()} for item in (released, changed)
    )
    assert different or evaluated != otherwise, "no run is another one, and none is evaluated otherwise"
    if different and variant.key.startswith("tasks."):
        assert {run.task.name for run in different} == {variant.key.split(".")[1]}


def test_the_page_is_up_to_date(repository, tmp_path):
    out = tmp_path / "released.md"
    command = [Path(sys.executable).parent / "troll", "release", "settings", "--out", out]
    subprocess.run(command, check=True, cwd=repository)
    assert (repository / "docs/released.md").read_text() == out.read_text(), "`make docs` writes it"
