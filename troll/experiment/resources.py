"""The resources that the workflow's jobs request from a scheduler."""

from dataclasses import dataclass, replace

from troll.experiment.model_settings import Hub, SupervisedSteps, Wheel

ATTEMPTS = 3
"""From this attempt on a job's requests do not grow any further."""

_DAY = 1440  # minutes
_BILLIONS = 8  # assumed if the file does not say
# For supervised steps, which hold all logits of 1,024 tokens: 4,970 MB in total with 0.135 * 10^9 parameters.
_LOGITS_MB = 2000


@dataclass(frozen=True)
class Request:
    """The resources that a job requests."""

    memory_mb: int
    minutes: int
    threads: int = 1
    gpus: int = 0  # on one node


def growth(attempt: int) -> float:
    """Returns the growth of a repeated job's requests: at most 1.5, as few jobs fail for lack of memory."""
    return 1 + 0.25 * min(attempt - 1, ATTEMPTS - 1)


def training_request(hub: Hub | Wheel | None, gpus: int, attempt: int = 1) -> Request:
    """Returns the request of a run: 4 bytes per weight in every process, 12 where a checkpoint is gathered.

    Without ``hub`` the model is made from scratch, and more than one thread would slow it down. A run that
    takes longer resumes in another job: see workflow/profiles/slurm. Attempts count from 1.
    """
    processes = max(1, gpus)
    size = 1000 * (hub.billions or _BILLIONS) * (4 * processes + 12) if hub else 0
    threads = max(1, (4 if hub else 1) * gpus)
    return Request(round((2000 + size) * growth(attempt)), _DAY if hub else 30, threads, gpus)


def sampling_request(hub: Hub | Wheel | None, gpus: int, attempt: int = 1) -> Request:
    """Returns the request of a job that samples with one copy of the model, loaded through main memory."""
    size = 2000 + (6000 * (hub.billions or _BILLIONS) if hub else 0)
    return Request(round(size * growth(attempt)), _DAY if hub else 30, 1, gpus)


def base_request(
    hub: Hub | Wheel | None, supervised: SupervisedSteps | None, gpus: int, attempt: int = 1
) -> Request:
    """Returns the request of the job that downloads or links a pretrained model and trains it if asked to."""
    if supervised is not None:
        request = training_request(hub, min(1, gpus), attempt)
        return replace(request, memory_mb=request.memory_mb + round(_LOGITS_MB * growth(attempt)))
    fixed = FIXED["hub_model"]
    size = 4000 + 8000 * (hub.billions or 0) if isinstance(hub, Wheel) else fixed.memory_mb
    return Request(round(size * growth(attempt)), fixed.minutes)


FIXED = {"hub_model": Request(4000, 240), "grade": Request(2000, 30), "grade_suites": Request(2000, 120)}
"""Requests of rules whose jobs are all alike."""
COST = Request(6000, 60)
"""Request of the benchmarks of an update and of a step, on all cores."""
