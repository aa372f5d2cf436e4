"""Estimators in experiment files: what they bring, what they need, and every mistake in one line."""

import copy

import pytest
import yaml
from refusals import refused

from troll.experiment.experiment import resolve
from troll.experiment.files import parse_experiment

GAE = {"rule": "gae", "training": {"critic": {}}}


@pytest.fixture
def data(repository):
    return yaml.safe_load((repository / "workflow/config/testbed.yaml").read_text())


def training_of(data, estimator):
    experiment = parse_experiment(data, "x")
    run = next(run for run in experiment.runs() if run.estimator == estimator)
    return resolve(experiment, run).training.model_dump()


def gae(**changes):
    return {"estimators": {"gae": GAE | changes}}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        (gae(training={}), ["estimators.gae", "'gae'", "critic", "estimators.gae.training.critic"]),
        (
            {"estimators": {"best": {"rule": "ppo-max", "training": {"critic": None}}}},
            ["estimators.best", "'ppo-max'", "critic"],
        ),
        (gae(settings={"lam": 1.5}), ["estimators.gae", "lam", "1.5", "[0, 1]"]),
        (gae(settings={"lam": -0.1}), ["estimators.gae", "lam", "-0.1", "[0, 1]"]),
        (gae(settings={"gamma": "much"}), ["estimators.gae", "gamma", "'much'", "[0, 1]"]),
        (
            gae(training={"critic": {"learning_rte": 1}}),
            ["estimators.gae.training.critic", "'learning_rte'", "'learning_rate'"],
        ),
        (
            gae(training={"critic": {"value_clip": 0}}),
            ["estimators.gae.training.critic.value_clip", "0", "> 0"],
        ),
        (
            {"training": {"responses_per_prompt": 1, "prompts_per_batch": 128}},
            ["estimators.grpo", "'grpo'", "responses_per_prompt", "1", "2"],
        ),
        (
            {"training": {"responses_per_prompt": 1, "prompts_per_batch": 128, "dynamic_sampling": {}}},
            ["responses_per_prompt", "1", "dynamic_sampling", "2"],
        ),
        (
            {"estimators": {"best": {"rule": "remax", "training": {"environment": "my_rooms.py:Room"}}}},
            [
                "estimators.best",
                "'remax'",
                "training.environment",
            ],
        ),
        ({"training": {"overlong": {}}}, ["overlong.buffer", "4096", "max_response_tokens", "48"]),
        (
            {"training": {"regulariser": {"estimate": "k4"}}},
            ["training.regulariser.estimate", "'k1'", "'k3+'", "'k4'"],
        ),
        ({"training": {"regulariser": {"coefficient": 0}}}, ["training.regulariser.coefficient", "0"]),
    ],
)
def test_mistakes_about_estimators_are_one_line(data, changes, facts):
    for section, values in changes.items():
        data[section].update(values)
    with refused("file.yaml", *facts):
        parse_experiment(data, "file.yaml")


def test_a_critic_method_may_have_one_response_per_prompt(data):
    data["estimators"] = {"gae": GAE}
    data["training"] |= {"responses_per_prompt": 1, "prompts_per_batch": 128}
    assert training_of(data, "gae")["responses_per_prompt"] == 1


def test_ppo_max_brings_its_recipe_and_every_part_can_be_switched(data):
    data["estimators"] = {
        "paper": {"rule": "ppo-max"},
        "code": {"rule": "ppo-max-code"},
        "parts": {
            "rule": "ppo-max",
            "training": {
                "critic": {"learning_rate": 0.25, "value_clip": None, "warmup_steps": 0},
                "regulariser": None,
                "pretraining": None,
                "gradient_clipping": 9.0,
            },
        },
    }
    paper, code, parts = (training_of(data, name) for name in data["estimators"])
    assert paper["critic"]["warmup_steps"] > 0 and paper["critic"]["value_clip"] == 0.2
    assert (paper["regulariser"]["estimate"], paper["regulariser"]["applied_to"]) == ("k1", "reward")
    assert paper["regulariser"]["coefficient"] == 0.05 and paper["pretraining"]["coefficient"] > 0
    assert code["critic"]["warmup_steps"] == 0 and code["pretraining"] is None
    assert code["regulariser"]["coefficient"] == 0.02
    assert parts["critic"] == paper["critic"] | {"learning_rate": 0.25, "value_clip": None, "warmup_steps": 0}
    assert parts["regulariser"] is None and parts["pretraining"] is None
    assert parts["gradient_clipping"] == 9.0


def test_every_coordinate_overrides_training_and_conditions_have_the_last_word(data):
    before = training_of(copy.deepcopy(data), "grpo")
    data["models"]["tiny"]["training"] = {"learning_rate": 0.5, "keep": 1, "weight_decay": 0.125}
    data["trust_regions"]["clip"]["training"] = {"learning_rate": 0.5, "keep": 3, "num_iterations": 9}
    data["estimators"]["grpo"]["training"] = {"learning_rate": 0.5, "keep": 7}
    after = training_of(data, "grpo")
    assert after == before | {"keep": 7, "num_iterations": 9, "weight_decay": 0.125}
