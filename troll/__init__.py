"""Trust regions for reinforcement learning of language models: algorithms, trainer and benchmark harness."""

__version__ = "0.1.0"
