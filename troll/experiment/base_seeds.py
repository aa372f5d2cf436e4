"""Several base models of one kind: each becomes a model of its own; runs, paths and tables keep their form.

A pooled analysis then takes each base model for a setting of its own, which is what it is: seeds of runs from
one base model say nothing about another.
"""

from collections.abc import Mapping
from typing import Any


def base_name(model: str, seed: int) -> str:
    """What a model of an experiment file is called with one of its base seeds."""
    return f"{model}-base{seed}"


def kind_name(model: str, seed: int) -> str:
    """What an experiment file calls the models of which this is the one with a base seed (`base_name`)."""
    return model.removesuffix(base_name("", seed))


def with_base_models_apart(data: Any) -> Any:
    """The contents of an experiment file with a model for each of ``base_seeds``.

    Blocks of the matrix that name the model get all of them, in the order of the seeds. What has another
    shape than it should is left alone: the checks that follow say what is wrong with it.
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
            raise ValueError(f"{where}: a pretrained model is not made here; leave them out")
        families[name] = [base_name(name, seed) for seed in seeds]
        settings = {key: value for key, value in model.items() if key != "base_seeds"}
        models |= {base_name(name, seed): {**settings, "base_seed": seed} for seed in seeds}
    taken = [name for names in families.values() for name in names if name in data["models"]]
    if taken:
        raise ValueError(f"models.{taken[0]}: is also what base_seeds make; give one of them another name")
    if isinstance(blocks := data.get("matrix"), list):
        data = {**data, "matrix": [_block(block, families) for block in blocks]}
    return {**data, "models": models}


def _are_seeds(seeds: Any) -> bool:
    return isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)


def _block(block: Any, families: Mapping[str, list[str]]) -> Any:
    """A block of the matrix with families in place of their names."""
    names = block.get("models") if isinstance(block, Mapping) else None
    if not isinstance(names, list):
        return block
    whole = [
        item for name in names for item in (families.get(name, [name]) if isinstance(name, str) else [name])
    ]
    return {**block, "models": whole}
