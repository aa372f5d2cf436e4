"""Trust regions for reinforcement learning of language models: algorithms, trainer and benchmark harness."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from troll.algorithms.projection import project
    from troll.training.config import TrustRegionConfig
    from troll.training.trainer import TrustRegionTrainer

__version__ = "0.3.0"
__all__ = ["TrustRegionConfig", "TrustRegionTrainer", "project"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `import troll` must not cost the import of torch, nor `project` that of TRL.
    if name == "project":
        from troll.algorithms.projection import project

        return project
    if name == "TrustRegionConfig":
        from troll.training.config import TrustRegionConfig

        return TrustRegionConfig
    if name == "TrustRegionTrainer":
        from troll.training.trainer import TrustRegionTrainer

        return TrustRegionTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
