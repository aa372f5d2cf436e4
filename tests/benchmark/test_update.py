import json
import math
import os
import runpy
import subprocess
import sys

import pandas as pd
import pytest
import torch
from refusals import refused

import step as cost_step
from cost_tables import annotate_steps, summarise, summarise_steps, verdicts
from harness import serve
from step_worker import METHODS, Learner, Work, moved
from troll.algorithms.distributions import sparsify
from troll.algorithms.divergences import kl_divergence
from troll.common.errors import UserError
from update import run_cost
from update_worker import VARIANTS, Batch, projected_share


def make_batch(tokens=24, width=12, vocab=40, keep=40, dtype=torch.float64):
    random = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=dtype)

    weight, old_hidden = normal(vocab, width), normal(tokens, width)
    log_probs = (old_hidden @ weight.T).log_softmax(-1)
    labels = torch.multinomial(log_probs.exp(), 1, generator=random)
    old = sparsify(log_probs, keep, 0.0, labels.squeeze(1), normalised=True)
    hidden = old_hidden + 0.3 * normal(tokens, width) * (torch.arange(tokens) % 2).unsqueeze(1)
    advantages = normal(tokens)
    return Batch(hidden, weight, labels.squeeze(1), advantages, log_probs.gather(1, labels).squeeze(1), old)


def loss_and_gradients(variant, batch):
    batch = batch.first(len(batch.labels))
    loss = VARIANTS[variant](batch)
    return loss.detach(), torch.autograd.grad(loss, (batch.hidden, batch.weight))


@pytest.mark.parametrize("family", ["clip", "TROLL"])
def test_variants_compute_the_same_loss(family):
    # In float32, for TRL's head; with K = V the naive TROLL has nothing to approximate.
    batch = make_batch(dtype=torch.float32)
    assert 0.2 < projected_share(batch) < 0.8, "both cases of the projection occur"
    losses = {name: loss_and_gradients(name, batch) for name in VARIANTS if name.startswith(family)}
    (base, gradients), *others = losses.values()
    assert others
    for loss, other_gradients in others:
        # The bisection of the naive variant stops within 1e-3 of the bound.
        torch.testing.assert_close(loss, base, rtol=1e-3, atol=1e-4)
        if family == "clip":  # the naive TROLL freezes the multiplier: another gradient, on purpose
            for a, b in zip(gradients, other_gradients, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def measurements(ours_seconds=1.0, ours_bytes=100.0, solver_seconds=0.001, disturbed=1.05):
    rows = []
    for repeat in range(3):
        for name, seconds, size in (
            ("clip, full logits", 2.0, 400.0),
            ("clip, our head", 1.0, 100.0),
            ("TROLL, our head", ours_seconds, ours_bytes),
        ):
            # The second repeat is disturbed: ratios must not see it.
            row = {"width": 8, "variant": name, "repeat": repeat, "peak_bytes": size * 2**20}
            row |= {"seconds": seconds * (disturbed if repeat == 1 else 1), "processor_seconds": seconds}
            rows.append(row | ({"solver_seconds": solver_seconds} if name.startswith("TROLL") else {}))
    return pd.DataFrame(rows)


def test_summary_takes_ratios_to_clip_on_full_logits():
    table = summarise(measurements()).set_index("variant")
    assert table["time_ratio"].tolist() == [1.0, 0.5, 0.5]
    assert table["memory_ratio"].tolist() == [1.0, 0.25, 0.25]
    assert table.loc["TROLL, our head", "solver_percent"] == pytest.approx(0.1)
    assert table.loc["clip, our head", ["seconds", "seconds_low", "seconds_high"]].tolist() == [
        1.0,
        1.0,
        1.05,
    ]


@pytest.mark.parametrize(
    ("worse", "missed"),
    [
        ({}, "Met: time, memory, solver."),
        (
            {"ours_seconds": 1.03, "disturbed": 6.0},
            "Met: memory, solver. Time is not judged: repeats differ by 500 %",
        ),
        ({"ours_seconds": 1.03}, "Missed: time."),
        ({"ours_bytes": 102.0}, "Missed: memory."),
        ({"solver_seconds": 0.02}, "Missed: solver."),
    ],
    ids=str,
)
def test_verdict_names_the_missed_goals(worse, missed):
    (said,) = verdicts(summarise(measurements(**worse)))
    assert said.startswith("D = 8:") and missed in said


def test_bad_requests(tmp_path):
    for options, facts in (
        ({"variants": ["clip"]}, ("'clip'", "clip, full logits")),
        ({"device": "tpu"}, ("device", "'tpu'")),
        ({"repeats": 0}, ("repeats", 1)),
    ):
        with refused(*facts):
            run_cost(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_an_interruption_costs_no_width_that_was_done_and_progress_is_told(tmp_path, monkeypatch, capsys):
    def measured(worker, name, work, threads):
        if work.width == 16:
            raise UserError("cost: the old policy failed: out of memory")
        return {"projected_share": 0.1, "seconds": 0.25, "processor_seconds": 0.25, "peak_bytes": 2.0**20}

    for module in ("harness", "update"):
        monkeypatch.setattr(f"{module}.measure", measured)
    with refused("old policy", "out of memory"):
        run_cost(tmp_path, tokens=8, widths=(8, 16), vocab=32, keep=4, repeats=2, variants=["clip, our head"])
    assert (tmp_path / "cost.md").read_text().count("\n| 8 |") == 2
    assert {x["width"] for x in json.loads((tmp_path / "cost.json").read_text())["measurements"]} == {8}
    assert "[cost] 4/4: clip, full logits, 0.2500 s; 0:00 left" in capsys.readouterr().err


@pytest.mark.slow
def test_measures_each_variant_in_a_process_of_its_own(tmp_path):
    logits = 512 * 20_000 * 4 / 2**20
    table = run_cost(
        tmp_path,
        tokens=512,
        widths=(64,),
        vocab=20_000,
        keep=8,
        repeats=1,
        threads=1,
        variants=["clip, our head", "TROLL, our head", "old policy, top-K"],
    ).set_index("variant")
    assert table["peak_mib"]["clip, full logits"] > 1.9 * logits
    for name in ("clip, our head", "TROLL, our head", "top-K"):
        assert table["peak_mib"][name] < logits, name
    assert (tmp_path / "cost.md").read_text().count("\n| 64 |") == 4
    raw = json.loads((tmp_path / "cost.json").read_text())
    assert raw["measurements"][0]["variant"] == "clip, full logits"
    assert 0.1 <= raw["projected_share"]["64"] < 0.5


@pytest.mark.parametrize("method", METHODS)
def test_a_step_moves_what_the_method_trains_and_nothing_else_is_there(method, monkeypatch):
    supports = []
    original = Learner.policy

    def policy(self, keep=None, support=None):
        supports.append((keep is not None, support is not None))
        return original(self, keep, support)

    monkeypatch.setattr(Learner, "policy", policy)
    learner = Learner(Work(method, "tiny", 2, 8, 16, 64, 1, "cpu"))
    parts = [learner.model, *([learner.critic.model] if learner.critic else [])]
    before = [torch.nn.utils.parameters_to_vector(part.parameters()).detach().clone() for part in parts]
    learner.score()
    learner.step()
    after = [torch.nn.utils.parameters_to_vector(part.parameters()) for part in parts]
    assert all(bool((one != two).any()) for one, two in zip(before, after, strict=True))
    assert (learner.critic is not None) == ("critic" in method)
    # Clip never pays for a distribution; TROLL asks for one in both of its passes.
    assert supports == ([(True, False), (False, True)] if method == "troll" else [(False, False)] * 2)


def test_a_step_projects_what_left_its_ball_and_nothing_else():
    learner = Learner(Work("troll", "tiny", 2, 8, 16, 64, 1, "cpu"))
    learner.score()
    learner.step()
    assert learner.projected_share() == 0.0
    learner.score()
    learner.leave_balls()
    learner.step()
    assert learner.projected.nonzero().tolist() == [[0, 0], [0, 10], [1, 4], [1, 14]]


@pytest.mark.parametrize("spread", [0.01, 2.0, 20.0])
def test_every_tenth_old_distribution_leaves_its_ball_however_sharp_it_was(spread):
    log_probs = (spread * torch.randn(200, 500, generator=torch.Generator().manual_seed(0))).log_softmax(-1)
    old = sparsify(log_probs, 32, 0.0, log_probs.argmax(-1), normalised=True)
    new = moved(old)
    far = torch.arange(200) % 10 == 0
    divergence = kl_divergence(old.atoms(), new.atoms())
    assert divergence[far].min() > 0.18 and divergence[far].isfinite().all()
    assert not divergence[~far].any()
    torch.testing.assert_close(new.atoms().logsumexp(-1), torch.zeros(200), atol=1e-5, rtol=0)


def test_a_measurement_that_projects_nothing_is_refused_before_a_table_is_written(tmp_path, monkeypatch):
    quiet = {"projected_share": [0.0, 0.2], "old_seconds": [1.0], "seconds": [1.0]}
    quiet |= {"processor_seconds": [1.0], "peak_bytes": 1.0}
    monkeypatch.setattr("harness.measure", lambda *_: dict(quiet))
    with refused("tiny", "troll", "0 %", "10 %"):
        cost_step.run_step_cost(tmp_path, shape="tiny", device="cpu")
    monkeypatch.setattr("update.measure", lambda *_: {"projected_share": 0.09})
    with refused("D = 8", "9 %", "10 %"):
        run_cost(tmp_path, tokens=8, widths=(8,), vocab=32, keep=4)
    assert not list(tmp_path.iterdir())


def test_a_table_of_steps_that_projected_nothing_judges_nothing():
    rows = [{"method": method, "projected_share": 0.1 * (method == "troll")} for method in METHODS]
    costs = {"old_seconds": 1.0, "seconds": 1.0, "processor_seconds": 1.0, "peak_bytes": 2.0**20}
    table = summarise_steps(pd.DataFrame([row | costs for row in rows]))
    assert "goal 1.02: met" in annotate_steps(table, "On a CPU.").attrs["notes"][1]
    older = annotate_steps(table.drop(columns="projected_percent"), "On a CPU.")
    assert "with no token projected" in older.attrs["notes"][1] and "met" not in older.attrs["notes"][1]


@pytest.mark.slow
@pytest.mark.nightly
def test_the_table_has_ratios_to_clip_and_a_critic_takes_memory(tmp_path):
    sizes = {"responses": 2, "prompt": 8, "response": 16, "steps": 2, "repeats": 1, "device": "cpu"}
    table = cost_step.run_step_cost(tmp_path, shape="20m", **sizes).set_index("method")
    assert table.loc["clip", "time_ratio"] == table.loc["clip", "memory_ratio"] == 1.0
    # Twice the weights, states and gradients, but for the output layer's and the activations.
    assert table.loc["clip, critic", "memory_ratio"] > 1.2
    expected = table.loc["troll", "seconds_low"] / table.loc["clip", "seconds_low"]
    assert table.loc["troll", "time_ratio"] == pytest.approx(expected)
    assert table["projected_percent"].round(3).tolist()[1] == 12.5  # 4 of 32
    assert "A critic beside the policy" in (tmp_path / "cost_step.md").read_text()


def test_unknown_shapes_and_devices_are_refused(tmp_path):
    with refused("'huge'", "qwen3-0.6b"):
        cost_step.run_step_cost(tmp_path, shape="huge")
    with refused("steps", 1, 0):
        cost_step.run_step_cost(tmp_path, shape="tiny", device="cpu", steps=0)
    if not torch.cuda.is_available():
        with refused("device", "'cuda'"):
            cost_step.run_step_cost(tmp_path, shape="tiny", device="cuda")


@pytest.fixture
def gpu():
    import gpu_cases
    import gpu_check
    import gpu_more_rows

    return {"check": gpu_check, "cases": gpu_cases, "more": gpu_more_rows}


def a_bench(gpu, tmp_path, budget=1e6):
    return gpu["check"].Bench(tmp_path, budget, dry=True, about={})


def test_a_row_that_projects_too_little_or_is_off_fails_and_the_others_are_written(gpu, tmp_path):
    case, value = gpu["cases"].Case, gpu["cases"].Value
    bench = a_bench(gpu, tmp_path)
    left = []
    cases = [
        case("breaks", "auto", lambda: 1 / 0),
        case("idle", "auto", lambda: left.append("idle"), share=lambda: 0.0999),
        case("none", "auto", None, share=lambda: math.nan),
        case("off", "torch", lambda: None, exact=lambda: {"dH": value(2e-3, 1e-3)}),
        case("lost", "torch", None, exact=lambda: {"dH": value(math.nan, 1e-3)}),
        case("good", "torch", lambda: None, share=lambda: 0.1, exact=lambda: {"dH": value(1e-3, 1e-3)}),
    ]
    bench.measure("Head", cases)
    rows = json.loads((tmp_path / "gpu_check.json").read_text())["rows"]
    assert {row["name"]: row.get("failed") for row in rows} == {
        "breaks": "ZeroDivisionError: division by zero",
        "idle": "9.99 % of the tokens projected, must be at least 10 %",
        "none": "0 % of the tokens projected, must be at least 10 %",
        "off": "dH: 2.00e-03, must be at most 1e-03",
        "lost": "dH: nan, must be at most 1e-03",
        "good": None,
    }
    assert "ms" not in rows[0] and all("ms" in rows[number] for number in (1, 3, 5))


def test_a_budget_that_runs_out_leaves_out_what_comes_last(gpu, tmp_path):
    case = gpu["cases"].Case
    bench = a_bench(gpu, tmp_path, budget=bench_age(gpu) + gpu["check"].RESERVE + 5.0)
    bench.measure("Head", [case("long", "auto", lambda: None, seconds=60.0)])
    bench.measure("Head", [case("short", "auto", lambda: None, seconds=0.1)])
    assert [row["name"] for row in bench.report["rows"]] == ["short"]
    assert bench.report["skipped"] == ["long (auto)"]


def bench_age(gpu):
    return gpu["check"].time.monotonic() - gpu["check"].BEGUN


def test_goals_are_ratios_of_rows_that_worked(gpu):
    sizes = gpu["cases"].Sizes()

    def row(name, backend="auto", **more):
        return {"name": name, "backend": backend, **more}

    rows = [
        row("label log-probs", ms=4.0),
        row("top-K, K = 64", ms=5.0, waits=1),
        row("top-K, K = 256", ms=9.0, failed="off"),
        row("TROLL: head and loss, 32768 tokens", peak_mib=50.0),
        row("TROLL: head and loss, 32768 tokens", "torch", peak_mib=100.0),
    ]
    found = {goal["goal"]: (goal["value"], goal["limit"]) for goal in gpu["more"].goals(sizes, rows)}
    assert found == {
        "time of the top-K, K = 64, over label log-probs": (1.25, 1.3),
        "peak memory of TROLL over plain torch's, 32768 tokens": (0.5, 1.0),
        "waits of the host: top-K, K = 64": (1, 0),
    }


def test_a_dry_run_of_the_gpu_check_interprets_its_kernels(repository, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--dry", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(repository / "workflow/benchmarks/gpu_check.py"), run_name="__main__")
    assert os.environ["TRITON_INTERPRET"] == "1"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_dry_run_of_the_gpu_check_measures_every_row_and_finds_it_exact(gpu, repository, tmp_path):
    interpreted = [sys.executable, repository / "tests/algorithms/fast_interpreter.py"]
    command = [*interpreted, "workflow/benchmarks/gpu_check.py", "--dry", "--budget", "3000"]
    done = subprocess.run(
        [*command, "--out", tmp_path],
        cwd=repository,
        env=os.environ | {"TRITON_INTERPRET": "1"},  # as --dry does, before Triton is imported
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert not report["skipped"]
    sizes, rows = gpu["cases"].DRY, {(row["name"], row["backend"]): row for row in report["rows"]}
    assert len(rows) == len(report["rows"]) and {row["backend"] for row in report["rows"]} >= {
        "torch",
        "triton",
    }
    assert {row["section"] for row in report["rows"]} == {*gpu["more"].SECTIONS} - {"Matrix products"}
    for keep in sizes.keeps:
        for name in ("TROLL: head and loss", "step, TROLL", "rule, forward and backward"):
            for backend in ("torch", "triton"):
                assert rows[f"{name}, K = {keep}", backend]["projected_share"] == pytest.approx(0.1)
    for row in report["rows"]:
        assert not any(limit is not None and value > limit for value, limit in row.get("errors", {}).values())
    checked = [name for name, backend in rows if backend == "triton" and rows[name, backend].get("errors")]
    assert len(checked) >= 12
    assert len(report["goals"]) >= 7


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_a_worker_started_by_hand_names_the_program_that_starts_it(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["workflow/benchmarks/step_worker.py", *words])
    with pytest.raises(SystemExit, match=r"started by `python workflow/benchmarks/measure\.py`"):
        serve(Work, lambda work: {})
