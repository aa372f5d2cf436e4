"""The smallest experiment: clip and GRPO under one condition, with one seed."""

from typing import Any


def one_cell(**keys: Any) -> dict[str, Any]:
    """Returns the contents of an experiment file with these keys; ``tasks`` and ``models`` are required."""
    return {
        "experiment": "x",
        "seeds": [0],
        "trust_regions": {"clip": {"rule": "clip"}},
        "estimators": {"grpo": {"rule": "grpo"}},
        "conditions": {"stale": {}},
    } | keys
