"""Trust regions for reinforcement learning of language models: algorithms, trainer and benchmark harness."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "project"]


def __getattr__(name: str) -> Any:
    """Load `troll.project` on first use, so that `import troll` alone does not import torch."""
    if name == "project":
        from troll.algorithms.projection import project

        return project
    raise AttributeError(f"module 'troll' has no attribute {name!r}")
