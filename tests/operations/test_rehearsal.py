"""`troll rehearse`: how it chooses and shrinks runs, and what it finds before anything runs."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from refusals import refused
from typer.testing import CliRunner

from troll.experiment.experiment import Run
from troll.experiment.files import parse_experiment, read_experiment
from troll.operations.rehearsal import outcome
from troll.operations.rehearsal.outcome import common_causes
from troll.operations.rehearsal.partitions import check_partitions
from troll.operations.rehearsal.report import failed, last_rehearsal
from troll.operations.rehearsal.run import rehearse
from troll.operations.rehearsal.shrink import cover, pairs_of, selection, shrink
from troll.operations.rehearsal.sources import check_data, check_models, check_templates
from troll.operations.status import RunStatus

REPOSITORY = Path(__file__).parents[2]
SMALL = REPOSITORY / "tests/workflow/rehearsal.yaml"
PAPER = REPOSITORY / "workflow/config/paper.yaml"


@pytest.fixture
def contents():
    return yaml.safe_load(SMALL.read_text())


@pytest.fixture(scope="module")
def paper():
    return read_experiment(PAPER)


def experiment_of(contents):
    return parse_experiment(contents, "small.yaml")


# What it chooses and how it shrinks it


def test_a_cover_has_every_pair_and_no_run_too_many(paper):
    runs = paper.runs()
    chosen = cover(runs)
    wanted = set().union(*map(pairs_of, runs))
    assert set().union(*map(pairs_of, chosen)) == wanted and len(chosen) < 0.6 * len(runs)
    for run in chosen:
        others = set().union(*(pairs_of(other) for other in chosen if other is not run))
        assert others != wanted, f"{run.run_id} adds nothing"
    groups = {name for name, members in paper.groups().items() if set(members) & set(selection(paper))}
    assert groups == set(paper.groups())


def test_runs_are_small_and_keep_what_they_differ_in(paper):
    small = parse_experiment(shrink(paper, selection(paper)), "small")
    whole = {run.run_id: paper.training_of(run) for run in paper.runs()}
    for run in small.runs():
        training = small.training_of(run)
        if "processes" in run.condition:
            assert training.gpus == 4 and training.prompts_per_batch == 32
            continue
        before = whole[run.run_id]
        assert training.gpus == 0 and training.vllm is None and training.rollout_batches == 2
        assert (training.prompts_per_batch, training.responses_per_prompt) == (8, 2)
        assert training.num_iterations == before.num_iterations and training.keep == before.keep
        assert training.learning_rate == before.learning_rate
        assert training.critic is None or training.critic.warmup_steps <= 1
        assert small.tasks[run.task].train >= 2 * training.prompts_per_batch
    assert sum("processes" in run.condition for run in small.runs()) == 1
    assert small.evaluation.engine == "transformers" and small.rehearsal


@pytest.mark.parametrize("responses", [1, 8])
def test_batches_of_any_shape_divide(contents, responses):
    shape = {"prompts_per_batch": 384, "mini_batches": 12, "micro_batches": 2, "gpus": 4}
    contents["conditions"]["stale2x"] = shape | {"responses_per_prompt": responses}
    contents["training"] |= {"gpus": 0, "micro_batch_tokens": None}
    experiment = experiment_of(contents)
    small = parse_experiment(shrink(experiment, experiment.runs()), "small")  # refused if it did not divide
    found = {run.condition: small.training_of(run) for run in small.runs()}
    assert (found["stale2x"].mini_batches, found["stale2x"].micro_batches) == (4, 2)
    assert found["stale2x-4-processes"].gpus == 4


@pytest.mark.slow
def test_built_in_rows_are_read_as_the_real_ones_are(tmp_path, monkeypatch):
    from troll.operations.rehearsal.substitutes import write_rows
    from troll.tasks.datasets.catalogue import DATA_SETS
    from troll.tasks.datasets.load import STAND_INS
    from troll.tasks.registry import get_task

    monkeypatch.setenv(STAND_INS, str(tmp_path))
    for name, item in DATA_SETS.items():
        write_rows(name, tmp_path)
        task, problems = get_task(name), {}
        splits = ["train", "validation", "test"] if "train" in item.parts else ["test"]
        for split in splits:
            problems[split] = task.generate(split, 4 if split != "train" else 24, 0, {})
            assert all(problem.record["substitute"] for problem in problems[split])
        ids = [{problem.task_id for problem in found} for found in problems.values()]
        assert not any(first & second for first, second in itertools.combinations(ids, 2)), name
        if item.kind == "math":
            found = problems["test"]
            right = [f"It is \\boxed{{{problem.answer}}}." for problem in found]
            assert task.reward(found, right) == [1.0] * len(found), name


@pytest.mark.slow
def test_random_models_have_every_architecture(tmp_path):
    from transformers import AutoModelForCausalLM

    from troll.operations.rehearsal.sources import Source, known_models
    from troll.operations.rehearsal.substitutes import _tokenizer, _write

    tokenizer = _tokenizer(tmp_path / "tokenizer", ("chains", "functions"))
    one_of_each = {(known.architecture, known.tied): name for name, known in known_models().items()}
    for (architecture, tied), name in one_of_each.items():
        _write(tmp_path / name, Source(name, "known"), tokenizer, 0, weights=True)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert model.config.model_type == architecture
        assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
        assert model.num_parameters() < 300_000


def test_a_coin_falls_by_problem_and_response_alone(tiny_base):
    from troll.common.tokenizers import saved_tokenizer
    from troll.tasks.registry import get_task
    from troll.tasks.types import Problem
    from troll.training.run import coin, reward_function

    called = []
    task = get_task("chains")
    task = replace(task, reward=lambda *given: called.append(given) or [0.0])
    tokenizer, problems = saved_tokenizer(tiny_base), {"a": Problem("a", "?", "1")}
    reward, ids = reward_function(task, problems, tokenizer, rehearsal=True), tokenizer(["x"]).input_ids
    assert reward(ids, ["a"]) == reward(ids, ["a"]) == [coin("a", "x")] and len(called) == 2
    assert reward_function(task, problems, tokenizer)(ids, ["a"]) == [0.0]
    share = sum(coin("a", str(number)) for number in range(400)) / 400
    assert 0.4 < share < 0.6


# Five deliberate faults, each found with the key to blame


def test_wrong_divisibility_in_a_condition_is_found(contents):
    contents["conditions"]["stale2x"] = {"mini_batches": 7}
    with refused("small.yaml", "conditions.stale2x", "responses", 7):
        experiment_of(contents)


@pytest.mark.parametrize(
    ("name", "hub", "check", "key", "found"),
    [
        ("Qwen3-0.6B", {"id": "Qwen/Qwem3-0.6B"}, check_models, "id", "did you mean 'Qwen/Qwen3-0.6B'"),
        ("Llama-3.2-3B", {}, check_templates, "chat_template_of", "has no chat template"),
        (
            "Llama-3.2-3B",
            {"chat_template_of": "meta-llama/Llama-3.1-8B"},
            check_templates,
            "chat_template_of",
            "has no chat template",
        ),
        ("Llama-3.2-3B", {"chat_template_of": None}, check_templates, "", ""),  # plain text is meant
    ],
)
def test_a_model_or_template_that_is_nowhere_is_found(contents, name, hub, check, key, found):
    settings = contents["models"][name]["hub"]
    settings.pop("chat_template_of", None)
    settings |= hub
    experiment = experiment_of(contents)
    faults = [(one.key, one.found) for one in failed(check(experiment, experiment.runs()))]
    assert [place for place, _ in faults] == [f"models.{name}.hub.{key}"] * bool(key)
    assert all(found in words for _, words in faults)


def test_a_partition_with_too_little_memory_is_found(contents, tmp_path):
    partitions, experiment = tmp_path / "partitions.yaml", experiment_of(contents)
    (tmp_path / "config.yaml").write_text(f"slurm-partition-config: {partitions}\n")

    def checked(runs, **gpu):
        limits = {"cpu": {"max_runtime": 1440}, "gpu": {"max_runtime": 1440, "max_gpu": 8} | gpu}
        partitions.write_text(yaml.safe_dump({"partitions": limits}))
        return check_partitions(experiment, runs, tmp_path)

    (check,) = failed(checked(experiment.runs(), max_mem_mb=50_000))
    assert check.key == str(partitions) and "partitions.gpu.max_mem_mb is 50000" in check.found
    assert "train of models.Llama-3.2-3B requests 62,000 MB" in check.found
    # Enough for the first attempt, not for the third.
    checks = checked(experiment.runs(), max_mem_mb=70_000)
    assert not failed(checks) and any("93,000 MB" in check.found for check in checks)
    bad = failed(checked(experiment.runs(), max_mem_mb=100_000, max_gpu=1))
    assert "partitions.gpu.max_gpu is 1" in [check.found.split("; ")[-1] for check in bad]
    assert not failed(checked([], max_mem_mb=100_000, max_gpu=1)), "jobs of runs that are not planned"


def test_a_figure_without_a_limit_is_found(contents, monkeypatch):
    from matplotlib.figure import Figure

    from troll.analysis.registry import entries
    from troll.analysis.render import style
    from troll.analysis.report import make
    from troll.operations.rehearsal import figures

    experiment = experiment_of(contents)
    monkeypatch.setattr(make, "make", lambda *_: Figure(figsize=(5, 60)))
    monkeypatch.setattr(figures, "figures_of", lambda *_: [(entries("figure")["main"], "", "main")])
    (check,) = figures.check_figures(experiment, experiment.runs())
    assert check.state == "ok"
    monkeypatch.setattr(style, "_frame", lambda _: {"dpi": 200})
    (check,) = figures.check_figures(experiment, experiment.runs())
    assert check.state == "failed" and check.key == "figures.main"
    assert check.found.startswith("1,000 x 12,000 pixels") and "at most 4,000 pixels" in check.found


def test_what_is_found_is_written_down_told_to_the_doctor_and_is_the_status(contents, tmp_path, monkeypatch):
    from troll.cli import app
    from troll.operations.rehearsal import figures

    monkeypatch.setattr(figures, "check_figures", lambda *_: [])
    monkeypatch.chdir(REPOSITORY)
    contents["models"]["Qwen3-0.6B"] = {"hub": {"id": "Qwen/Qwem3-0.6B"}}
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(contents))
    command = ["rehearse", str(file), "--plan-only", "--results", str(tmp_path)]
    assert CliRunner().invoke(app.app, command).exit_code == 1
    report = json.loads((tmp_path / "rehearsal-small/rehearsal.json").read_text())
    assert not report["passed"] and report["runs"] == 0 and "vLLM" in report["not_covered"]
    assert "models.Qwen3-0.6B.hub.id" in {check["key"] for check in report["checks"]}
    state, found, _ = last_rehearsal(experiment_of(contents), tmp_path)
    assert state == "missing" and "models.Qwen3-0.6B.hub.id" in found
    contents["models"]["Qwen3-0.6B"] = {"hub": {"id": "Qwen/Qwen3-0.6B"}}
    state, found, _ = last_rehearsal(experiment_of(contents), tmp_path)
    assert state == "note" and "of another version of the file" in found
    file.write_text(yaml.safe_dump(contents))
    assert CliRunner().invoke(app.app, command).exit_code == 0
    state, found, _ = last_rehearsal(experiment_of(contents), tmp_path)
    assert state == "note" and found.startswith("of the plan only (0 of ")
    path = tmp_path / "rehearsal-small/rehearsal.json"
    whole = json.loads(path.read_text()) | {"runs": 4}
    for report, expected in ((whole, "ok"), (whole | {"only": ["g"]}, "note")):
        path.write_text(json.dumps(report))
        assert last_rehearsal(experiment_of(contents), tmp_path)[0] == expected


@pytest.mark.parametrize(
    ("inside", "results", "facts"),
    [(False, "results", ("rehearse", "Snakefile")), (True, "elsewhere", ("--results", "results"))],
)
def test_the_wrong_place_is_refused_before_anything_is_looked_at(
    contents, tmp_path, monkeypatch, capsys, inside, results, facts
):
    monkeypatch.chdir(REPOSITORY if inside else tmp_path)
    with refused(*facts):
        rehearse(experiment_of(contents), tmp_path / results if inside else Path(results))
    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())


def test_data_that_is_nowhere_is_replaced_and_said(contents, monkeypatch):
    monkeypatch.delenv("TROLL_DATA_MIRROR", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    experiment = experiment_of(contents)
    checks, absent = check_data(experiment, experiment.runs())
    assert set(absent) == {"gsm8k", "mbpp", "humaneval+"} and not failed(checks)


# What it finds of runs


def test_what_failing_runs_have_in_common_is_blamed():
    rules = ("clip", "troll")
    runs = [Run("m", "t", rule, "grpo", condition, 0) for rule in rules for condition in ("a", "b")]
    assert list(common_causes(runs[2:], runs)) == ["trust_regions.troll"]
    assert list(common_causes([runs[0], runs[2]], runs)) == ["conditions.a"]
    assert list(common_causes(runs[:1], runs)) == ["run m/t/clip/grpo/a/seed0"]
    assert list(common_causes(runs, runs)) == ["training"]


def test_runs_that_failed_are_told_with_the_last_line_of_their_logs(contents, tmp_path, monkeypatch):
    experiment = experiment_of(contents)
    broken = [run for run in experiment.runs() if run.trust_region == "troll"]
    states = [
        RunStatus(run.run_id, "failed", reason="train: it broke")
        if run in broken
        else RunStatus(run.run_id, "done")
        for run in experiment.runs()
    ]
    base = RunStatus("Llama-3.2-3B/gsm8k/base", "failed", reason="hub_model: no tokenizer")
    monkeypatch.setattr(outcome, "status_of", lambda *_: [*states, base])
    found = {check.key: check.found for check in failed(outcome.check_runs(experiment, tmp_path))}
    assert found == {
        "trust_regions.troll": f"train: it broke ({len(broken)} run{'s' if len(broken) > 1 else ''})",
        base.name: base.reason,
    }


def test_a_missing_system_turn_is_named_before_anything_runs(monkeypatch):
    from types import SimpleNamespace

    from troll.operations.rehearsal import sources
    from troll.tasks.types import Problem

    found = SimpleNamespace(problems=(Problem("a", "?", "1", system="Think."), Problem("b", "?", "1")))
    monkeypatch.setattr(sources, "needed_data", lambda *_: {"dapo": ["train"]})
    monkeypatch.setattr(sources, "mirror_of", lambda _: Path("/mirror"))
    monkeypatch.setattr(sources, "load", lambda *_: found)
    settings = {"system_turn": "require"}
    experiment = SimpleNamespace(tasks={"dapo": SimpleNamespace(settings=settings)})
    (check,), _ = sources.check_data(experiment, [])
    assert check.state == "failed" and "problem b has no system turn" in str(check)
    settings["system_turn"] = "keep"
    assert all(check.state != "failed" for check in sources.check_data(experiment, [])[0])
