"""What an experiment needs of a machine, what this one has of it, and how to mend what is missing."""

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from troll.common.errors import UserError
from troll.common.files import nearest_existing, unwritable
from troll.common.processor import available_cores
from troll.experiment.experiment import Experiment
from troll.experiment.model_settings import Wheel
from troll.experiment.resources import training_request
from troll.operations.hub_context import config_of, wheel_state
from troll.operations.rehearsal.report import last_rehearsal
from troll.operations.versions import installed, tool

State = Literal["ok", "note", "missing"]
VLLM_ENVIRONMENT = ".venv-vllm"
"""Where `make vllm` installs it."""

GIB = 2**30

# What the workflow's rules ask a scheduler for: mem_mb of `train`, and of `cost`.
_MEMORY_GIB = {"runs": 2000 / 1024, "cost": 6000 / 1024}
# Bytes for each parameter while a run trains: its two newest checkpoints (weights and AdamW's two moments).
_CHECKPOINT_BYTES = 2 * 3 * 4
_WEIGHT_BYTES = 4
# Metrics, samples and grades of a run of the testbed, seen to be under a megabyte.
_LOG_BYTES = 2**20
# Pretrained models up to this size train on a processor in minutes.
_SMALL_BILLIONS = 0.5


@dataclass(frozen=True)
class Needs:
    """What an experiment asks of a machine."""

    code: tuple[str, ...] = ()  # tasks whose programs run in the sandbox
    math: tuple[str, ...] = ()  # the other tasks
    public: tuple[str, ...] = ()  # tasks whose problems come from a mirror or the hub
    hub_models: tuple[str, ...] = ()  # models of the hub
    wheels: tuple[Wheel, ...] = ()
    on_processors: bool = False  # whether all pretrained models are small, and no run asks for a GPU
    chat_templates: tuple[str, ...] = ()  # models of which only the chat template is taken
    memory_gib: float = 0.0  # of one job at a time, on a CPU
    disk_gib: float = 0.0  # for its results, rough
    gpus: int = 0  # of one run
    tracking: str = "none"  # the tracker's package
    vllm: bool = False  # whether training or evaluation samples with vLLM


def parameters(layers: int, width: int, vocabulary: int) -> int:
    """Parameters of a from-scratch model, roughly: 12 width^2 in a layer, and tied embeddings."""
    return 12 * layers * width**2 + vocabulary * width


def needs_of(experiment: Experiment) -> Needs:
    """What an experiment asks of a machine."""
    from troll.experiment.budget import disk_gb
    from troll.operations.fetch import needed_data
    from troll.tasks.registry import get_task

    runs = experiment.runs()
    tasks = tuple(dict.fromkeys(run.task for run in runs))
    code = tuple(task for task in tasks if get_task(task).kind == "code")
    models = [experiment.models[name] for name in dict.fromkeys(run.model for run in runs)]
    scratch = [m for m in models if m.pretrained is None]
    hubs = [m.hub for m in models if m.hub is not None]
    sources = [m.pretrained for m in models if m.pretrained is not None]
    trainings = [experiment.training_of(run) for run in runs]
    gpus = max(training.gpus for training in trainings)
    small = not gpus and all(source.billions and source.billions <= _SMALL_BILLIONS for source in sources)
    jobs = [training_request(source, 0).memory_mb / 1024 for source in sources if small]
    largest = max((parameters(m.layers, m.width, m.vocabulary) for m in scratch), default=0)
    disk = len(runs) * (_LOG_BYTES + _WEIGHT_BYTES * largest) + _CHECKPOINT_BYTES * largest
    memory = [_MEMORY_GIB["runs"], *jobs] + ([_MEMORY_GIB["cost"]] if experiment.cost else [])
    return Needs(
        code=code,
        math=tuple(task for task in tasks if task not in code),
        public=tuple(needed_data(experiment, runs)),
        hub_models=tuple(hub.id for hub in hubs),
        chat_templates=tuple(hub.chat_template_of for hub in hubs if hub.chat_template_of),
        wheels=tuple(m.wheel for m in models if m.wheel is not None),
        on_processors=bool(sources) and small,
        memory_gib=max(memory) if scratch or jobs else 0.0,
        disk_gib=(disk + 1e9 * disk_gb(experiment)) / GIB,
        gpus=gpus,
        tracking=experiment.tracking,
        vllm=experiment.evaluation.engine == "vllm" or any(training.vllm for training in trainings),
    )


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    # ``ok``; ``note``: not needed, or the workflow does without it and says so; ``missing``: the experiment
    # cannot run
    state: State
    found: str  # what is there, in a few words
    fix: str = ""  # what to do about it, as a command where there is one; empty if nothing is to be done


def unmet_requirements() -> list[str]:
    """Requirements of this package, of its extras too, that are not installed in a right version."""
    from packaging.requirements import Requirement

    unmet, extras = [], ("", "train", "evaluate", "analyse", "workflow")
    for requirement in map(Requirement, requires("troll") or ()):
        marker = requirement.marker
        wanted = marker is None or any(marker.evaluate({"extra": name}) for name in extras)
        if requirement.name == "troll" or not wanted:
            continue
        try:
            installed_version = version(requirement.name)
        except PackageNotFoundError:
            unmet.append(f"{requirement.name} (not installed)")
            continue
        if not requirement.specifier.contains(installed_version, prereleases=True):
            unmet.append(f"{requirement.name} {installed_version} ({requirement.specifier} is needed)")
    return unmet


def _packages() -> Finding:
    if unmet := unmet_requirements():
        return Finding("packages", "missing", "; ".join(unmet), "make -B env")
    versions = ", ".join(f"{name} {installed(name)}" for name in ("torch", "trl", "snakemake"))
    return Finding("packages", "ok", versions)


def _gpus() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"{device.name}, {device.total_memory / GIB:.0f} GiB" for device in devices]


def _gpu(needs: Needs) -> Finding:
    gpus = _gpus()
    if gpus and len(gpus) < needs.gpus and not tool(("sbatch", "--version")):
        fix = "lower training.gpus in the experiment file, or run it where there are as many"
        return Finding("GPU", "missing", f"{len(gpus)}; one run takes {needs.gpus}", fix)
    if gpus:
        return Finding("GPU", "ok", "; ".join(gpus))
    driver = tool(("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"))
    large = [] if needs.on_processors else [*needs.hub_models, *(wheel.name for wheel in needs.wheels)]
    if driver:
        fix = "this torch has no CUDA: rm -rf .venv && make env"
        return Finding("GPU", "missing" if large else "note", f"{driver}, unseen by torch", fix)
    if large and tool(("sbatch", "--version")):
        return Finding("GPU", "note", "none here; jobs get theirs from SLURM")
    if large:
        fix = "run it where there is a GPU: docs/troubleshooting.md, section GPU"
        return Finding("GPU", "missing", f"none; {', '.join(large)} need one", fix)
    if needs.on_processors:
        return Finding("GPU", "note", "none; the runs ask for none, and train on processors")
    return Finding("GPU", "note", "none; from-scratch models need none")


def _vllm(needs: Needs) -> Finding:
    if here := installed("vllm"):
        return Finding("vLLM", "ok", here)
    for beside in Path(VLLM_ENVIRONMENT).glob("lib/python*/site-packages/vllm-*.dist-info"):
        there = beside.name.removeprefix("vllm-").removesuffix(".dist-info")
        return Finding("vLLM", "ok", f"{there} in {VLLM_ENVIRONMENT}")
    if needs.vllm:
        fix = "make vllm; or `vllm: null` and `engine: transformers` in the experiment file"
        return Finding("vLLM", "missing", "not installed", fix)
    return Finding("vLLM", "note", "not installed; samples come from transformers")


def _sandbox(needs: Needs) -> Finding:
    from troll.tasks.sandbox.bubblewrap import INSTALL_LINE, bubblewrap_program, remedy
    from troll.tasks.sandbox.pool import sandbox_available

    available, reason = sandbox_available()
    if available:
        return Finding("bubblewrap", "ok", "runs programs")
    fix = remedy(reason)
    reason = reason.removesuffix(f"; {fix}")
    if bubblewrap_program() is None:
        reason, fix = "not installed", INSTALL_LINE
    if needs.code and not needs.math:
        return Finding("bubblewrap", "missing", f"{reason}; {', '.join(needs.code)} cannot be graded", fix)
    effect = f"; {', '.join(needs.code)} will be skipped" if needs.code else ""
    return Finding("bubblewrap", "note", f"{reason}{effect}", fix)


def _disk(needs: Needs, results: Path) -> Finding:
    free = shutil.disk_usage(nearest_existing(results)).free / GIB
    words = f"{free:.1f} GiB free, about {max(needs.disk_gib, 0.1):.1f} GiB needed for results"
    if (closed := unwritable(results)) is not None:
        return Finding("disk", "missing", f"{closed} cannot be written", f"chmod -R u+w {results}")
    if free < needs.disk_gib + 0.5:
        return Finding("disk", "missing", words, f"make room, or link {results}/ to a larger disk")
    return Finding("disk", "ok", words)


def _memory(needs: Needs) -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    words = f"{total:.1f} GiB"
    if not needs.memory_gib:
        return Finding("memory", "ok", words)
    words += f", {needs.memory_gib:.1f} GiB needed for one job"
    if total < needs.memory_gib:
        return Finding("memory", "missing", words, "run it on a larger machine")
    at_once = int(total // needs.memory_gib)
    if at_once < (os.cpu_count() or 1):
        return Finding("memory", "note", words, f"fewer jobs at a time: snakemake --cores {at_once}")
    return Finding("memory", "ok", words)


def _not_mirrored(needs: Needs) -> list[str]:
    """The data sets that the mirror lacks altogether, so that they have to come from the hub."""
    from troll.tasks.datasets.catalogue import DATA_SETS
    from troll.tasks.datasets.load import mirror_of

    try:
        return [name for name in needs.public if mirror_of(DATA_SETS[name]) is None]
    except UserError:  # `_mirror` says what is wrong with it
        return list(needs.public)


def _mirror(needs: Needs) -> Finding | None:
    from troll.tasks.datasets.catalogue import DATA_SETS
    from troll.tasks.datasets.mirror import VARIABLE, mirror, mirror_files

    try:
        root = mirror()
    except UserError as error:
        return Finding("mirror", "missing" if needs.public else "note", str(error), f"unset {VARIABLE}")
    if root is None:
        return None
    absent = _not_mirrored(needs)
    held, sizes = [name for name in needs.public if name not in absent], mirror_files()
    files = {part.file for name in held for part in DATA_SETS[name].parts.values() if part.file}
    whole = {
        name for name in files if (root / name).exists() and (root / name).stat().st_size == sizes[name].bytes
    }
    if lacking := sorted(files - whole):
        fix = f"fetch them again, or unset {VARIABLE} to use the hub"
        return Finding("mirror", "missing", f"{root}: missing or truncated: {', '.join(lacking)}", fix)
    words = f"{root}" + (f" has {', '.join(held)}" if held else "")
    return Finding("mirror", "ok", words + (f"; the hub is asked for {', '.join(absent)}" if absent else ""))


def hub_answers(timeout_s: float = 5.0) -> str:
    """Why the Hugging Face hub cannot be reached; empty if it can."""
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urlopen(Request(address, method="HEAD"), timeout=timeout_s):
            return ""
    except (HTTPException, OSError, ValueError) as error:
        return f"{address}: {getattr(error, 'reason', None) or error}"


def _is_here(model_id: str) -> bool:
    """Whether a mirror of models or the hub's cache on this machine has a model."""
    try:
        return config_of(model_id) is not None
    except UserError:
        return False


def _hub(needs: Needs) -> Finding:
    models = dict.fromkeys((*needs.hub_models, *needs.chat_templates))
    missing = [*(name for name in models if not _is_here(name)), *_not_mirrored(needs)]
    if not (problem := hub_answers()):
        return Finding("hub", "ok", "answers")
    if not missing:
        return Finding("hub", "note", f"{problem}; nothing here needs it")
    fix = "`troll fetch` while online; or name mirrors in TROLL_DATA_MIRROR and TROLL_MODEL_MIRROR"
    return Finding("hub", "missing", f"{problem}; needed for {', '.join(missing)}", fix)


def _wheels(needs: Needs) -> Iterator[Finding]:
    for wheel in needs.wheels:
        try:
            yield Finding("package", *wheel_state(wheel))
        except UserError as error:
            yield Finding("package", "missing", str(error))


def _tracker(needs: Needs) -> Finding | None:
    if needs.tracking == "none":
        return None
    if tracker := installed(needs.tracking):
        return Finding("tracking", "ok", f"{needs.tracking} {tracker}")
    fix = f".venv/bin/pip install {needs.tracking}, or `tracking: none` in the file"
    return Finding("tracking", "missing", f"{needs.tracking} is not installed", fix)


def examine(experiment: Experiment | None, results: Path, *, ask_hub: bool = True) -> Iterator[Finding]:
    """Looks at everything, quick things first; without an experiment it only lists what there is."""
    needs = needs_of(experiment) if experiment else Needs()
    yield Finding("Python", "ok", f"{platform.python_version()}, {sys.prefix}")
    yield _packages()
    yield Finding("cores", "ok", f"{available_cores()}; one run uses one")
    yield _memory(needs)
    yield _disk(needs, results)
    yield _gpu(needs)
    yield _vllm(needs)
    yield _sandbox(needs)
    sbatch = tool(("sbatch", "--version"))
    yield Finding("SLURM", "ok" if sbatch else "note", sbatch or "none; jobs run on this machine")
    yield from filter(None, (_tracker(needs), _mirror(needs)))
    yield from _wheels(needs)
    if experiment is not None and (needs.hub_models or needs.wheels):
        yield Finding("rehearsal", *last_rehearsal(experiment, results))
    if ask_hub:
        yield _hub(needs)


def show(findings: Iterable[Finding], experiment: str | None) -> list[str]:
    """The findings as lines of text, with a last line that says whether the experiment can run."""
    lines, missing = [], []
    for finding in findings:
        mark = "MISSING" if finding.state == "missing" else finding.state
        lines.append(f"{mark:8}{finding.name:11}{finding.found}")
        if finding.fix:
            lines.append(f"{'':19}fix: {finding.fix}")
        if finding.state == "missing":
            missing.append(finding.name)
    what = f"experiment {experiment}" if experiment else "this machine"
    if missing:
        lines.append(f"{what} cannot run here yet: {', '.join(missing)}")
    elif experiment:
        lines.append(f"{what} can run here")
    return lines
