"""Expands ``base_seeds``: a model with several base seeds becomes one model per base seed.

The pooled analysis then treats each base model as a separate setting, as it should: runs from one base model
say nothing about another.
"""

from collections.abc import Mapping
from typing import Any


def base_name(model: str, seed: int) -> str:
    """Returns the name of a model of the experiment file with one of its base seeds."""
    return f"{model}-base{seed}"


def kind_name(model: str, seed: int) -> str:
    """Returns the experiment file's name of the model that `base_name` named with this base seed."""
    return model.removesuffix(base_name("", seed))


def with_base_models_apart(data: Any) -> Any:
    """Returns the contents of an experiment file with a model for each of ``base_seeds``.

    In the matrix, the model's name is replaced by those of all its base models, in the order of the seeds.
    Values of a wrong type are left alone: later checks report them.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("models"), Mapping):
        return data
    models: dict[str, Any] = {}
    families: dict[str, list[str]] = {}
    for name, model in data["models"].items():
        seeds = model.get("base_seeds") if isinstance(model, Mapping) else None
        if not seeds or not _are_seeds(seeds):
            models[name] = model
            continue
        where = f"models.{name}.base_seeds"
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"{where}: {seeds} names a seed twice")
        if model.get("hub") is not None or model.get("wheel") is not None:
            raise ValueError(f"{where}: only for models made from scratch; leave it out for a pretrained one")
        families[name] = [base_name(name, seed) for seed in seeds]
        settings = {key: value for key, value in model.items() if key != "base_seeds"}
        models |= {base_name(name, seed): {**settings, "base_seed": seed} for seed in seeds}
    for name, made in families.items():
        if taken := [model for model in made if model in data["models"]]:
            raise ValueError(f"models.{name}.base_seeds: makes {taken[0]}, already a model; rename one")
    if isinstance(blocks := data.get("matrix"), list):
        data = {**data, "matrix": [_block(block, families) for block in blocks]}
    return {**data, "models": models}


def _are_seeds(seeds: Any) -> bool:
    return isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)


def _block(block: Any, families: Mapping[str, list[str]]) -> Any:
    """Returns a block of the matrix with each family's name replaced by its models."""
    names = block.get("models") if isinstance(block, Mapping) else None
    if not isinstance(names, list):
        return block
    expanded = [
        item for name in names for item in (families.get(name, [name]) if isinstance(name, str) else [name])
    ]
    return {**block, "models": expanded}
