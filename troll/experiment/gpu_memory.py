"""Estimates the memory that a run needs on each GPU, before it waits in a queue.

The estimate adds up what this package and TRL 1.16 hold at the same time, in two phases of a rollout batch:

* rollouts: weights and AdamW's moments, and vLLM's share of the card or the cache of `generate`;
* update: weights, moments, gradients, gathered layers, activations, and the output layer's passes.

D is the width of the hidden states (`ModelShape`). With several GPUs everything that FSDP2 shards is divided
by their number (accelerate 1.15, `fsdp2_prepare_model`: weights in float32, computation and reduction in
bfloat16). The trust region and ``keep`` have no part in it: what they add is left to `_OVERHEAD`.
What was measured, and how far the estimate is off, is in docs/cluster.md; constants that nobody has measured
are named so below.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from troll.experiment.model_shapes import ModelShape
from troll.experiment.settings import ENGINE_RESPONSES, Training, Vllm

GIB = 2**30
CARDS = (16, 24, 32, 40, 48, 80, 96, 141, 192)
"""Common GPUs by their nominal memory in GiB."""

_WEIGHTS, _MOMENTS, _GRADIENTS = 4, 8, 4  # bytes a parameter, float32
# A card sold with 80 GB shows 79.2 to 79.6 GiB to programs. CUDA, NCCL, the tensors of a rollout batch and
# what the allocator wastes take a part of that: 2 GiB, our guess.
_USABLE, _OVERHEAD = 0.985, 2.0 * GIB
# Bytes that one layer saves of each token for its backward pass, for each unit of D, of the MLP's width, and
# of the widths of queries and keys without and with a norm on them. Counted by torch's saved_tensors_hooks
# in transformers 5.24 (Llama, Qwen3; attention without its matrix); a test counts them again.
_SAVED = {
    "bfloat16": (16.0, 8.0, 4.1, 10.2),  # FSDP2 with mixed precision
    "autocast": (30.5, 9.5, 5.1, 11.2),  # one GPU with mixed precision: float32 between bfloat16 products
    "float32": (24.0, 16.0, 8.1, 16.2),
}
_STATE_BYTES = {"bfloat16": 2, "autocast": 4, "float32": 4}  # of a layer's input, for each unit of D
# The head's passes: two tiles of 4,096 tokens x 8,192 columns (float32 and 16 bit), and 6 bytes for each
# token and unit of D; measured on an H100 with 8,192 and 32,768 tokens.
_TILES, _HEAD_BYTES = 192 * 2**20, 6
# vLLM outside of weights and cache: three copies of the logits of all sequences in float32, and 1 GiB for
# CUDA graphs and buffers, which stay while it sleeps. Both are our guesses.
_LOGIT_COPIES, _ENGINE = 3, 1.0 * GIB


@dataclass(frozen=True)
class Memory:
    """Memory of one GPU by part, in GiB, in both phases of a rollout batch."""

    rollouts: Mapping[str, float]
    update: Mapping[str, float]
    problem: str = ""  # why vLLM does not start, whatever else is free

    @property
    def needed(self) -> float:
        """The larger sum of the two phases, in GiB."""
        return sum(self.phase.values())

    @property
    def phase(self) -> Mapping[str, float]:
        """The phase that needs more."""
        return max(self.rollouts, self.update, key=lambda parts: sum(parts.values()))

    @property
    def largest(self) -> str:
        """The largest part of that phase."""
        return max(self.phase, key=lambda part: self.phase[part])


def usable(card: float) -> float:
    """Returns the GiB that programs can use of a card with ``card`` GiB."""
    return _USABLE * card


def fits(memory: Memory, card: float) -> bool:
    """Whether a run fits a card with ``card`` GiB, by the estimate."""
    return not memory.problem and memory.needed <= usable(card)


def states_of(memory: Memory) -> float:
    """Returns the GiB of weights, AdamW's moments and gradients, of all models that a run holds."""
    states = ("weights and AdamW", "gradients", "critic", "reference")
    return sum(memory.update.get(part, 0.0) for part in states)


def never_fits(memory: Memory, card: float) -> bool:
    """Whether these states alone, which only more GPUs make smaller, exceed a card."""
    return states_of(memory) > usable(card)


def memory_of(shape: ModelShape, training: Training, card: float, *, critic: bool = False) -> Memory:
    """Estimates a run's memory on GPUs with ``card`` GiB each.

    The card's size only matters for vLLM, whose share is reserved whole. ``critic`` says whether the run
    trains a critic (`troll.experiment.budget.uses_critic`).
    """
    gpus = max(1, training.gpus)
    precision = precision_of(training)
    kept = _kept(shape, training, gpus, critic=critic)
    rollouts = dict(kept)
    update = kept | {"gradients": _GRADIENTS * shape.parameters / gpus}
    passes = _passes(shape, training, precision)
    if critic:
        update["critic"] += _GRADIENTS * shape.backbone_parameters / gpus
        # Its AdamW has no fused kernels and holds one more number a parameter in its step, after the passes.
        step = _WEIGHTS * shape.backbone_parameters / gpus
        update["step of the critic"] = max(0.0, step - sum(passes.values()))
    update |= passes
    problem = ""
    vllm = training.vllm
    if vllm is None:
        rollouts["cache of generate"] = _generate(shape, training, gpus)
    elif vllm.mode == "colocate":
        share = vllm.memory * usable(card) * GIB
        rollouts["vLLM"] = share
        update["vLLM"] = _ENGINE if vllm.sleep else share
        if gpus > 1 and not vllm.sleep:  # the largest weight is gathered to be passed on
            rollouts["gathered weight"] = _WEIGHTS * shape.head_parameters
        problem = _engine_problem(shape, training, vllm, share)
    return Memory(_in_gib(rollouts), _in_gib(update), problem)


def least_card(shape: ModelShape, training: Training, *, critic: bool = False) -> int | None:
    """Returns the smallest of `CARDS` that a run fits; None if it fits none."""
    return next((card for card in CARDS if fits(memory_of(shape, training, card, critic=critic), card)), None)


def helpful_keys(memory: Memory, training: Training) -> str:
    """Returns the keys of an experiment file that would lower the largest part, in words."""
    vllm = training.vllm
    if memory.problem and vllm is not None:
        return "vllm.tensor_parallel, vllm.memory, vllm.max_model_len, gpus"
    if memory.largest == "vLLM":
        return "vllm.memory, vllm.tensor_parallel, gpus"
    if memory.largest in ("activations", "output layer"):
        size = "micro_batch_tokens" if training.micro_batch_tokens else "micro_batches"
        off = ", gradient_checkpointing" if not training.gradient_checkpointing else ""
        return f"{size}{off}, gpus"
    if memory.largest == "cache of generate":
        return "prompts_per_batch, max_response_tokens, vllm"
    if memory.largest == "critic":
        return "gpus, an estimator without a critic"
    return "gpus"


def micro_batch_tokens(training: Training) -> int:
    """Returns the most tokens, padding included, in one forward and backward pass on one GPU."""
    longest = (training.max_prompt_tokens or 0) + training.max_response_tokens
    if training.micro_batch_tokens is not None:
        return max(training.micro_batch_tokens, longest)
    responses = training.prompts_per_batch * training.responses_per_prompt
    return responses // training.mini_batches // max(1, training.gpus) // training.micro_batches * longest


def saved_bytes(shape: ModelShape, precision: str) -> float:
    """Returns the bytes of one token that one layer saves for its backward pass."""
    width, mlp, plain, normed = _SAVED[precision]
    heads = normed if shape.qk_norm else plain
    return (
        width * shape.width
        + mlp * shape.mlp_width * shape.experts_used
        + heads * (shape.query_width + shape.key_width)
    )


def head_bytes(shape: ModelShape, tokens: int, *, weight_bytes: int) -> float:
    """Returns the bytes of the output layer's passes over ``tokens`` tokens, with the weight's gradient."""
    gradient = weight_bytes * shape.head_parameters
    return gradient + _TILES + _HEAD_BYTES * shape.width * tokens


def cache_bytes(shape: ModelShape, number_bytes: int = 2) -> int:
    """Returns the bytes of one token's keys and values in all layers."""
    return 2 * number_bytes * shape.layers * shape.key_width


def precision_of(training: Training) -> str:
    """Returns how a run computes on GPUs: bfloat16 (FSDP2), autocast (one GPU), or float32."""
    if not training.mixed_precision:
        return "float32"
    return "bfloat16" if training.gpus > 1 else "autocast"


def _kept(shape: ModelShape, training: Training, gpus: int, *, critic: bool) -> dict[str, float]:
    """Returns the bytes that are held in both phases."""
    states = _WEIGHTS + _MOMENTS
    kept = {"weights and AdamW": states * shape.parameters / gpus, "CUDA, NCCL and the rest": _OVERHEAD}
    if training.regulariser is not None:  # a frozen copy, in the policy's precision
        kept["reference"] = _WEIGHTS * shape.parameters / gpus
    if critic:
        kept["critic"] = states * shape.backbone_parameters / gpus
    return kept


def _passes(shape: ModelShape, training: Training, precision: str) -> dict[str, float]:
    """Returns the bytes of a forward and backward pass over a micro-batch."""
    tokens, one = micro_batch_tokens(training), saved_bytes(shape, precision)
    if training.gradient_checkpointing:
        inputs = _STATE_BYTES[precision] * shape.width * shape.layers
        activations = (inputs + one) * tokens
    else:
        activations = one * shape.layers * tokens
    parts = {"activations": activations}
    if training.gpus > 1:
        # Layers: two gathered, and of two the gradient and its copy for the reduction. The output layer: the
        # same, but it stays gathered.
        number = 2 if precision == "bfloat16" else 4
        parts["gathered layers"] = 4 * number * shape.layer_parameters
        parts["output layer"] = head_bytes(shape, tokens, weight_bytes=number)
        parts["output layer"] += 2 * number * shape.head_parameters
    else:
        parts["output layer"] = head_bytes(shape, tokens, weight_bytes=4)
        if precision == "autocast":  # autocast keeps its copies of the weights until the end of a pass
            parts["weights in bfloat16"] = 2 * shape.parameters
    return parts


def _generate(shape: ModelShape, training: Training, gpus: int) -> float:
    """Returns the bytes that `generate` of transformers needs for all responses of a rollout batch."""
    responses = training.prompts_per_batch * training.responses_per_prompt / gpus
    longest = (training.max_prompt_tokens or 0) + training.max_response_tokens
    number = 2 if precision_of(training) == "bfloat16" else 4
    return responses * (longest * cache_bytes(shape, number) + 4 * _LOGIT_COPIES * shape.vocabulary)


def _engine_problem(shape: ModelShape, training: Training, vllm: Vllm, share: float) -> str:
    """Returns why vLLM would not start with its share of a card; empty if it starts.

    It must hold the weights in bfloat16, its buffers, and the cache of one sequence of the longest length.
    """
    parallel = vllm.tensor_parallel
    weights = 2 * shape.parameters / parallel
    sequences = min(responses_of_engine(training), ENGINE_RESPONSES)
    buffers = 4 * _LOGIT_COPIES * sequences * shape.vocabulary + _ENGINE
    length = training.longest_sequence or 0  # else the model's context, which is not known here
    sequence = length * cache_bytes(shape) / parallel
    needed = weights + buffers + sequence
    if needed <= share:
        return ""
    return (
        f"vLLM needs {needed / GIB:.1f} GiB of each GPU ({weights / GIB:.1f} for weights) and gets "
        f"{share / GIB:.1f} (vllm.memory {vllm.memory:g})"
    )


def responses_of_engine(training: Training) -> int:
    """Returns the responses of a rollout batch that one vLLM engine samples, all at once (TRL 1.16)."""
    parallel = training.vllm.tensor_parallel if training.vllm else 1
    return training.prompts_per_batch * training.responses_per_prompt * parallel // max(1, training.gpus)


def _in_gib(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: size / GIB for name, size in parts.items()}
