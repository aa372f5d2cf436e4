"""`troll doctor`: what is missing, why it matters to this experiment, and the fix; never a false alarm."""

import dataclasses
import os
import shutil
from urllib.error import URLError

import pytest
import yaml

from troll.experiment.files import parse_experiment, read_experiment
from troll.operations import doctor
from troll.operations.doctor import Finding, Needs, examine, needs_of, parameters, show
from troll.tasks.sandbox.pool import sandbox_available


@pytest.fixture
def experiment(reduced):
    return parse_experiment(reduced, "x")


@pytest.fixture
def asked_anew():
    """Whether the sandbox works is asked once in a process: here again, and after this test."""
    sandbox_available.cache_clear()
    yield
    sandbox_available.cache_clear()


def named(findings, name):
    return next(finding for finding in findings if finding.name == name)


def test_needs_are_those_of_the_experiment(experiment):
    needs = needs_of(experiment)
    assert (needs.code, needs.math, needs.public) == (("functions",), ("chains",), ())
    assert needs.tracking == "tensorboard"
    assert 0.0 < needs.disk_gib < 0.1


def test_the_estimate_of_parameters_is_that_of_the_model(tiny_base):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    shape = model.config.num_hidden_layers, model.config.hidden_size, model.config.vocab_size
    assert parameters(*shape) == pytest.approx(model.num_parameters(), rel=0.35)


def test_everything_needed_is_here(experiment, tmp_path):
    found = list(examine(experiment, tmp_path / "results", ask_hub=False))
    assert not [finding for finding in found if finding.state == "missing"]
    assert show(found, "reduced")[-1] == "experiment reduced can run here"
    assert not (tmp_path / "results").exists()


@pytest.mark.usefixtures("asked_anew")
def test_without_a_sandbox_code_is_skipped_or_the_experiment_cannot_run(reduced, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    both = named(examine(parse_experiment(reduced, "x"), tmp_path, ask_hub=False), "bubblewrap")
    assert (both.state, both.found) == ("note", "not installed; functions will be skipped")
    assert "apt-get install bubblewrap" in both.fix
    del reduced["tasks"]["chains"]
    only = list(examine(parse_experiment(reduced, "x"), tmp_path, ask_hub=False))
    assert named(only, "bubblewrap").state == "missing"
    assert show(only, "reduced")[-1] == "experiment reduced cannot run here yet: bubblewrap"


@pytest.mark.usefixtures("asked_anew")
def test_a_sandbox_that_the_kernel_refuses_is_not_to_be_installed_again(experiment, tmp_path, monkeypatch):
    refusal = "bwrap: setting up uid map: Permission denied"
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho '{refusal}' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = named(examine(experiment, tmp_path, ask_hub=False), "bubblewrap")
    assert found.state == "note" and refusal in found.found
    assert "install" not in found.fix and "docs/troubleshooting.md" in found.fix


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize(
    ("refusal", "fix"),
    [
        ("bwrap: Unknown option --size", "bubblewrap 0.7 or newer is needed"),
        ("bwrap: Can't read /proc/sys/kernel/overflowuid: No such file", "mount /proc"),
    ],
)
def test_a_sandbox_that_only_one_of_the_judges_gets_is_not_enough(
    experiment, tmp_path, monkeypatch, refusal, fix
):
    """A bubblewrap that refuses what evalplus needs, and starts everything else."""
    real = shutil.which("bwrap")
    if real is None:
        pytest.skip("no bubblewrap")
    text = f"""#!/bin/sh\ncase "$*" in *--size*) echo "{refusal}" >&2; exit 1;; esac\nexec {real} "$@"\n"""
    (tmp_path / "bwrap").write_text(text)
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = named(examine(experiment, tmp_path, ask_hub=False), "bubblewrap")
    assert found.state == "note" and fix in found.fix
    assert found.found.count(refusal) == 1 and fix not in found.found
    assert sandbox_available() == (False, f"{found.found.partition('; ')[0]}; {found.fix}")


def test_a_wrong_package_is_named_with_the_version_that_is_needed(monkeypatch):
    def version(name):
        if name == "snakemake":
            raise doctor.PackageNotFoundError
        return {"trl": "0.9"}.get(name, "999")

    monkeypatch.setattr(doctor, "version", version)
    unmet = doctor.unmet_requirements()
    assert "snakemake (not installed)" in unmet
    assert any(text.startswith("trl 0.9 (needs ") for text in unmet)
    assert not any("pytest" in text for text in unmet), "tests are nobody's need"


def test_disk_and_memory_are_measured_against_the_need(tmp_path):
    plenty = dataclasses.replace(Needs(), disk_gib=1e-3, memory_gib=1e-3)
    assert doctor._disk(plenty, tmp_path / "a/b").state == "ok"
    assert doctor._memory(plenty).state == "ok"
    huge = dataclasses.replace(Needs(), disk_gib=1e6, memory_gib=1e6)
    assert doctor._disk(huge, tmp_path).state == "missing"
    assert "1000000.0 GiB needed" in doctor._disk(huge, tmp_path).found
    assert doctor._memory(huge).state == "missing"


def test_results_that_cannot_be_written_are_found_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    finding = doctor._disk(Needs(), tmp_path)
    assert (finding.state, finding.fix) == ("missing", f"chmod -R u+w {tmp_path}")


def test_public_data_come_from_a_mirror_or_the_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "hub_answers", lambda: "no route")
    needs = Needs(public=("gsm8k",))
    monkeypatch.delenv("TROLL_DATA_MIRROR", raising=False)
    assert doctor._mirror(needs) is None
    alone = doctor._hub(needs)
    assert (alone.state, alone.found) == ("missing", "no route; needed for gsm8k")
    assert doctor._hub(Needs()).state == "note"

    monkeypatch.setenv("TROLL_DATA_MIRROR", str(tmp_path / "nowhere"))
    assert "no such directory" in doctor._mirror(needs).found
    monkeypatch.setenv("TROLL_DATA_MIRROR", str(tmp_path))
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_text("{}")
    lacking = doctor._mirror(needs)
    assert lacking.state == "missing"
    assert "gsm8k/test.jsonl" in lacking.found
    assert "gsm8k/train.jsonl.gz" in lacking.found
    absent = Needs(public=("gsm8k", "eurus-code"))
    assert doctor._hub(absent).found == "no route; needed for eurus-code", "no mirror has this set"
    assert doctor._mirror(Needs(public=("eurus-code",))).found.endswith("; needed from the hub: eurus-code")


def test_a_hub_that_cannot_be_reached_says_why(monkeypatch):
    def refuse(*_, **__):
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert doctor.hub_answers() == "https://hub.example: Name or service not known"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert doctor.hub_answers() == "HF_HUB_OFFLINE is set"


HUB, FOUR = Needs(hub_models=("a/b",)), Needs(hub_models=("a/b",), gpus=4)
CPU_BUILD = "torch 2.13.0+cpu is a build for CPUs"
ELSEWHERE = "none here; SLURM jobs use this environment"
H100 = "H100, 80 GiB"


@pytest.mark.parametrize(
    ("needs", "gpus", "program", "cpu_build", "state", "found"),
    [
        (Needs(), [], "", "", "note", "none; not needed for from-scratch models"),
        (HUB, [], "", "", "missing", "none; needed for a/b"),
        (HUB, [], "nvidia-smi", "", "missing", "of a program, but not visible to torch"),
        (FOUR, [], "nvidia-smi", "2.13.0+cpu", "missing", f"of a program, but {CPU_BUILD}"),
        (
            FOUR,
            [],
            "sbatch",
            "2.13.0+cpu",
            "missing",
            f"{ELSEWHERE}, and its {CPU_BUILD}",
        ),
        (Needs(hub_models=("a/b",), gpus=1), [H100], "", "", "ok", H100),
        (FOUR, [H100], "", "", "missing", "1; one run needs 4"),
    ],
)
def test_hub_models_want_gpus_here_or_a_scheduler(monkeypatch, needs, gpus, program, cpu_build, state, found):
    monkeypatch.setattr(doctor, "_gpus", lambda: gpus)
    monkeypatch.setattr(doctor, "tool", lambda command: "of a program" if command[0] == program else None)
    monkeypatch.setattr(doctor, "torch_for_cpus", lambda: cpu_build)
    finding = doctor._gpu(needs)
    assert (finding.state, finding.found) == (state, found)
    assert (finding.fix == "TORCH=cuda make env") == bool(cpu_build)


@pytest.mark.parametrize(
    ("listed", "found", "fix"),
    [
        (
            "cpu|(null)\nbig|gpu:h100:8\n",
            "none here; SLURM has some in big (gpu:h100:8)",
            "--partition=big --gpus=4",
        ),
        ("cpu|(null)\n", "none here, and SLURM names no partition with GPUs", "sinfo"),
    ],
)
def test_with_slurm_the_gpus_are_those_of_its_partitions(monkeypatch, tmp_path, listed, found, fix):
    monkeypatch.setattr(doctor, "_gpus", lambda: [])
    monkeypatch.setattr(doctor, "torch_for_cpus", lambda: "")
    for name, text in (("sbatch", "slurm 24"), ("sinfo", listed)):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor._gpu(FOUR)
    assert (finding.state, finding.found) == ("note", found)
    assert fix in finding.fix


def test_models_of_a_mirror_need_no_hub_and_their_size_is_counted(reduced, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "hub_answers", lambda: "no route")
    monkeypatch.setenv("TROLL_MODEL_MIRROR", str(tmp_path))
    needs = Needs(hub_models=("owner/name",))
    assert doctor._hub(needs).state == "missing"
    (tmp_path / "owner/name").mkdir(parents=True)
    (tmp_path / "owner/name/config.json").write_text("{}")
    assert doctor._hub(needs).state == "note"
    lacking = doctor._hub(Needs(hub_models=("owner/name",), chat_templates=("owner/chat",)))
    assert lacking.found == "no route; needed for owner/chat"
    reduced["models"]["tiny"] = {"hub": {"id": "owner/name", "billions": 2.0}}
    reduced["tasks"] = {"gsm8k": {"train": 64, "validation": 8, "test": 8}}
    reduced["estimators"] = {"grpo": {"rule": "grpo"}}
    found = needs_of(parse_experiment(reduced, "x"))
    assert found.hub_models == ("owner/name",)
    assert found.public == ("gsm8k",)
    # Two runs keep 4 bytes for each parameter, the download has 2, a run's checkpoints 12 each.
    assert found.disk_gib > 2e9 * (2 * 4 + 2 + 12) / 2**30


def test_a_tracker_that_is_not_installed_stops_the_experiment(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    finding = doctor._tracker(Needs(tracking="wandb"))
    assert finding == Finding(
        "tracking",
        "missing",
        "wandb is not installed",
        ".venv/bin/pip install wandb, or `tracking: none` in the experiment file",
    )


def test_the_exit_status_says_whether_it_can_run(reduced, tmp_path, troll):
    def run(name, extra):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(reduced | extra))
        return troll("doctor", path, "--offline", cwd=tmp_path)

    good = run("good.yaml", {})
    assert good.returncode == 0, good.stdout + good.stderr
    assert read_experiment(tmp_path / "good.yaml").tracking == "tensorboard"
    bad = run("bad.yaml", {"tracking": "trackio"})
    assert bad.returncode == 1
    assert "fix: .venv/bin/pip install trackio" in bad.stdout
