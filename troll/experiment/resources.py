"""What the workflow's jobs ask of a scheduler: for its rules, and for whoever wants to know beforehand."""

from dataclasses import dataclass, replace

from troll.experiment.model_settings import Hub, SupervisedSteps, Wheel

ATTEMPTS = 3
"""From the third attempt on a job asks for no more than before."""

_DAY = 1440
_BILLIONS = 8  # where the file does not say
# Of supervised steps, which hold all logits of 1,024 tokens: 4,970 MB were seen with 0.135 * 10^9 parameters.
_LOGITS_MB = 2000


@dataclass(frozen=True)
class Request:
    """What one job asks for."""

    memory_mb: int
    minutes: int
    threads: int = 1
    gpus: int = 0  # of one node


def growth(attempt: int) -> float:
    """What a repeated job gets more of: a half at most, since few attempts fail for want of memory."""
    return 1 + 0.25 * min(attempt - 1, ATTEMPTS - 1)


def training_request(hub: Hub | Wheel | None, gpus: int, attempt: int = 1) -> Request:
    """Of a run: 4 bytes for each weight in every process, 12 where one of them gathers a checkpoint.

    Without ``hub`` the model is one from scratch, which more than one thread would slow down. A run that
    needs longer resumes in another job: see workflow/profiles/slurm. Attempts count from 1.
    """
    processes = max(1, gpus)
    size = 1000 * (hub.billions or _BILLIONS) * (4 * processes + 12) if hub else 0
    threads = max(1, (4 if hub else 1) * gpus)
    return Request(round((2000 + size) * growth(attempt)), _DAY if hub else 30, threads, gpus)


def sampling_request(hub: Hub | Wheel | None, gpus: int, attempt: int = 1) -> Request:
    """Of a job that samples on ``gpus`` that share one copy: the weights pass through main memory."""
    size = 2000 + (6000 * (hub.billions or _BILLIONS) if hub else 0)
    return Request(round(size * growth(attempt)), _DAY if hub else 30, 1, gpus)


def base_request(
    hub: Hub | Wheel | None, supervised: SupervisedSteps | None, gpus: int, attempt: int = 1
) -> Request:
    """Of the job that fetches or links a pretrained model, and trains it where the file asks for it."""
    if supervised is not None:
        request = training_request(hub, min(1, gpus), attempt)
        return replace(request, memory_mb=request.memory_mb + round(_LOGITS_MB * growth(attempt)))
    fixed = FIXED["hub_model"]
    size = 4000 + 8000 * (hub.billions or 0) if isinstance(hub, Wheel) else fixed.memory_mb
    return Request(round(size * growth(attempt)), fixed.minutes)


FIXED = {
    "hub_model": Request(4000, 240),
    "grade": Request(2000, 30),
    "grade_suites": Request(2000, 120),
}
"""Of rules whose jobs are all alike."""
