"""Estimates the seconds of a rollout batch on GPUs, from what was published and measured.

Three parts: sampling (with rewards and validation), scoring by the old policy, and the update.

* Update: the published seconds of Qwen3-4B on four GPUs (85.1 with clip, 92.9 with TROLL, 2,048 responses of
  up to 4,096 tokens), in proportion to parameters, responses and longest response. What they contain is not
  said. Taken for a whole rollout batch they contradict the paper's time axes (770 s for Qwen3-8B); taken for
  the update they agree with them.
* Scoring: a quarter of clip's update, as a forward pass is a quarter of forward, recomputation and backward.
* Sampling by vLLM: what remains of the paper's time axes, in proportion to the longest response: 517 s and
  9.6 s for each 10^9 parameters, a least-squares line through the models of 1.7, 8 and 14 * 10^9. With the
  other two parts it gives 581, 815 and 1,052 s where the axes show about 600, 770 and 1,070. The axes include
  rewards, and validation every ten batches on 5,392 problems (DAPO Eval and MATH Eval, as paper.yaml has
  them), which is taken to be sampled as fast: 19 % of these seconds. The card is not known.
* Sampling by transformers: tokens one after another, each a pass through all layers that waits for the
  launches of its kernels. Their number was counted, and each takes 10.9 microseconds, as small launches do on
  an H100 (results/released/gpu). With bfloat16 weights, 56 launches in each layer of Qwen3, that is 0.61 ms a
  layer, as in Qwen's speed benchmark: 58.6, 59.8, 45.9, 45.3 tokens/s for 0.6, 1.7, 4, 8 * 10^9 parameters
  with 28, 28, 36, 36 layers (transformers 4.51, an H20, one sequence).
* Where kernels are small, the launches of their passes bound scoring and update too: in a step of Qwen3-0.6B
  on that H100 there were 3,139, twice those of a forward pass.

The result is right within a factor (`Seconds.spread`) at best.
"""

from dataclasses import dataclass
from math import ceil

from troll.experiment.gpu_memory import precision_of
from troll.experiment.model_shapes import ModelShape, typical_shape
from troll.experiment.published import read_published
from troll.experiment.settings import Training

_PUBLISHED_BILLIONS, _PUBLISHED_GPUS, _PUBLISHED_RESPONSES, _PUBLISHED_TOKENS = 4.02, 4, 256 * 8, 4096
_SCORING = 0.25
_AXES_S, _AXES_S_PER_BILLION = 517.0, 9.6
# Share of a token's time that a single sequence takes: 0.15 * 417 s / 4,096 tokens = 15 ms. Our guess.
_ALONE = 0.15
_AXES_VALIDATED, _AXES_VALIDATE_EVERY = 5392, 10
# Kernels that one layer launches for a token, without and with a norm on queries and keys: counted in
# transformers 5.24 (Llama, Qwen3); a test counts them again. Precisions are those of `precision_of`.
_LAUNCHES = {"bfloat16": (40, 56), "autocast": (50, 66), "float32": (36, 48)}
_LAUNCH_S = 1.09e-5
# Weights in float32 that each token reads, and the layers that FSDP gathers for it; both are our guesses.
_READ_BYTES_PER_S, _GATHERED_BYTES_PER_S = 1.5e12, 1.0e11
START_S = 10.0
"""Seconds to load a model, which is our guess."""
_VLLM_SPREAD, _GENERATE_SPREAD = 1.7, 2.0


@dataclass(frozen=True)
class Seconds:
    """Seconds of one rollout batch, and of what a run does besides."""

    sampling: float
    scoring: float
    update: float
    validation: float  # averaged over rollout batches
    spread: float  # factor within which the sum is expected to be right

    @property
    def batch(self) -> float:
        """Seconds of a rollout batch."""
        return self.sampling + self.scoring + self.update + self.validation


def step_seconds() -> dict[str, float]:
    """Returns the published seconds of a step of Qwen3-4B on four GPUs, for clip and troll."""
    rows = [row for row in read_published() if row["metric"] == "step_runtime_s"]
    return {str(row["method"]).lower(): float(row["value"]) for row in rows}


def batch_seconds(
    training: Training,
    billions: float,
    *,
    projected: bool,
    critic: bool = False,
    shape: ModelShape | None = None,
    validation: int = 0,
) -> Seconds:
    """Estimates the time of a rollout batch of a model with ``billions`` * 10^9 parameters.

    ``projected``: whether the trust region projects; ``shape``: its sizes, usual ones if unknown;
    ``validation`` counts the responses of each validation.
    """
    forward = pass_seconds(shape or typical_shape(billions), precision_of(training))
    gpus = max(1, training.gpus)
    responses = training.prompts_per_batch * training.responses_per_prompt
    scale = billions / _PUBLISHED_BILLIONS * _PUBLISHED_GPUS / gpus
    scale *= responses / _PUBLISHED_RESPONSES * training.max_response_tokens / _PUBLISHED_TOKENS
    seconds = step_seconds()
    models = 2 if critic else 1
    # Forward, recomputation where activations are not kept, and backward, with as many launches as forward.
    passes = (3 if training.gradient_checkpointing else 2) * training.steps_per_batch * training.micro_batches
    update = seconds["troll" if projected else "clip"] * scale * training.num_iterations
    update = max(update, passes * forward)
    scorings = models + (1 if training.regulariser is not None else 0)
    scoring = max(_SCORING * seconds["clip"] * scale, forward)
    validations = (
        1 + ceil(training.rollout_batches / training.validate_every) if training.validate_every else 0
    )
    per_batch = validations / training.rollout_batches
    if training.vllm is not None:
        one = _vllm_seconds(training, billions)
        sampling = one * _load(responses / gpus)
        validated = one * _load(validation / gpus) * per_batch if validation else 0.0
        return Seconds(sampling, scorings * scoring, models * update, validated, _VLLM_SPREAD)
    sampling = _generate_seconds(training, billions, forward)
    validated = sampling * ceil(validation / responses) * per_batch
    return Seconds(sampling, scorings * scoring, models * update, validated, _GENERATE_SPREAD)


def run_seconds(training: Training, seconds: Seconds) -> float:
    """Returns the seconds of a whole run, without evaluation of its last checkpoint."""
    return seconds.batch * training.rollout_batches + START_S


def pass_seconds(shape: ModelShape, precision: str) -> float:
    """Returns the seconds that the launches of a forward pass take."""
    return shape.layers * _LAUNCHES[precision][shape.qk_norm] * _LAUNCH_S


def _vllm_seconds(training: Training, billions: float) -> float:
    """Returns the seconds in which vLLM samples as many responses on one GPU as the paper does (512)."""
    with_validation = _AXES_S + _AXES_S_PER_BILLION * billions
    validation = _load(_AXES_VALIDATED / _PUBLISHED_GPUS) / _AXES_VALIDATE_EVERY
    return with_validation / (1 + validation) * training.max_response_tokens / _PUBLISHED_TOKENS


def _load(responses: float) -> float:
    """Returns how much longer than the paper's batch vLLM takes for this many responses on one GPU."""
    return _ALONE + (1 - _ALONE) * responses / (_PUBLISHED_RESPONSES / _PUBLISHED_GPUS)


def _generate_seconds(training: Training, billions: float, forward: float) -> float:
    """Returns the seconds in which transformers sample a batch of responses on one GPU."""
    token = max(forward, 4e9 * billions / _READ_BYTES_PER_S)
    if training.gpus > 1:
        token += 2e9 * billions / _GATHERED_BYTES_PER_S
    return token * training.max_response_tokens
