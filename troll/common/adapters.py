"""Low-rank adapters that are merged into a model's weights, with the same bytes on every machine.

The sum W + scale * B A is formed element by element in float64, term by term in the order of the rank, and
rounded once to the storage type of W. No matrix product is involved, whose order of summation depends on the
processor. PEFT is not needed to merge an adapter that it trained.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.files import read_json

CONFIG, WEIGHTS, FACTS = "adapter_config.json", "adapter_model.safetensors", "adapter.json"
"""Files of an adapter: PEFT's two, and what `troll job adapter` records of it."""
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
}
"""Settings of PEFT that `merge` implements."""


def adapter_files(adapter: Path) -> tuple[str, str]:
    """Returns the names of an adapter's two files; `UserError` if it lacks one."""
    for name in (CONFIG, WEIGHTS):
        if not (adapter / name).is_file():
            raise UserError(f"{adapter}: has no {name}; name a directory that `troll job adapter` wrote")
    return CONFIG, WEIGHTS


def digest_of_tensors(paths: Iterable[Path]) -> str:
    """Returns the SHA-256 of name, type, shape and bytes of all tensors in safetensors files, by name.

    Unlike the digest of a file it does not depend on the order in which a version of safetensors writes.
    """
    import torch
    from safetensors import safe_open

    digest, place = hashlib.sha256(), dict[str, Path]()
    for path in paths:
        with safe_open(path, framework="pt") as tensors:
            place |= dict.fromkeys(tensors.keys(), path)
    for name, path in sorted(place.items()):
        with safe_open(path, framework="pt") as tensors:
            tensor = tensors.get_tensor(name)
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def merge_adapter(adapter: Path, files: Mapping[str, Path], out: Path) -> None:
    """Writes the safetensors files of a model with an adapter merged into them.

    Args:
        adapter: directory with PEFT's adapter_config.json and adapter_model.safetensors.
        files: the model's files by name; others than safetensors are left out.
        out: existing directory.

    Raises:
        UserError: the adapter is incomplete, not plain LoRA, or that of another model.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    scale, factors = _read(adapter)
    left = set(factors)
    for name, path in files.items():
        if not name.endswith(".safetensors"):
            continue
        with safe_open(path, framework="pt") as tensors:
            merged, metadata = {key: tensors.get_tensor(key) for key in tensors.keys()}, tensors.metadata()  # noqa: SIM118 - not a mapping
        for key in left & merged.keys():
            merged[key] = merge(merged[key], *factors[key], scale, f"{adapter}: {key}")
        left -= merged.keys()
        save_file(merged, out / name, metadata)
    if left:
        raise UserError(
            f"{adapter}: the model has no weights {min(left)}; the adapter is that of another model"
        )


def merge(weight: Any, down: Any, up: Any, scale: float, what: str) -> Any:
    """Returns W + scale * B A in the type of W, from W [O, I], A [R, I] (``down``) and B [O, R] (``up``).

    Source: LoRA, arXiv 2106.09685, section 4.1; ``scale`` is alpha / R.
    """
    if weight.shape != (up.shape[0], down.shape[1]) or up.shape[1] != down.shape[0]:
        raise UserError(
            f"{what}: weights of shape {list(weight.shape)} cannot take the product of {list(up.shape)} and "
            f"{list(down.shape)}; the adapter is that of another model"
        )
    change = up.double().new_zeros(weight.shape)
    for rank in range(len(down)):
        change += up[:, rank, None].double() * down[None, rank].double()
    return (weight.double() + scale * change).to(weight.dtype)


def _read(adapter: Path) -> tuple[float, dict[str, tuple[Any, Any]]]:
    """Returns the scale of an adapter, and A and B by the name of the weights that they change."""
    from safetensors.torch import load_file

    adapter_files(adapter)
    config = read_json(adapter / CONFIG)
    for key, value in _PLAIN.items():
        if (config.get(key) or value) != value:
            raise UserError(f"{adapter}/{CONFIG}: {key} is {config[key]!r}; only {value!r} can be merged")
    try:
        tensors = load_file(adapter / WEIGHTS)
    except Exception as error:  # of safetensors, which has no public class for it
        raise UserError(f"{adapter}/{WEIGHTS}: cannot be read ({error})") from None
    names = [name.removesuffix(_A) for name in tensors if name.endswith(_A)]
    pairs = {f"{name.removeprefix(_PREFIX)}.weight": (name + _A, name + _B) for name in names}
    if not pairs or {part for pair in pairs.values() for part in pair} != set(tensors):
        raise UserError(f"{adapter}/{WEIGHTS}: does not hold A and B of low-rank adapters alone")
    scale = config["lora_alpha"] / config["r"]
    return scale, {name: (tensors[a], tensors[b]) for name, (a, b) in pairs.items()}
