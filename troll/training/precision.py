"""Whether a large model is computed in bfloat16 on a processor: measured once per model and machine.

Some processors multiply bfloat16 several times as fast as float32 (AMX), others hardly faster or slower
(AVX512-BF16 with its conversions), so it is measured. The manifest of the base model records the decision, so
that all runs from it, and all samples of them, are computed alike, wherever they are resumed.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from troll.common.digests import sha256_of_file
from troll.common.models import PRECISION, parameters_of, text_config
from troll.common.processor import LARGE, first_processor, processor_name
from troll.common.progress import say
from troll.training.model_cache import cached

GAIN = 1.5
"""Smallest speed-up for which bfloat16 is used."""
_FLAGS = ("amx_bf16", "avx512_bf16")
_LAYERS, _ROWS, _TOKENS, _VOCABULARY, _REPEATS = 2, 8, 112, 1024, 3


def precision_of(files: Mapping[str, Path]) -> dict[str, Any]:
    """Returns the manifest entries of a base model's precision; empty for small models and with a GPU.

    ``bfloat16`` is the decision; ``float32_s`` and ``bfloat16_s`` are the processor seconds of a forward and
    backward pass of two of the model's layers, if it was measured.
    """
    if torch.cuda.is_available() or parameters_of(files.values()) < LARGE:
        return {}
    if not set(_FLAGS) & set(first_processor().get("flags", "").split()):
        return {PRECISION: {"bfloat16": False}}
    config = files["config.json"]
    identity = {
        "config": sha256_of_file(config),
        "processor": processor_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    kept = cached("precision", identity, lambda _: measure(config))
    return {PRECISION: kept.made if kept is not None else measure(config)}


def measure(config: Path) -> dict[str, Any]:
    """Measures both precisions with two layers of a model, given its config.json; see `precision_of`."""
    from transformers import AutoConfig, AutoModel

    settings = AutoConfig.from_pretrained(config)
    text = text_config(settings)
    text.num_hidden_layers = min(_LAYERS, text.num_hidden_layers)
    text.vocab_size, text.pad_token_id = _VOCABULARY, None
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[: text.num_hidden_layers]
    state = torch.get_rng_state()
    try:
        model = AutoModel.from_config(text, dtype=torch.float32)
    except Exception as error:  # each architecture has its own conditions on its settings
        say(f"[base] {text.model_type}: not measured in bfloat16 ({error}); float32 is used")
        return {"bfloat16": False}
    finally:
        torch.set_rng_state(state)
    seconds = {name: _seconds(model, name == "bfloat16_s") for name in ("float32_s", "bfloat16_s")}
    return {"bfloat16": seconds["float32_s"] >= GAIN * seconds["bfloat16_s"], **seconds}


def _seconds(model: Any, bfloat16: bool) -> float:
    """Processor seconds of the fastest of some passes; they change little with what else the machine does."""
    ids = torch.arange(_ROWS * _TOKENS).view(_ROWS, _TOKENS) % _VOCABULARY
    taken = []
    for _ in range(_REPEATS):
        start = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16) if bfloat16 else nullcontext():
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        states.last_hidden_state.float().sum().backward()
        taken.append(time.process_time() - start)
    return min(taken)
