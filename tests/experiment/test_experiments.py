"""Experiment files: every mistake is one line that names file, field, value and what would be right."""

import copy
import re
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
import yaml
from refusals import refused

from troll.common.seeding import derive_seed
from troll.experiment.experiment import resolve
from troll.experiment.files import load_experiment, parse_experiment, read_run_file, write_run_file
from troll.experiment.measurement_settings import StepBenchmark
from troll.experiment.model_settings import LEAST_VOCABULARY, ModelSettings
from troll.experiment.settings import TaskSettings, Training
from troll.experiment.sizes import train_problems
from troll.experiment.validation import RULES
from troll.training.base_model import new_model
from troll.training.tokenizer import train_tokenizer

TESTBED = "workflow/config/testbed.yaml"


@pytest.fixture
def data(repository):
    return yaml.safe_load((repository / TESTBED).read_text())


def _set(data, path, value):
    *parents, last = path
    for key in parents:
        data = data[key]
    data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "facts"),
    [
        (("seeds",), 3, ["seeds", "list", "3"]),
        (("seeds",), [], ["seeds", "1"]),
        (("seeds",), [0, 0], ["seeds", "0"]),
        (("seeds",), [-1], ["seeds", "-1"]),
        (("seed",), [1], ["'seed'", "'seeds'"]),
        (("tasks", "chain"), {}, ["tasks", "'chain'", "chains, functions", "'chains'"]),
        (
            ("tasks", "chains", "settings"),
            {"operation": [2]},
            ["tasks.chains.settings", "'operation'", "operations"],
        ),
        (("tasks", "chains", "settings"), {"operations": 2}, ["operations", "2"]),
        (("tasks", "chains", "test"), 0, ["tasks.chains.test", "0"]),
        (("trust_regions", "troll", "rule"), "trol", ["trust_regions.troll", "'trol'", "troll"]),
        (
            ("trust_regions", "troll", "settings"),
            {"kl_bund": 1},
            ["trust_regions.troll.settings", "'kl_bund'", "'kl_bound'"],
        ),
        (
            ("trust_regions", "troll", "settings"),
            {"kl_bound": float("nan")},
            ["trust_regions.troll", "kl_bound", "nan", ">= 0", "infinity"],
        ),
        (
            ("trust_regions", "clip", "settings"),
            {"dual_clip": 0.5},
            ["trust_regions.clip", "dual_clip", "0.5", "> 1", "none"],
        ),
        (
            ("estimators", "grpo", "settings"),
            {"epsilon": "1e-6"},
            ["estimators.grpo", "epsilon", "'1e-6'", "> 0", "text"],
        ),
        (("estimators", "grpo", "rule"), "gpro", ["estimators.grpo", "'gpro'", "grpo"]),
        (("conditions", "gentle", "learning_rate"), -1.0, ["conditions.gentle.learning_rate", "-1.0", "> 0"]),
        (
            ("conditions", "gentle", "learning_rte"),
            1.0,
            ["conditions.gentle", "learning_rte", "'learning_rate'"],
        ),
        (("training", "keep"), "many", ["training.keep", "integer", "many"]),
        # What files of older versions hold.
        (("models", "tiny", "hub"), "Qwen/Qwen3-0.6B", ["models.tiny.hub", "id", "Qwen3-0.6B"]),
        (("conditions", "gentle"), {"passes": 3}, ["conditions.gentle.passes", "'passes'"]),
        (("training", "regulariser"), {"place": "loss"}, ["training.regulariser.place", "'place'"]),
        (("trust_regions", "clip"), "clip", ["trust_regions.clip", "rule", "'clip'"]),
        (("training", "epochs"), 0, ["training.epochs", "0", "> 0"]),
        (("training", "keep"), True, ["training.keep", "True", "> 0"]),
        (("training", "mini_batches"), 7, ["7", "mini_batches", "128 responses"]),
        (("training", "learning_rate"), float("nan"), ["training.learning_rate", "nan"]),
        (("matrix",), [{"tasks": ["sums"]}], ["matrix[0].tasks", "'sums'", "chains, functions"]),
        (("matrix",), [{"conditions": ["stall"]}], ["matrix[0].conditions", "'stale'"]),
        (("experiment",), "a/b", ["'a/b'"]),
        (("experiment",), "x\n", ["experiment", "'x\\n'", "letters, digits"]),
        (("experiment",), "x" * 300, ["experiment", "...'", "100"]),
        (("models",), {"a\n": {}}, ["models", "'a\\n'"]),
        (("conditions",), {"..": {}}, ["conditions", "'..'"]),
        (("matrix",), [{"group": "all"}], ["matrix[0].group", "'all'", "rule"]),
        (("matrix",), [{"group": "train"}], ["matrix[0].group", "'train'", "rule"]),
        (("matrix",), [{"group": "a\n"}], ["matrix[0].group", "'a\\n'", "lowercase"]),
        (("matrix",), [{"group": "a" * 300}], ["matrix[0].group", "100"]),
        (("seeds",), [10**30], ["seeds.0", "2^31"]),
        (("training", "keep"), 2**40, ["training.keep", "2^31"]),
        *(
            (("tasks", "chains", "settings"), {key: value}, ["tasks.chains.settings", key, *facts])
            for key, value, *facts in (
                ("guess", "0.5", "[0, 1]"),
                ("guess", float("nan"), "[0, 1]"),
                ("guess", float("inf"), "[0, 1]"),
                ("guess", True, "[0, 1]"),
                ("guess", -0.5, "[0, 1]"),
                ("guess", 0.9, "stop_early", "1"),
                ("guess_right", 2, "[0, 1]"),
                ("names", 5000, "[0, 4900]"),
                ("names", 1.5, "[0, 4900]"),
                ("operations", [], "1"),
                ("operations", ["2"], "operations.0", "'2'", "[1, 50]"),
                ("operations", [2, True], "operations.1", "True", "[1, 50]"),
                ("operations", [0], "operations.0", "0", "[1, 50]"),
            )
        ),
        (("tasks", "functions", "settings"), {"base_inputs": 100}, ["functions.settings", "[1, 20]"]),
        (("tasks", "functions", "settings"), {"levels": [3]}, ["functions.settings", "levels", "[1, 2]"]),
        *(
            (
                ("trust_regions", "clip"),
                {"rule": "clip", "settings": {key: value}},
                ["trust_regions.clip", key, repr(value), fact],
            )
            for key, value, fact in (
                ("dual_clip", 0.5, "> 1"),
                ("dual_clip", float("nan"), "> 1"),
                ("epsilon_low", -0.2, ">= 0"),
                ("epsilon_high", "0.2", "number"),
            )
        ),
        *(
            (
                ("trust_regions", "troll", "settings"),
                {"kl_bound": value},
                ["trust_regions.troll.settings", "kl_bound", repr(value), ">= 0"],
            )
            for value in (-1, float("nan"), "0.05", True)
        ),
        (("tasks",), {}, ["tasks", "1"]),
        (("conditions",), {}, ["conditions", "1"]),
        (("matrix",), [], ["matrix"]),
        (("matrix",), [{}, {"tasks": []}], ["matrix[1].tasks"]),
        (("claims",), [], ["claims"]),
        (("models", "tiny", "layers"), 0, ["models.tiny.layers", "0", "> 0"]),
        (("models", "tiny", "key_value_heads"), 3, ["models.tiny.heads", "4", "3 key_value_heads"]),
        (("models", "tiny", "key_value_heads"), 8, ["models.tiny.heads", "4", "8 key_value_heads"]),
        (("models", "tiny", "head_width"), 33, ["models.tiny.head_width", "33"]),
        (("models", "tiny", "vocabulary"), 257, ["models.tiny.vocabulary", "257", "258"]),
        (("models", "tiny", "context"), 48, ["max_response_tokens 48", "48 tokens"]),
        (
            ("conditions", "stale", "max_prompt_tokens"),
            209,
            ["stale/seed0", "max_prompt_tokens 209", "max_response_tokens 48", "256 tokens", "tiny"],
        ),
        (("models", "tiny", "layer"), 2, ["models.tiny", "'layer'", "'layers'"]),
        (
            ("tasks", "chains", "train"),
            15,
            ["tiny/chains/", "prompts_per_batch", "16", "task chains", "15", "tasks.chains.train"],
        ),
        (
            ("conditions", "stale", "prompts_per_batch"),
            2048,
            ["/stale/seed0", "prompts_per_batch", "2048", "2000"],
        ),
        (("cost",), {"widths": []}, ["cost.widths"]),
        (("cost",), {"step": {"shape": "21m"}}, ["cost.step.shape", "'21m'", "'20m'"]),
        (("evaluation", "engine"), "vllm", ["evaluation.engine", "vllm", "model tiny", "transformers"]),
        (("models", "tiny"), {"hub": {"id": "no-owner"}}, ["models.tiny.hub.id", "no-owner"]),
        (
            ("models", "tiny"),
            {"hub": {"id": "a/b", "revision": "x"}},
            ["models.tiny.hub", "'revision'", "id"],
        ),
        (("tasks", "chains", "train"), "all", ["tasks.chains.train", "'all'", "number"]),
        (("tasks", "chains", "train"), "some", ["tasks.chains.train", "'some'", "> 0", "'all'"]),
        (("tasks", "aime24"), {}, ["tasks.aime24", "test", "evaluate_on"]),
        (("tasks", "gsm8k"), {}, ["models.tiny", "gsm8k", "hub: {id: OWNER/NAME}"]),
        (("tasks", "chains", "evaluate_on"), {"math5000": {}}, ["tasks.chains.evaluate_on", "'math500'"]),
        (("tasks", "chains", "validate_on"), {"math5000": "all"}, ["tasks.chains.validate_on", "'math500'"]),
        (
            ("tasks", "chains", "validate_on"),
            {"math500": 0},
            ["tasks.chains.validate_on.math500", "0", "> 0", "'all'"],
        ),
        (("conditions",), {0.001: {}}, ["conditions", "name 0.001", "text"]),
        (("trust_regions",), {True: {"rule": "clip"}}, ["trust_regions", "name True", "text"]),
        (("trust_regions",), ["clip"], ["trust_regions", "a block by name"]),
        (("matrix",), "all", ["matrix", "a list of blocks"]),
        (
            ("evaluation",),
            {"engine": "vllm", "engine_options": {"tensor_parallel_size": "two"}},
            ["evaluation", "tensor_parallel_size", "'two'"],
        ),
        (("matrix",), [{"group": "Paper sizes"}], ["matrix[0].group", "'Paper sizes'", "lowercase"]),
    ],
)
def test_every_mistake_is_one_line(data, path, value, facts):
    _set(data, path, value)
    with refused("file.yaml", *facts):
        parse_experiment(data, "file.yaml")


def test_prompts_and_responses_may_fill_the_context(data):
    data["training"]["max_prompt_tokens"] = 208
    assert parse_experiment(data, "x").runs()


def test_a_missing_file_and_broken_yaml_are_named(tmp_path):
    with refused(tmp_path / "none.yaml"):
        load_experiment(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("seeds: [1\nexperiment: x")
    with refused(broken, "YAML", "line 2"):
        load_experiment(broken)


def test_every_experiment_file_of_the_repository_is_valid(repository):
    for path in (repository / "workflow/config").glob("testbed*.yaml"):
        assert load_experiment(path).runs(), path


def test_experiments_of_the_repository_state_the_bound_so_that_another_default_changes_no_run(repository):
    for path in (repository / "workflow/config").glob("*.yaml"):
        data = yaml.safe_load(path.read_text())
        rules = data.get("trust_regions", {}) if isinstance(data, dict) else {}
        projected = {name: region for name, region in rules.items() if region["rule"].startswith("troll")}
        silent = [name for name, region in projected.items() if "kl_bound" not in region.get("settings", {})]
        assert not silent, (path.name, silent)


def test_the_matrix_is_the_product_and_blocks_add_up_without_repeats(data):
    experiment = parse_experiment(data, "x")
    size = 1
    for key in ("tasks", "models", "trust_regions", "estimators", "conditions", "seeds"):
        size *= len(data[key])
    assert len(experiment.runs()) == len(set(experiment.runs())) == size
    data["matrix"] = [{"tasks": ["chains"]}, {"tasks": ["chains"], "conditions": ["stale"]}]
    assert len(parse_experiment(data, "x").runs()) == size // 2


def test_a_new_seed_or_method_changes_no_existing_run(data):
    before = parse_experiment(data, "x")
    more = copy.deepcopy(data)
    more["seeds"].append(9)
    more["trust_regions"]["none"] = {"rule": "none"}
    after = parse_experiment(more, "x")
    for run in before.runs():
        assert resolve(before, run) == resolve(after, run)


def test_methods_share_seeds_and_seeds_differ(data):
    experiment = parse_experiment(data, "x")
    seeds = {}
    for run in experiment.runs():
        seeds.setdefault((run.model, run.task, run.seed), set()).add(str(resolve(experiment, run).seeds))
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)


def test_overrides_apply_in_order(data):
    data["tasks"]["chains"]["training"] = {"learning_rate": 0.5, "keep": 7}
    data["models"]["tiny"]["training"] = {"keep": 5, "weight_decay": 0.25}
    data["conditions"]["gentle"] = {"learning_rate": 0.125}
    experiment = parse_experiment(data, "x")
    run = next(run for run in experiment.runs() if run.task == "chains" and run.condition == "gentle")
    training = experiment.training_of(run)
    assert (training.learning_rate, training.keep, training.weight_decay) == (0.125, 7, 0.25)


def test_derived_seeds_depend_on_every_coordinate_and_not_on_their_order():
    assert derive_seed(a=1, b="x") == derive_seed(b="x", a=1)
    seeds = {
        derive_seed(a=1, b="x"),
        derive_seed(a=2, b="x"),
        derive_seed(a=1, b="y"),
        derive_seed(a="1", b="x"),
    }
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_renamed_key_is_named_although_the_new_one_is_missing(data):
    data["advantage_estimators"] = data.pop("estimators")
    with refused("x", "'advantage_estimators'", "'estimators'"):
        parse_experiment(data, "x")


def test_a_run_file_of_another_version_is_one_line(data, tmp_path):
    experiment = parse_experiment(data, "x")
    config = resolve(experiment, experiment.runs()[0])
    write_run_file(tmp_path / "run.yaml", config)
    assert read_run_file(tmp_path / "run.yaml") == config
    text = (tmp_path / "run.yaml").read_text()
    for key, other, facts in (
        ("  keep:", "  kept_tokens:", ("training.kept_tokens",)),
        ("  num_iterations:", "  passes:", ("training.passes",)),
        ("  layers:", "  layer:", ("model.layer", "'layers'")),
        ("  rule: ", "  rules: ", ("trust_region.rules", "'rule'")),
        ("  evaluation:", "  sampling:", ("seeds.sampling",)),
        ("  heads: ", "  heads: -", ("model.heads", "-4", "> 0")),
    ):
        assert key in text
        (tmp_path / "run.yaml").write_text(text.replace(key, other, 1))
        with refused(tmp_path / "run.yaml", *facts, "delete"):
            read_run_file(tmp_path / "run.yaml")


def test_tasks_that_evaluate_on_the_same_set_take_as_much_of_it(data):
    for task, count in (("chains", 3), ("functions", 4)):
        data["tasks"][task]["evaluate_on"] = {"math500": {"test": count}}
    with refused("tasks.functions.evaluate_on.math500.test", 4, "task chains", 3):
        parse_experiment(data, "x")
    data["tasks"]["functions"]["evaluate_on"] = {}
    data["tasks"]["functions"]["validate_on"] = {"math500": "all"}
    with refused("tasks.functions.validate_on.math500", "all", "task chains", 3):
        parse_experiment(data, "x")


@pytest.mark.parametrize(
    ("epochs", "task", "batches"),
    [
        (None, {"train": 600}, 1001),
        (20, {"train": 600}, 20 * 2),  # two batches of 256 in an epoch, 88 problems left out
        (1000, {"train": 600}, 1001),
        (20, {"train": "all", "validation": 0}, 580),  # the length of the paper's runs on GSM8K
        (20, {"train": "all"}, 20 * ((7473 - 256) // 256)),  # 256 problems are held out for validation
        (20, {"train": 100}, 1001),  # too few for a batch, which is an error of its own
    ],
)
def test_epochs_limit_the_rollout_batches(epochs, task, batches):
    training = Training.model_validate({"epochs": epochs})
    problems = train_problems("gsm8k", TaskSettings.model_validate(task))
    assert training.within_epochs(problems).rollout_batches == batches
    assert training.within_epochs(None) == training, "the size of a data set may be unknown"
    assert ("epochs" in training.model_dump()) == (epochs is not None)


def test_demonstrations_are_asked_for_only_where_there_are_some(data):
    data["models"]["tiny"] = {"hub": {"id": "a/b"}}
    data["tasks"] = {"gsm8k": {"train": "all"}}
    data["estimators"] = {"ppo-max": {"rule": "ppo-max"}}
    with refused("gsm8k", "pretraining: null"):
        parse_experiment(data, "x")
    data["estimators"]["ppo-max"]["training"] = {"pretraining": None}
    assert parse_experiment(data, "x").runs()


def test_groups_share_runs_and_the_model_of_a_run_is_its_id_on_the_hub(data):
    data["models"]["tiny"] = {"hub": {"id": "a/b", "billions": 3}}
    data["tasks"] = {"gsm8k": {"train": "all"}}
    data["matrix"] = [
        {"group": "one", "conditions": ["gentle"]},
        {"group": "two"},
        {"group": "one", "conditions": ["gentle"], "estimators": ["grpo"]},
    ]
    experiment = parse_experiment(data, "x")
    groups = experiment.groups()
    assert set(groups["one"]) < set(groups["two"]) == set(experiment.runs())
    assert len(groups["one"]) == len(set(groups["one"]))
    resolved = resolve(experiment, groups["one"][0]).model
    assert resolved.model_dump() == {"name": "tiny", "hub": {"id": "a/b", "chat_template_of": None}}


def test_no_group_can_have_the_name_of_a_rule(repository):
    texts = [path.read_text() for path in (repository / "workflow/rules").glob("*.smk")]
    texts.append((repository / "Snakefile").read_text())
    rules = {name for text in texts for name in re.findall(r"^(?:rule|checkpoint) (\w+)", text, re.MULTILINE)}
    assert rules and rules <= RULES


def test_a_key_that_is_there_twice_is_refused(repository, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text((repository / TESTBED).read_text() + "seeds: [3]\n")
    with refused(path, "line", "'seeds'"):
        load_experiment(path)


@pytest.mark.parametrize(
    "shape",
    [
        {"vocabulary": LEAST_VOCABULARY, "width": 100, "heads": 3, "key_value_heads": 1, "head_width": 2},
        {"heads": 4, "key_value_heads": 4, "layers": 1},
    ],
)
def test_a_shape_that_is_not_refused_can_be_built(shape):
    model = ModelSettings(**shape)
    tokenizer = train_tokenizer(["1 + 1"], model.vocabulary) if "vocabulary" in shape else None
    ends = tokenizer or SimpleNamespace(eos_token_id=0, pad_token_id=1)
    new_model(model, ends, seed=0)(torch.tensor([[0, 1, 2]]))


def test_a_batch_may_take_every_problem_of_a_task(data):
    sizes = [data["training"]["prompts_per_batch"]]
    sizes += [condition.get("prompts_per_batch", 0) for condition in data["conditions"].values()]
    data["tasks"]["chains"]["train"] = max(sizes)
    assert parse_experiment(data, "x").runs()


@pytest.mark.parametrize(("train", "fits"), [("all", True), (16, True), (15, False)])
def test_a_batch_of_a_public_data_set_is_compared_with_what_is_taken_of_it(data, train, fits):
    data["models"]["tiny"] = {"hub": {"id": "a/b"}}
    data["tasks"] = {"gsm8k": {"train": train}}
    if fits:
        assert parse_experiment(data, "x").runs()
    else:
        with refused("prompts_per_batch", 16, "task gsm8k", 15):
            parse_experiment(data, "x")


def test_models_of_the_hub_may_be_sampled_with_vllm(data):
    data["models"]["tiny"] = {"hub": {"id": "a/b"}}
    data["evaluation"]["engine"] = "vllm"
    assert parse_experiment(data, "x").runs()


def test_a_model_without_runs_may_be_made_from_scratch_beside_vllm(data):
    data["models"]["hub"] = {"hub": {"id": "a/b"}}
    data["evaluation"]["engine"] = "vllm"
    data["matrix"] = [{"models": ["hub"]}]
    assert parse_experiment(data, "x").runs()


def test_the_shapes_of_the_step_benchmark_are_known_without_importing_it():
    from step_worker import SHAPES

    assert get_args(StepBenchmark.model_fields["shape"].annotation) == tuple(SHAPES)
