"""Unbiased pass@k."""

from collections.abc import Iterable
from math import comb


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Returns the probability that k of n samples, drawn without replacement, include a right one.

    1 - C(n - c, k) / C(n, k) for c right samples (Chen et al. 2021, arXiv:2107.03374, equation 1).

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {correct} right among {samples} samples is not defined")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """Returns the mean of `pass_at_k` over problems, each given as (samples, correct)."""
    values = [pass_at_k(samples, correct, k) for samples, correct in counts]
    return sum(values) / len(values)


def reported_ks(fewest_samples: int) -> list[int]:
    """Returns the k of pass@k to report: 1, 8 and all samples, if every problem has that many."""
    return sorted(k for k in {1, 8, fewest_samples} if k <= fewest_samples)
