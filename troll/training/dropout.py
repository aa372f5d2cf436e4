"""Finds the randomness of a model's training passes, such as dropout, and switches it off."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Context without dropout or NEFTune: all modules are in evaluation mode, and then as they were."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def sources_of_noise(model: Any, neftune_alpha: float | None) -> str:
    """Names what changes the model's log-probs from pass to pass in training; empty if nothing does.

    Dropout modules, settings of modules whose name contains "drop" or "jitter" (dropout inside attention,
    layer drop, the routers of mixtures of experts), and NEFTune's noise on the embeddings.
    """
    found: Counter[str] = Counter()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found[f"dropout of {module.p}"] += module.p > 0
            continue
        for name, value in vars(module).items():
            random = "drop" in name or "jitter" in name
            if random and isinstance(value, float) and 0 < value <= 1:
                found[f"{name} of {value}"] += 1
    if neftune_alpha:
        found[f"NEFTune of {neftune_alpha}"] += 1
    return ", ".join(sorted(name for name, count in found.items() if count))
