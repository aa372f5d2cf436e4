"""Whether runs fit their GPUs, the refusal of those that cannot, and estimates corrected by ended runs."""

import json

import pytest
import yaml
from one_cell import one_cell
from refusals import error_of, refused

from troll.experiment.files import load_experiment, parse_experiment
from troll.experiment.gpu_memory import fits, usable
from troll.operations import costs, doctor, gpu_fit
from troll.operations.costs import corrected, cost_lines, ended_hours
from troll.operations.gpu_fit import Card, known_card, memory_lines, refuse_impossible, settings_of, tight

FILE = "workflow/config/paper.yaml"


@pytest.fixture(scope="module")
def paper(repository):
    return load_experiment(repository / FILE)


@pytest.fixture
def large():
    """One run of a model of 70.6 * 10^9 parameters on 8 GPUs of 80 GiB."""
    return one_cell(
        gpu_memory=80,
        tasks={"gsm8k": {"training": {"max_prompt_tokens": 512, "max_response_tokens": 1024}}},
        models={"big": {"hub": {"id": "nobody/big", "billions": 70.6}}},
        training={"gpus": 8, "vllm": {"tensor_parallel": 8}, "micro_batch_tokens": 4096},
    )


def seen(monkeypatch, **answers):
    """Makes programs answer: ``sbatch`` and ``nvidia`` (MiB of each GPU, the first line)."""
    names = {"sbatch": answers.get("sbatch"), "nvidia-smi": answers.get("nvidia")}
    monkeypatch.setattr(gpu_fit, "tool", lambda command: names[command[0]])


def test_every_run_of_the_paper_fits_80_gib_by_the_estimate(paper):
    for setting in settings_of(paper, paper.runs()):
        assert setting.known, setting.model
        assert fits(setting.memory(80), 80), (setting.model, setting.memory(80))
        assert setting.training.gpus == 4 or (setting.model, setting.critic) in {
            ("CodeLlama-13B", True),
            ("Qwen3-4B", False),  # the stalest condition
        }


def rows_of_cards(experiment):
    """The table of docs/cluster.md: GiB that a GPU needs and has, for each model on 40 and 80 GiB."""
    for setting in settings_of(experiment, experiment.runs()):
        cells = []
        for card in (40, 80):
            memory = setting.memory(card)
            mark = "yes" if fits(memory, card) else "no"
            why = "vLLM's share is too small" if memory.problem else memory.largest
            cells.append(f"{memory.needed:.0f}, {mark}" + ("" if mark == "yes" else f" ({why})"))
        name = setting.model + (" with critic" if setting.critic else "")
        yield f"| {name} | {setting.training.gpus} | {' | '.join(cells)} |"


def test_the_table_of_the_documentation_is_the_estimate(paper, repository):
    text = (repository / "docs/cluster.md").read_text()
    for row in rows_of_cards(paper):
        assert row in text, row
    assert f"{usable(40):.1f} and {usable(80):.1f} GiB" in text


def test_the_card_is_the_files_else_the_profiles_else_this_machines(large, tmp_path, monkeypatch):
    seen(monkeypatch, nvidia="40960")
    stated = parse_experiment(large, "x")
    silent = parse_experiment(large | {"gpu_memory": None}, "x")
    assert known_card(stated, tmp_path) == Card(80, "gpu_memory")
    assert known_card(silent, tmp_path) == Card(40, "this machine")
    seen(monkeypatch, nvidia="40960", sbatch="slurm 22.05")
    assert known_card(silent, tmp_path) is None, "jobs run on other machines"
    (tmp_path / "config.yaml").write_text("executor: slurm\nconfig: [gpu_memory=141]\n")
    assert known_card(silent, tmp_path) == Card(141, str(tmp_path / "config.yaml"))
    for value in ("80GB", "0", "inf"):
        (tmp_path / "config.yaml").write_text(f"config: [gpu_memory={value}]\n")
        with refused(tmp_path / "config.yaml", "gpu_memory", repr(value)):
            known_card(silent, tmp_path)
    seen(monkeypatch)
    assert known_card(silent, tmp_path / "nothing") is None


def test_a_run_that_cannot_fit_is_refused_in_one_line(large, monkeypatch):
    seen(monkeypatch)
    experiment = parse_experiment(large, "x")
    facts = ("132 GiB", "8 GPUs", "80 GiB", "gpu_memory", 79)
    with refused("large.yaml", "big/gsm8k/clip/grpo/stale", *facts):
        refuse_impossible(experiment, experiment.runs(), "large.yaml")
    # A tight run is only named, since an estimate may be wrong; so is one on unknown cards.
    for change in ({"gpu_memory": 141}, {"gpu_memory": None}):
        fine = parse_experiment(large | change, "x")
        refuse_impossible(fine, fine.runs(), "large.yaml")
    assert tight(experiment, experiment.runs(), Card(141, "x"))


def test_the_table_names_the_largest_part_and_what_helps(large, paper, monkeypatch):
    seen(monkeypatch)
    experiment = parse_experiment(large, "x")
    text = "\n".join(memory_lines(experiment, experiment.runs(), Card(80, "gpu_memory")))
    assert "weights and AdamW, 98.6; DOES NOT FIT: what helps: gpus" in text
    assert "only `billions` is known (troll fetch gets config.json): big" in text
    code = "\n".join(memory_lines(paper, paper.runs(["paper_code"]), Card(40, "x")))
    assert "Qwen3-4B" in code and "Qwen2.5" not in code
    assert "what helps: vllm.tensor_parallel" in code
    assert "80 GiB, supposed" in memory_lines(paper, paper.runs(), None)[0]


def test_models_from_scratch_have_no_table(repository):
    testbed = load_experiment(repository / "workflow/config/testbed.yaml")
    assert memory_lines(testbed, testbed.runs(), Card(40, "x")) == []


@pytest.mark.parametrize(
    ("card", "state", "words"),
    [
        (80, "missing", "1 of 1 kinds of runs do not fit"),
        (192, "ok", "192 GiB (gpu_memory); runs need up to"),
        (None, "note", "of the GPUs is not known here"),
    ],
)
def test_doctor_says_whether_runs_fit(large, monkeypatch, card, state, words):
    seen(monkeypatch)
    finding = doctor._gpu_memory(parse_experiment(large | {"gpu_memory": card}, "x"))
    assert finding is not None
    assert finding.state == state and words in finding.found


def test_check_refuses_and_shows_one_group(large, tmp_path, troll, repository):
    path = tmp_path / "large.yaml"
    path.write_text(yaml.safe_dump(large))
    result = troll("check", path, "--cost", cwd=tmp_path)
    assert "DOES NOT FIT" in result.stdout
    error_of(result, path, "big/gsm8k/clip/grpo/stale")
    assert troll("check", path, cwd=tmp_path).stderr == result.stderr
    group = troll("check", repository / FILE, "--cost", "--only", "paper_code", cwd=tmp_path)
    assert "paper_code" in group.stdout and "paper_sizes" not in group.stdout
    assert "Qwen2.5" not in group.stdout and "Qwen3-14B" in group.stdout


def finish(root, run, hours, gpus=4):
    path = root / "runs" / run.run_id / "manifest.json"
    path.parent.mkdir(parents=True)
    manifest = {
        "wall_s": 3600 * hours / gpus,
        "config": {"training": {"gpus": gpus}},
        "hardware": {"gpus": ["card"]},
    }
    path.write_text(json.dumps(manifest))


def test_runs_that_have_ended_correct_the_others(paper, tmp_path, monkeypatch):
    seen(monkeypatch)
    clip, troll_run = (paper.run(f"Qwen3-8B/dapo/{rule}/grpo/stale1x/seed0") for rule in ("clip", "troll"))
    other = paper.run("Qwen3-4B/dapo/clip/grpo/stale1x/seed0")
    before = {run: costs.hours_of(paper, run) for run in (clip, troll_run, other)}
    root = tmp_path / "paper"
    finish(root, clip, hours=before[clip].likely / 2)
    estimate = corrected(paper, root)
    assert ended_hours(clip, root) == pytest.approx(before[clip].likely / 2)
    after = estimate(paper, clip)
    assert after.low == after.likely == after.high == pytest.approx(before[clip].likely / 2)
    # Another run of the same model: half as long, in a narrower range; of another model: half as long.
    after = estimate(paper, troll_run)
    assert after.likely == pytest.approx(before[troll_run].likely / 2)
    assert after.high / after.low < before[troll_run].high / before[troll_run].low
    after = estimate(paper, other)
    assert after.likely == pytest.approx(before[other].likely / 2)
    assert after.high / after.low == pytest.approx(before[other].high / before[other].low)
    text = "\n".join(cost_lines(paper, tmp_path, ["paper_sizes"]))
    assert text != "\n".join(cost_lines(paper, tmp_path / "empty", ["paper_sizes"]))


def test_a_run_that_ended_on_a_cpu_or_whose_manifest_is_damaged_corrects_nothing(paper, tmp_path):
    run = paper.runs()[0]
    path = tmp_path / "runs" / run.run_id / "manifest.json"
    path.parent.mkdir(parents=True)
    for text in (
        "{",
        '{"wall_s": 5}',
        '{"wall_s": 5, "config": {"training": {"gpus": 1}}, "hardware": {"gpus": []}}',
    ):
        path.write_text(text)
        assert ended_hours(run, tmp_path) is None
    assert corrected(paper, tmp_path)(paper, run) == costs.hours_of(paper, run)
