"""The vLLM engine, for models that transformers samples too slowly or not at all.

vLLM pins package versions that conflict with the rest of the workflow, so it has its own environment
(`make vllm`). Of this package's dependencies, sampling needs only typer, pydantic and PyYAML there.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.common.models import loading_error
from troll.common.tokenizers import fix_date
from troll.evaluation.engines import Request, Response
from troll.tasks.prompts import end_ids, until_end


class VllmEngine:
    """Decodes with ``vllm.LLM``.

    Every request has its own seed, so batches and interruptions change nothing, up to the rounding of sums,
    whose order in vLLM depends on the rest of the batch.
    """

    def __init__(
        self, checkpoint: Path, max_new_tokens: int, temperature: float, options: Mapping[str, Any]
    ) -> None:
        try:
            vllm = importlib.import_module("vllm")
        except ImportError:
            raise UserError(
                "vllm: not installed here; `make vllm` installs it into .venv-vllm; call .venv-vllm/bin/troll"
            ) from None
        self._vllm = vllm
        reserved = {"model", "seed"} & set(options)
        if reserved:
            raise UserError(f"sampling: engine option {reserved.pop()!r} is set by troll; leave it out")
        try:
            self._model = vllm.LLM(model=str(checkpoint), seed=0, **options)
        except (OSError, ValueError, TypeError) as error:
            raise loading_error(checkpoint, error) from None
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self.tokenizer: Any = fix_date(self._model.get_tokenizer())
        self.context: int | None = self._model.llm_engine.model_config.max_model_len
        self._stop_ids = end_ids(self.tokenizer, _generation_config(checkpoint, options.get("revision")))

    def complete(self, requests: Sequence[Request]) -> list[Response]:
        """See `troll.evaluation.engines.Engine`."""
        # Overrides all that a model's generation_config may set, to sample from the same distribution as
        # the transformers engine.
        parameters = [
            self._vllm.SamplingParams(
                seed=request.seed,
                temperature=self._temperature,
                top_p=1.0,
                top_k=0,
                min_p=0.0,
                repetition_penalty=1.0,
                max_tokens=self._max_new_tokens,
                stop_token_ids=self._stop_ids,
                detokenize=False,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": list(request.prompt)} for request in requests]
        found = self._model.generate(prompts, parameters, use_tqdm=False)
        return [self._response(item.outputs[0]) for item in found]

    def _response(self, output: Any) -> Response:
        tokens = until_end(output.token_ids, self._stop_ids)
        ended = bool(tokens) and tokens[-1] in self._stop_ids
        return Response(tokens, ended or output.finish_reason == "stop")


def _generation_config(checkpoint: Path, revision: str | None) -> Any:
    """Returns the generation configuration that transformers would load with the model."""
    from transformers import AutoConfig, GenerationConfig

    where = {} if revision is None else {"revision": revision}
    try:
        return GenerationConfig.from_pretrained(checkpoint, **where)
    except OSError:  # no such file: transformers derives it from the model's configuration
        return GenerationConfig.from_model_config(AutoConfig.from_pretrained(checkpoint, **where))
