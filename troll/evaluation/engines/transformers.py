"""Loads engines by name, and the engine that decodes with transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from troll.common.errors import UserError
from troll.common.models import check_checkpoint, context_of, in_bfloat16, load_model, precision_beside
from troll.common.tokenizers import saved_tokenizer
from troll.evaluation.engines import Engine, Request, Response
from troll.tasks.prompts import end_ids

ENGINES = ("transformers", "vllm")


def load_engine(
    name: str,
    checkpoint: Path,
    *,
    max_new_tokens: int,
    temperature: float,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Engine:
    """Loads a checkpoint into one of `ENGINES`.

    Args:
        name: the engine.
        checkpoint: directory with model and tokenizer, or the name of a hub model.
        max_new_tokens: longest response in tokens, end of text included.
        temperature: sampling temperature; 0 is greedy.
        device: device for transformers; default CUDA if there is one, else CPU.
        options: arguments of ``vllm.LLM``; for vllm only.
    """
    if name not in ENGINES:
        raise UserError(f"sampling: engine is {name!r}; valid: {', '.join(ENGINES)}")
    check_checkpoint(checkpoint)
    if name == "vllm":
        from troll.evaluation.engines.vllm import VllmEngine

        return VllmEngine(checkpoint, max_new_tokens, temperature, options or {})
    if options:
        raise UserError(
            f"sampling: options {', '.join(options)} are for the engine vllm; transformers has none"
        )
    return TransformersEngine(checkpoint, max_new_tokens, temperature, device)


class TransformersEngine:
    """Decodes with transformers; each response has its own stream of uniform numbers."""

    def __init__(
        self, checkpoint: Path, max_new_tokens: int, temperature: float, device: str | None = None
    ) -> None:
        # Imported late: they take seconds to load, and a call with nothing left to sample needs neither.
        import torch
        from transformers.utils import logging

        logging.disable_progress_bar()
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = saved_tokenizer(checkpoint)
        # As it was trained: a large model that a CPU computes faster in bfloat16.
        bfloat16 = device == "cpu" and in_bfloat16(precision_beside(checkpoint))
        self._model = load_model(checkpoint, dtype=torch.bfloat16 if bfloat16 else "auto").to(device).eval()
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._stop_ids = end_ids(self.tokenizer, self._model.generation_config)
        self.context: int | None = context_of(self._model.config)

    def complete(self, requests: Sequence[Request]) -> list[Response]:
        """See `Engine`."""
        from troll.evaluation.engines.decoding import decode_batch, uniform_stream

        prompts = list(dict.fromkeys(request.prompt for request in requests))
        index = {prompt: position for position, prompt in enumerate(prompts)}
        responses = decode_batch(
            self._model,
            prompts,
            [index[request.prompt] for request in requests],
            np.stack([uniform_stream(request.seed, self._max_new_tokens) for request in requests]),
            temperature=self._temperature,
            stop_ids=self._stop_ids,
        )
        return [Response(tokens, tokens[-1] in self._stop_ids) for tokens in responses]
