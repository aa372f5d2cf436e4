"""One measurement of the cost benchmark: ``python -m troll.analysis.cost_worker JSON``.

In a process of its own, because only so is its peak of memory its own. Prints one JSON object.
"""

import gc
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head import lm_head
from troll.analysis.cost_variants import VARIANTS, Batch, projected_share, troll_loss
from troll.seeding import derive_seed

PREPARE = "prepare"
"""The task that makes the old policy once for all variants."""
OLD_PASSES = {"old policy, label log-probs": None, "old policy, top-K": "keep"}
"""Forward passes without gradient that precede the updates: what clip needs, and what TROLL needs."""

_LOGIT_SPREAD = 4.0
_MOVED = 0.1
_STEPS = (0.02, 0.5)
_WARM_UP = 64


@dataclass(frozen=True)
class Task:
    """What to measure."""

    variant: str
    tokens: int
    width: int
    vocab: int
    keep: int
    device: str
    dtype: str
    seed: int
    folder: str


def main(text: str) -> None:
    """Runs one task, given as JSON."""
    task = Task(**json.loads(text))
    if task.variant == PREPARE:
        result: dict[str, float] = {"projected_share": prepare(task)}
    else:
        result = measure(task)
    print(json.dumps(result))


def _tensors(task: Task) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    """Hidden states of the new and of the old policy, and the weight; the same in every process.

    Logits are normal with a spread of 4 nats. One token in ten has moved far since it was sampled (a
    hundred times the share that the paper reports as projected, its Fig. 14), so that the solver has
    something to do.
    """
    random = torch.Generator(task.device).manual_seed(derive_seed(purpose="cost", seed=task.seed))
    dtype = getattr(torch, task.dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=task.device, dtype=dtype)

    old, noise = normal(task.tokens, task.width), normal(task.tokens, task.width)
    far = torch.rand(task.tokens, 1, generator=random, device=task.device) < _MOVED
    step = torch.where(far, _STEPS[1], _STEPS[0]).to(dtype)
    weight = normal(task.vocab, task.width).mul_(_LOGIT_SPREAD / task.width**0.5)
    return old + step * noise, old, weight, random


def prepare(task: Task) -> float:
    """Writes the old policy; returns the share of tokens that the new one moved out of the trust region."""
    hidden, old_hidden, weight, random = _tensors(task)
    labels = torch.zeros(task.tokens, dtype=torch.int64, device=task.device)
    old = lm_head(old_hidden, weight, labels, keep=task.keep, dropped_mass=1e-5).distribution
    assert old is not None
    slot = torch.multinomial(old.log_probs.exp(), 1, generator=random)
    labels = old.token_ids.gather(1, slot).squeeze(1)
    advantages = torch.randn(task.tokens, generator=random, device=task.device)
    batch = Batch(hidden, weight, labels, advantages, old.log_probs.gather(1, slot).squeeze(1), old)
    kept = (labels, advantages, batch.old_log_probs, old.token_ids, old.log_probs, old.tail_log_prob)
    torch.save(kept, Path(task.folder) / f"old-{task.width}.pt")
    return projected_share(batch)


def measure(task: Task) -> dict[str, float]:
    """Seconds and peak memory of one forward and backward pass, the inputs not counted.

    A short warm-up comes first (of full length on CUDA, where kernels are chosen by shape).
    """
    hidden, old_hidden, weight, _ = _tensors(task)
    labels, advantages, old_log_probs, *old = torch.load(
        Path(task.folder) / f"old-{task.width}.pt", map_location=task.device
    )
    batch = Batch(hidden, weight, labels, advantages, old_log_probs, SparseLogProbs(*old))
    if task.variant in OLD_PASSES:
        batch.hidden = old_hidden
    warm_up = task.tokens if task.device == "cuda" else min(_WARM_UP, task.tokens)
    _run(task, batch.first(warm_up))
    batch = batch.first(task.tokens)
    gc.collect()
    clock = Clock(task.device)
    _run(task, batch)
    result = clock.read()
    if task.variant == "TROLL, our head":
        result["solver_seconds"] = _solver_seconds(task, batch)
    return result


def _run(task: Task, batch: Batch) -> None:
    if task.variant in OLD_PASSES:
        options = {"keep": task.keep, "dropped_mass": 1e-5} if OLD_PASSES[task.variant] else {}
        with torch.no_grad():
            lm_head(batch.hidden, batch.weight, batch.labels, **options)  # type: ignore[arg-type]
        return
    loss = VARIANTS[task.variant](batch)
    loss.backward()  # type: ignore[no-untyped-call]


def _solver_seconds(task: Task, batch: Batch) -> float:
    """Projection, both losses and their gradient, from and to the sparse log-probs: all that TROLL adds."""
    with torch.no_grad():
        head = lm_head(batch.hidden, batch.weight, batch.labels, support=batch.old.token_ids)
    new = head.distribution
    assert new is not None
    seconds = 0.0
    for _ in range(2):  # the first one warms up
        leaf = SparseLogProbs(
            new.token_ids, new.log_probs.clone().requires_grad_(), new.tail_log_prob.clone().requires_grad_()
        )
        clock = Clock(task.device)
        troll_loss(batch, head.label_log_probs, leaf).backward()  # type: ignore[no-untyped-call]
        seconds = clock.read()["seconds"]
    return seconds


class Clock:
    """Seconds and the peak of memory since it was made."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            _forget_peak()
            self._before = _resident("VmRSS")
        self._processor, self._start = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Wall-clock and processor seconds, and the bytes above those held at the start."""
        if self._cuda:
            torch.cuda.synchronize()
        seconds, processor = time.perf_counter() - self._start, time.process_time() - self._processor
        peak = torch.cuda.max_memory_allocated() if self._cuda else _resident("VmHWM")
        return {
            "seconds": seconds,
            "processor_seconds": processor,
            "peak_bytes": float(max(0, peak - self._before)),
        }


def _forget_peak() -> None:
    """Lets the kernel forget the peak so far (Linux; elsewhere the peak of the whole process is used)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _resident(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def as_json(task: Task) -> str:
    """The command-line argument for a task."""
    return json.dumps(asdict(task))


if __name__ == "__main__":
    main(sys.argv[1])
