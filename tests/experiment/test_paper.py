"""The paper's experiment file: every published number has its runs, and they have the published settings."""

import re
from fnmatch import fnmatchcase

import pytest
import yaml
from refusals import refused

from troll.analysis.claims.packaged import CLAIMS
from troll.analysis.claims.verdicts import read_claims
from troll.analysis.data.summaries import Cell
from troll.analysis.tables.published import SECTIONS
from troll.experiment.budget import budget_lines, budget_of, hours_of
from troll.experiment.experiment import resolve
from troll.experiment.files import load_experiment, parse_experiment
from troll.tasks.datasets.catalogue import MATH_EVAL

FILE = "workflow/config/paper.yaml"
GROUPS = {
    "paper_sizes",
    "paper_estimators",
    "paper_families",
    "paper_ablations",
    "paper_code",
    "paper_staleness",
    "summary_matrix",
    "quatro",
}


@pytest.fixture(scope="module")
def paper(repository):
    return load_experiment(repository / FILE)


def cell(run):
    return Cell(run.model, run.task, run.condition, run.estimator, run.trust_region)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_published_number_has_its_runs(paper, section):
    for row in SECTIONS[section].rows():
        settings = [cell(run) for run in paper.runs() if row.holds(cell(run))]
        methods = {found.trust_region for found in settings}
        assert {row.baseline, row.method} <= methods, row
        # One number stands for one setting, and never for one whose staleness or learning rate is another.
        if section != "staleness":
            assert {found.condition for found in settings} == {"stale1x"}, row


def test_every_claim_about_large_models_has_its_runs(paper, repository):
    """A claim that no run of the file could decide would stay `not run` for ever."""
    for claim in read_claims([CLAIMS]):
        if any(pattern.startswith("testbed") for pattern in claim.where.experiment):
            continue
        cells = [cell(run) for run in paper.runs()]
        methods = {c for c in cells if fnmatchcase(c.trust_region, claim.trust_region)}
        settings = [c for c in methods if claim.where.holds("paper", c)]
        assert settings, claim.id
        if isinstance(claim.baseline, str) and claim.baseline != "base":
            assert any(c.with_trust_region(claim.baseline) in cells for c in settings), claim.id


def test_the_groups_are_the_selections_and_hold_every_run(paper):
    groups = paper.groups()
    assert set(groups) == GROUPS
    assert {run for runs in groups.values() for run in runs} == set(paper.runs())
    assert {run.model for run in groups["summary_matrix"]} == {
        "CodeLlama-7B",
        "CodeLlama-13B",
        "DeepSeek-Coder-1.3B",
        "DeepSeek-Coder-6.7B",
    }
    assert {run.condition for run in groups["quatro"]} == {"stale1x", "stale4x", "stale16x", "lr3", "lr10"}


def test_settings_are_the_published_ones(paper):
    run = paper.run("Qwen3-8B/dapo/troll/grpo/stale1x/seed0")
    training = paper.training_of(run)
    assert (training.learning_rate, training.weight_decay, training.gradient_clipping) == (1e-6, 0.0, 1.0)
    assert (training.prompts_per_batch, training.responses_per_prompt, training.steps_per_batch) == (
        256,
        8,
        8,
    )
    assert (training.keep, training.dropped_mass, training.tail) == (64, 1e-5, "constant")
    assert (training.max_prompt_tokens, training.max_response_tokens) == (2048, 4096)
    assert training.regulariser is None and training.rollout_batches == 1001
    settings = resolve(paper, run).trust_region.settings
    assert (settings["kl_bound"], settings["regression_weight"]) == (0.05, 1.0)
    clip = paper.trust_regions["clip"].settings
    assert clip == {"epsilon_low": 0.2, "epsilon_high": 0.2, "dual_clip": 10.0}
    dapo = paper.tasks["dapo"]
    assert set(MATH_EVAL) == set(dapo.evaluate_on) == set(dapo.validate_on) - {"dapo"}
    assert {(suite.samples, suite.temperature) for suite in dapo.evaluate_on.values()} == {(1, 0.0)}
    ppo = paper.training_of(paper.run("Qwen3-8B/dapo/clip/ppo/stale1x/seed0"))
    assert ppo.critic is not None and ppo.critic.learning_rate == 1e-5
    wide = paper.training_of(paper.run("Qwen3-1.7B/dapo/troll-k256/grpo/stale1x/seed0"))
    assert (wide.keep, wide.dropped_mass) == (256, 1e-6)


@pytest.mark.parametrize(("condition", "times"), [("stale4x", 4), ("stale16x", 16)])
def test_stale_runs_take_as_many_samples_in_larger_batches(paper, condition, times):
    fresh, stale = (
        paper.training_of(paper.run(f"Qwen3-4B/dapo/clip/grpo/{name}/seed0"))
        for name in ("stale1x", condition)
    )
    assert stale.steps_per_batch == times * fresh.steps_per_batch
    assert stale.prompts_per_batch == times * fresh.prompts_per_batch
    assert stale.steps == pytest.approx(fresh.steps, rel=0.01)


def test_a_new_seed_adds_its_runs_and_changes_no_other(repository, paper):
    data = yaml.safe_load((repository / FILE).read_text())
    data["seeds"] = [0, 1]
    more = parse_experiment(data, FILE)
    new = set(more.runs()) - set(paper.runs())
    assert len(more.runs()) == 2 * len(paper.runs())
    assert {run.seed for run in new} == {1}
    assert more.bases() == paper.bases()
    assert all(resolve(paper, run) == resolve(more, run) for run in paper.runs())


@pytest.mark.parametrize("rule", ["clip", "troll"])
def test_the_runs_for_one_card_differ_in_what_their_file_says_and_in_nothing_else(repository, paper, rule):
    path = repository / "workflow/config/paper-one-gpu.yaml"
    run_id, small = f"Qwen2.5-0.5B-Instruct/gsm8k/{rule}/grpo/stale1x/seed0", load_experiment(path)
    ours, whole = (resolve(each, each.run(run_id)).model_dump() for each in (small, paper))
    assert {key for key in whole if ours[key] != whole[key]} == {"experiment", "training"}
    training, published = ours["training"], whole["training"]
    differing = {key for key in published if training.get(key) != published[key]}
    assert differing == {
        *("rollout_batches", "epochs", "prompts_per_batch", "max_response_tokens"),
        *("gpus", "vllm", "validate_every", "checkpoint_every"),
    }
    text = path.read_text()
    for key in ("rollout_batches", "prompts_per_batch", "max_response_tokens", "gpus"):
        assert f"the paper: {published[key]:,}" in text, key
    assert training["prompts_per_batch"] * 8 == published["prompts_per_batch"]


def test_the_budget_adds_up_the_runs_of_each_group(paper):
    both = budget_of(paper, paper.groups()["paper_sizes"])
    assert both.runs == 10 and both.unknown == 0
    assert both.disk_gb == pytest.approx(2 * 4 * (0.6 + 1.7 + 4 + 8 + 14))
    hours = [hours_of(paper, run) for run in paper.groups()["paper_sizes"]]
    assert both.hours.likely == pytest.approx(sum(hour.likely for hour in hours))
    assert both.hours.low < both.hours.likely < both.hours.high
    text = "\n".join(budget_lines(paper))
    assert "estimated" in text and all(group in text for group in GROUPS)


def test_the_checkpoints_of_a_run_are_those_kept_and_a_new_one_with_those_of_the_critic(paper):
    def checkpoints(group):
        (line,) = [line for line in budget_lines(paper, [group]) if "checkpoints of each run" in line]
        return float(re.search(r"up to ([\d,]+) GB", line)[1].replace(",", ""))

    assert {run.model for run in paper.groups()["paper_staleness"]} == {"Qwen3-4B"}
    assert checkpoints("paper_staleness") == 4 * 12 * (2 + 1)
    with_critic = {run.model for run in paper.groups()["paper_estimators"] if run.estimator == "ppo"}
    assert with_critic == {"Qwen3-8B", "Qwen2.5-7B-Instruct"}
    assert checkpoints("paper_estimators") == 2 * 8 * 12 * (2 + 1)


def test_the_budget_of_some_groups_is_theirs_alone(paper):
    one = budget_lines(paper, ["paper_code"])
    assert sum("paper_" in line for line in one) == 1 and not any("  all  " in line for line in one)
    two = budget_lines(paper, ["paper_code", "paper_sizes"])
    assert [line.split()[0] for line in two[2:5]] == ["paper_code", "paper_sizes", "all"]
    assert two[4].split()[1] == "20"
    with refused("paper_code2", "paper_code"):
        budget_lines(paper, ["paper_code2"])


def test_the_size_of_a_model_in_the_mirror_is_its_own(paper, tmp_path, monkeypatch):
    group = paper.groups()["paper_staleness"]
    published = budget_of(paper, group)
    directory = tmp_path / "Qwen/Qwen3-4B"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(bytes(8000))
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tmp_path))
    toy = budget_of(paper, group)
    assert published.disk_gb == pytest.approx(4 * 4 * 6)
    assert toy.disk_gb == pytest.approx(4000 / 1e9 * 4 * 6)
    assert toy.hours.likely < published.hours.likely


def test_models_of_unknown_size_are_told_and_not_counted(repository):
    data = yaml.safe_load((repository / FILE).read_text())
    del data["models"]["Qwen3-4B"]["hub"]["billions"]
    experiment = parse_experiment(data, FILE)
    cost = budget_of(experiment, experiment.groups()["paper_staleness"])
    assert (cost.runs, cost.unknown, cost.hours.likely) == (6, 6, 0.0)
    assert "runs of models without `billions`" in "\n".join(budget_lines(experiment))
