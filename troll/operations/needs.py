"""What an experiment asks of a machine."""

from dataclasses import dataclass

from troll.experiment.experiment import Experiment
from troll.experiment.model_settings import Wheel
from troll.experiment.resources import training_request

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
    models = {run.model: experiment.models[run.model] for run in runs}
    scratch = [m for m in models.values() if m.pretrained is None]
    hubs = [m.hub for m in models.values() if m.hub is not None]
    sources = [m.pretrained for m in models.values() if m.pretrained is not None]
    gpus = max(experiment.training_of(run).gpus for run in runs)
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
        wheels=tuple(m.wheel for m in models.values() if m.wheel is not None),
        on_processors=bool(sources) and small,
        memory_gib=max(memory) if scratch or jobs else 0.0,
        disk_gib=(disk + 1e9 * disk_gb(experiment)) / GIB,
        gpus=gpus,
        tracking=experiment.tracking,
        vllm=experiment.evaluation.engine == "vllm" or any(experiment.training_of(run).vllm for run in runs),
    )
