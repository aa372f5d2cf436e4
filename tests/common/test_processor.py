"""One branch of arithmetic on all processors, and memory that a process keeps."""

import os
import subprocess
import sys
import tempfile

import pytest
from refusals import refused

from troll.common import gpus, processor
from troll.common.gpus import require_gpus, visible_gpus

NAMES = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
OURS = dict(zip(NAMES[1:], ("avx2", "AVX2", "AVX2"), strict=True))


@pytest.fixture
def environment(monkeypatch):
    for name in (*NAMES, processor.CODE):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("has", "asked"), [(True, ["1", "avx2", "AVX2", "AVX2"]), (False, ["1", None, None, None])]
)
def test_avx2_is_asked_for_where_the_processor_has_it(environment, has, asked):
    environment.setattr(processor, "_has_avx2", lambda: has)
    processor.prepare_processor()
    assert [os.environ.get(name) for name in NAMES] == asked


def test_another_kind_of_machine_has_no_avx2(environment):
    environment.setattr(processor.platform, "machine", lambda: "aarch64")
    assert not processor._has_avx2()


def test_what_the_environment_says_stays(environment):
    environment.setenv("ATEN_CPU_CAPABILITY", "default")
    environment.setenv("OMP_NUM_THREADS", "4")
    processor.prepare_processor()
    assert (os.environ["ATEN_CPU_CAPABILITY"], os.environ["OMP_NUM_THREADS"]) == ("default", "4")


@pytest.fixture
def restarts(environment):
    """The commands, with the libraries' variables, as which this process would go on."""
    environment.setattr(processor, "_has_avx2", lambda: True)
    begun = []

    def execv(program, arguments):
        begun.append((program, arguments, {name: os.environ.get(name) for name in NAMES[1:]}))

    environment.setattr(processor.os, "execv", execv)
    environment.setattr(sys, "argv", ["troll", "job", "train", "run.yaml"])
    return begun


def test_a_large_model_gets_all_instructions_in_a_process_of_its_own(restarts):
    processor.prepare_processor()
    processor.use_all_instructions(processor.LARGE - 1)
    assert not restarts
    processor.use_all_instructions(processor.LARGE)
    command = [sys.executable, "-m", "troll.cli", "job", "train", "run.yaml"]
    assert restarts == [(sys.executable, command, dict.fromkeys(OURS))]
    processor.prepare_processor()  # in the new process
    assert not OURS.keys() & os.environ.keys()
    processor.use_all_instructions(processor.LARGE)
    assert len(restarts) == 1


@pytest.mark.parametrize("theirs", [OURS, OURS | {"MKL_CBWR": "COMPATIBLE"}, {"ATEN_CPU_CAPABILITY": "avx2"}])
def test_a_users_choice_of_code_holds_for_large_models_too(restarts, environment, theirs):
    for name, value in theirs.items():
        environment.setenv(name, value)
    processor.prepare_processor()
    processor.use_all_instructions(processor.LARGE)
    assert not restarts and theirs.items() <= os.environ.items()


@pytest.mark.skipif(not processor._has_avx2(), reason="this processor has no AVX2")
def test_torch_computes_with_what_is_asked_for():
    script = (
        "from troll.common.processor import prepare_processor; prepare_processor(); "
        "import torch; print(torch.backends.cpu.get_cpu_capability())"
    )
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=clean, check=True
    )
    assert done.stdout.strip() == "AVX2"


@pytest.mark.skipif(sys.platform != "linux", reason="malloc is asked on Linux only")
def test_freed_memory_is_used_again():
    script = """
import resource, sys
from troll.common.processor import prepare_processor
if sys.argv[1] == "kept":
    prepare_processor()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    b"x" * 100_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    kept, returned = (
        int(
            subprocess.run(
                [sys.executable, "-c", script, how], capture_output=True, text=True, check=True
            ).stdout
        )
        for how in ("kept", "returned")
    )
    assert kept < 0.3 * returned


CPU_BUILD = ("torch 2.13.0+cpu", "TORCH=cuda make env", "set 0")


@pytest.mark.parametrize(
    ("shown", "allowed", "cuda", "facts"),
    [
        (0, "", "13.0", ("set 0",)),
        (2, "", "13.0", ("set 2",)),
        (0, "", None, CPU_BUILD),
        (1, "1", "13.0", ("set 1",)),  # a rehearsal may take the CPU in place of all GPUs, but not of some
        (0, "1", "13.0", None),
    ],
)
def test_fewer_gpus_than_asked_for_are_refused(monkeypatch, shown, allowed, cuda, facts):
    monkeypatch.setenv("TROLL_ALLOW_CPU", allowed)
    monkeypatch.setattr("torch.cuda.device_count", lambda: shown)
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr("torch.__version__", "2.13.0+cpu")
    assert require_gpus(shown, "training.gpus") == shown and require_gpus(0, "--gpus") == 0
    if facts is None:
        assert require_gpus(4, "training.gpus") == 0
        return
    with refused("training.gpus", 4, *facts):
        require_gpus(4, "training.gpus")


@pytest.mark.parametrize(
    ("given", "found"), [("0,2", ["0", "2"]), ("", []), ("1,-1,2", ["1"]), ("GPU-a, 3", ["GPU-a", "3"])]
)
def test_the_visible_gpus_are_those_of_cuda(monkeypatch, given, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus() == found


TAKE = """
import os, sys
from troll.common.gpus import require_gpus, visible_gpus
import torch
torch.cuda.device_count = lambda: 1 + os.environ["CUDA_VISIBLE_DEVICES"].count(",")
require_gpus(int(sys.argv[1]), "--gpus")
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.stdin.read()
"""


def test_jobs_take_different_gpus_until_none_is_left(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0,1,2", "TMPDIR": str(tmp_path)}
    environment.pop("SLURM_JOB_ID", None)

    def start(count, **variables):
        command = [sys.executable, "-c", TAKE, str(count)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(command, env=environment | variables, text=True, **pipes)
        return process, process.stdout.readline().strip()

    (first, own), (second, others) = start(1), start(2)
    assert sorted([*own.split(","), *others.split(",")]) == ["0", "1", "2"]
    third, shared = start(1)
    assert shared in ("0", "1", "2")
    assert "0 of 3 GPUs" in third.communicate()[1]
    of_slurm, all_of_them = start(1, SLURM_JOB_ID="7")
    assert all_of_them == "0,1,2", "SLURM has chosen"
    first.communicate()
    fourth, freed = start(1)
    assert freed == own
    for process in (second, of_slurm, fourth):
        process.communicate()


@pytest.mark.parametrize(("readable", "taken"), [(True, "0"), (False, "1")])
def test_locks_of_other_users_in_tmp_hinder_nobody(tmp_path, monkeypatch, readable, taken):
    """Linux refuses O_CREAT on another user's file in /tmp (fs.protected_regular)."""
    theirs, opened = tmp_path / "troll-gpu-0.lock", os.open
    theirs.touch()

    def open_as_another_user(path, flags, *mode):
        if path == theirs and (flags & os.O_CREAT or not readable):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_as_another_user)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(gpus, "_held", [])
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert require_gpus(1, "--gpus") == 1 and os.environ["CUDA_VISIBLE_DEVICES"] == taken


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, [1.5]),  # in a container with a group namespace
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, [2]),
        ("0::/host/path", {"cpu.max": "400000 100000"}, [4]),  # the host's path, not visible here
        ("4:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}, [0.5]),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
        ("4:cpuset:/x\n0::/", {}, []),
        ("0::/", {"cpu.max": "nonsense"}, []),
    ],
)
def test_limits_of_control_groups(groups, files, limits, tmp_path):
    for name, text in (
        {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{k}": v for k, v in files.items()}
    ).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert list(processor._cgroup_limits(tmp_path)) == limits


@pytest.mark.parametrize(("limits", "cores"), [([], 8), ([2.5, 4], 3), ([0.2], 1), ([64], 8)])
def test_a_limit_lowers_the_number_of_cores(limits, cores, monkeypatch):
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(processor, "_cgroup_limits", lambda: iter(limits))
    assert processor.available_cores() == cores
