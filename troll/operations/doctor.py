"""`troll doctor`: checks whether this machine has what an experiment needs, and says how to fix it if not."""

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
from troll.common.gpus import CUDA_BUILD, torch_for_cpus
from troll.common.hub import config_of
from troll.common.processor import available_cores
from troll.experiment.experiment import Experiment
from troll.experiment.gpu_memory import never_fits
from troll.experiment.model_settings import Wheel
from troll.experiment.resources import COST, training_request
from troll.operations.gpu_fit import known_card, settings_of, tight
from troll.operations.hub_context import wheel_state
from troll.operations.rehearsal.report import last_rehearsal
from troll.operations.slurm_queue import gpu_partitions
from troll.operations.versions import installed, tool

State = Literal["ok", "note", "missing"]
VLLM_ENVIRONMENT = ".venv-vllm"
"""The directory that `make vllm` creates."""

GIB = 2**30

# Bytes per parameter while a run trains: two checkpoints, each with weights and AdamW's two moments.
_CHECKPOINT_BYTES = 2 * 3 * 4
_WEIGHT_BYTES = 4
# Metrics, samples and grades of a testbed run take less than this.
_LOG_BYTES = 2**20
# Pretrained models up to this size train on a CPU in minutes.
_SMALL_BILLIONS = 0.5


@dataclass(frozen=True)
class Needs:
    """What an experiment needs of a machine."""

    code: tuple[str, ...] = ()  # tasks whose programs run in the sandbox
    math: tuple[str, ...] = ()  # the other tasks
    public: tuple[str, ...] = ()  # data sets that come from a mirror or the hub
    hub_models: tuple[str, ...] = ()  # ids of models on the hub
    wheels: tuple[Wheel, ...] = ()
    on_processors: bool = False  # whether all pretrained models are small and no run uses a GPU
    chat_templates: tuple[str, ...] = ()  # ids of models of which only the chat template is used
    memory_gib: float = 0.0  # of the largest job on a CPU
    disk_gib: float = 0.0  # of the results, roughly
    gpus: int = 0  # of one run
    tracking: str = "none"  # the tracker's package
    vllm: bool = False  # whether training or evaluation samples with vLLM


def parameters(layers: int, width: int, vocabulary: int) -> int:
    """Estimates the parameters of a from-scratch model: 12 width^2 per layer, and tied embeddings."""
    return 12 * layers * width**2 + vocabulary * width


def needs_of(experiment: Experiment) -> Needs:
    """Derives what an experiment needs of a machine."""
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
    jobs = [training_request(source, 0) for source in sources if small]
    largest = max((parameters(m.layers, m.width, m.vocabulary) for m in scratch), default=0)
    disk = len(runs) * (_LOG_BYTES + _WEIGHT_BYTES * largest) + _CHECKPOINT_BYTES * largest
    jobs += [training_request(None, 0)] if scratch else []
    jobs += [COST] if jobs and experiment.cost else []
    return Needs(
        code=code,
        math=tuple(task for task in tasks if task not in code),
        public=tuple(needed_data(experiment, runs)),
        hub_models=tuple(hub.id for hub in hubs),
        chat_templates=tuple(hub.chat_template_of for hub in hubs if hub.chat_template_of),
        wheels=tuple(m.wheel for m in models if m.wheel is not None),
        on_processors=bool(sources) and small,
        memory_gib=max((job.memory_mb for job in jobs), default=0) / 1024,
        disk_gib=(disk + 1e9 * disk_gb(experiment)) / GIB,
        gpus=gpus,
        tracking=experiment.tracking,
        vllm=experiment.evaluation.engine == "vllm" or any(training.vllm for training in trainings),
    )


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    # ``ok``; ``note``: absent, but not needed or the workflow does without it; ``missing``: the experiment
    # cannot run
    state: State
    found: str  # what is there, in a few words
    fix: str = ""  # what to do, a command if possible; empty if there is nothing to do


def unmet_requirements() -> list[str]:
    """Returns requirements of this package and its extras that are absent or have an unsuitable version."""
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
            unmet.append(f"{requirement.name} {installed_version} (needs {requirement.specifier})")
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


def _gpus_of_slurm(needs: Needs, cpu_build: str) -> Finding:
    """Checks what SLURM's jobs will find: GPUs in a partition, and a torch that can use them."""
    if cpu_build:
        found = f"none here; SLURM jobs use this environment, and its torch {cpu_build} is a build for CPUs"
        return Finding("GPU", "missing", found, CUDA_BUILD)
    if not (partitions := gpu_partitions()):
        fix = "`sinfo -o '%R %G'` lists them; partitions.yaml of the profile needs one with max_gpu"
        return Finding("GPU", "note", "none here, and SLURM names no partition with GPUs", fix)
    names = ", ".join(f"{name} ({gpus})" for name, gpus in partitions.items())
    on_a_node = f"srun --partition={next(iter(partitions))} --gpus={max(needs.gpus, 1)} troll doctor FILE"
    return Finding("GPU", "note", f"none here; SLURM has some in {names}", f"to check a node: {on_a_node}")


def _gpu(needs: Needs) -> Finding:
    gpus = _gpus()
    if gpus and len(gpus) < needs.gpus and not tool(("sbatch", "--version")):
        fix = "lower training.gpus in the experiment file, or use a machine with more GPUs"
        return Finding("GPU", "missing", f"{len(gpus)}; one run needs {needs.gpus}", fix)
    if gpus:
        return Finding("GPU", "ok", "; ".join(gpus))
    driver = tool(("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"))
    large = [] if needs.on_processors else [*needs.hub_models, *(wheel.name for wheel in needs.wheels)]
    cpu_build = torch_for_cpus()
    if driver:
        fix = CUDA_BUILD if cpu_build else "see `nvidia-smi`; CUDA_VISIBLE_DEVICES may hide it"
        what = f"torch {cpu_build} is a build for CPUs" if cpu_build else "not visible to torch"
        return Finding("GPU", "missing" if large else "note", f"{driver}, but {what}", fix)
    if (large or needs.gpus) and tool(("sbatch", "--version")):
        return _gpus_of_slurm(needs, cpu_build)
    if large:
        fix = "use a machine with a GPU: docs/troubleshooting.md, section GPU"
        return Finding("GPU", "missing", f"none; needed for {', '.join(large)}", fix)
    if needs.on_processors:
        return Finding("GPU", "note", "none; not needed, as the runs train on the CPU")
    return Finding("GPU", "note", "none; not needed for from-scratch models")


def _gpu_memory(experiment: Experiment) -> Finding | None:
    """Compares the estimated memory of runs with the GPUs; None if no run of known size uses any."""
    runs = experiment.runs()
    settings = settings_of(experiment, runs)
    if not settings:
        return None
    card = known_card(experiment)
    command = "troll check FILE --cost"
    if card is None:
        fix = f"set gpu_memory to that of your GPUs in GiB; {command} lists what models need"
        return Finding("GPU memory", "note", "of the GPUs is not known here", fix)
    words = f"{card.gib:.0f} GiB ({card.source})"
    if lines := tight(experiment, runs, card):
        impossible = any(never_fits(setting.memory(card.gib), card.gib) for setting in settings)
        found = f"{words}; by the estimate, {len(lines)} of {len(settings)} kinds of runs do not fit"
        return Finding("GPU memory", "missing" if impossible else "note", found, f"{command}: {lines[0]}")
    most = max(setting.memory(card.gib).needed for setting in settings)
    return Finding("GPU memory", "ok", f"{words}; runs need up to {most:.0f}, by the estimate")


def _vllm(needs: Needs) -> Finding:
    if here := installed("vllm"):
        return Finding("vLLM", "ok", here)
    for installation in Path(VLLM_ENVIRONMENT).glob("lib/python*/site-packages/vllm-*.dist-info"):
        number = installation.name.removeprefix("vllm-").removesuffix(".dist-info")
        return Finding("vLLM", "ok", f"{number} in {VLLM_ENVIRONMENT}")
    if needs.vllm:
        fix = "make vllm; or `vllm: null` and `engine: transformers` in the experiment file"
        return Finding("vLLM", "missing", "not installed", fix)
    return Finding("vLLM", "note", "not installed; sampling uses transformers")


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
        return Finding("disk", "missing", words, f"free some space, or link {results}/ to a larger disk")
    return Finding("disk", "ok", words)


def _memory(needs: Needs) -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    words = f"{total:.1f} GiB"
    if not needs.memory_gib:
        return Finding("memory", "ok", words)
    words += f", {needs.memory_gib:.1f} GiB needed for one job"
    if total < needs.memory_gib:
        return Finding("memory", "missing", words, "use a machine with more memory")
    at_once = int(total // needs.memory_gib)
    if at_once < (os.cpu_count() or 1):
        return Finding("memory", "note", words, f"run fewer jobs at a time: snakemake --cores {at_once}")
    return Finding("memory", "ok", words)


def _not_mirrored(needs: Needs) -> list[str]:
    """Returns the data sets of which the mirror has no file, so that they have to come from the hub."""
    from troll.tasks.datasets.catalogue import DATA_SETS
    from troll.tasks.datasets.load import mirror_of

    try:
        return [name for name in needs.public if mirror_of(DATA_SETS[name]) is None]
    except UserError:  # `_mirror` reports what is wrong with it
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
    mirrored, sizes = [name for name in needs.public if name not in absent], mirror_files()
    files = {part.file for name in mirrored for part in DATA_SETS[name].parts.values() if part.file}
    complete = {
        name for name in files if (root / name).exists() and (root / name).stat().st_size == sizes[name].bytes
    }
    if incomplete := sorted(files - complete):
        fix = f"copy them again, or unset {VARIABLE} to use the hub"
        return Finding("mirror", "missing", f"{root}: missing or truncated: {', '.join(incomplete)}", fix)
    words = f"{root}" + (f" has {', '.join(mirrored)}" if mirrored else "")
    return Finding("mirror", "ok", words + (f"; needed from the hub: {', '.join(absent)}" if absent else ""))


def hub_answers() -> str:
    """Returns why the Hugging Face hub cannot be reached; empty if it can."""
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urlopen(Request(address, method="HEAD"), timeout=5.0):
            return ""
    except (HTTPException, OSError, ValueError) as error:
        return f"{address}: {getattr(error, 'reason', None) or error}"


def _is_here(model_id: str) -> bool:
    """Whether the model mirror or the hub's cache on this machine has a model."""
    try:
        return config_of(model_id) is not None
    except UserError:
        return False


def _hub(needs: Needs) -> Finding:
    models = dict.fromkeys((*needs.hub_models, *needs.chat_templates))
    missing = [*(name for name in models if not _is_here(name)), *_not_mirrored(needs)]
    if not (problem := hub_answers()):
        return Finding("hub", "ok", "reachable")
    if not missing:
        return Finding("hub", "note", f"{problem}; not needed here")
    fix = "run `troll fetch` while online, or set TROLL_DATA_MIRROR and TROLL_MODEL_MIRROR"
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
    fix = f".venv/bin/pip install {needs.tracking}, or `tracking: none` in the experiment file"
    return Finding("tracking", "missing", f"{needs.tracking} is not installed", fix)


def examine(experiment: Experiment | None, results: Path, *, ask_hub: bool = True) -> Iterator[Finding]:
    """Runs all checks, fast ones first; without an experiment it only lists what the machine has."""
    needs = needs_of(experiment) if experiment else Needs()
    yield Finding("Python", "ok", f"{platform.python_version()}, {sys.prefix}")
    yield _packages()
    yield Finding("cores", "ok", f"{available_cores()}; each run uses one")
    yield _memory(needs)
    yield _disk(needs, results)
    yield _gpu(needs)
    if experiment is not None and (finding := _gpu_memory(experiment)):
        yield finding
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
    """Formats the findings as lines of text; the last line says whether the experiment can run."""
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
