"""Several base models of one kind: a model for each seed, and nothing else changes."""

import pytest
import yaml
from one_cell import one_cell
from refusals import refused

from troll.experiment.experiment import resolve, resolve_base
from troll.experiment.files import parse_experiment


def experiment(models, **more):
    training = {"max_response_tokens": 128}  # the default exceeds the default context
    return parse_experiment(one_cell(tasks={"locks": {}}, models=models, training=training, **more), "file")


def test_each_seed_is_a_model_with_runs_of_its_own_and_another_base():
    found = experiment({"small": {"width": 64, "base_seeds": [0, 2]}, "other": {}})
    assert [run.run_id for run in found.runs()] == [
        f"{model}/locks/clip/grpo/stale/seed0" for model in ("small-base0", "small-base2", "other")
    ]
    bases = [resolve_base(found, model, "locks") for model, _ in found.bases()]
    assert len({base.seeds.model for base in bases}) == 3
    assert [base.seeds.data for base in bases] == [0, 2, 0]
    assert [base.model.model_dump().get("base_seed") for base in bases] == [0, 2, None]
    assert all(base.model.width == 64 for base in bases[:2])


def test_the_matrix_names_them_together_or_one_by_one():
    models = {"small": {"base_seeds": [0, 1]}, "large": {"base_seeds": [0, 1]}}
    blocks = [{"models": ["small"]}, {"models": ["large-base1"]}]
    found = experiment(models, matrix=blocks)
    assert [model for model, _ in found.bases()] == ["small-base0", "small-base1", "large-base1"]


def test_a_run_records_its_base_seed_and_one_without_has_no_such_key():
    found = experiment({"small": {"base_seeds": [1]}, "other": {}})
    one, other = (resolve(found, run).model_dump() for run in found.runs())
    assert one["model"]["base_seed"] == 1
    assert "base_seed" not in yaml.safe_dump(other)


@pytest.mark.parametrize(
    ("models", "facts"),
    [
        ({"small": {"base_seeds": [0, 0]}}, ("models.small.base_seeds", "[0, 0]")),
        ({"small": {"base_seeds": [0], "hub": {"id": "a/b"}}}, ("models.small.base_seeds",)),
        ({"small": {"base_seeds": [0]}, "small-base0": {}}, ("models.small.base_seeds", "small-base0")),
        ({"small": {"base_seeds": [-1]}}, ("models.small.base_seeds", "-1")),
        ({"small": {"base_seeds": "all"}}, ("models.small.base_seeds", "'all'")),
        ({"small": 3}, ("models.small", "3")),
    ],
)
def test_what_cannot_be_is_one_line(models, facts):
    with refused(*facts):
        experiment(models)
