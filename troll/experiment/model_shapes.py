"""Sizes of a pretrained model, known before anything is loaded: for estimates of memory, time and disk."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from troll.common.errors import UserError
from troll.common.hub import config_of
from troll.experiment.model_settings import Hub, Wheel

# Families with a norm on queries and keys, with a bias on them, and without a gate in the MLP (transformers).
_QK_NORM = ("qwen3", "apertus")
_QKV_BIAS = ("qwen2",)
_NO_GATE = ("apertus",)


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer."""

    layers: int
    width: int  # D, of the hidden states
    query_width: int  # of all attention heads together
    key_width: int  # of all heads for keys together; values have as many
    mlp_width: int  # of one expert
    vocabulary: int  # V
    tied: bool  # whether embedding and output layer share their weight
    gated: bool = True
    qk_norm: bool = False
    qkv_bias: bool = False
    experts: int = 1
    experts_used: int = 1  # for each token

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer; norms of queries and keys, a few hundred numbers, are left out."""
        attention = 2 * self.width * (self.query_width + self.key_width)
        bias = self.query_width + 2 * self.key_width if self.qkv_bias else 0
        mlp = (3 if self.gated else 2) * self.width * self.mlp_width * self.experts
        router = self.width * self.experts if self.experts > 1 else 0
        return attention + bias + mlp + router + 2 * self.width

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer, and of the embedding."""
        return self.vocabulary * self.width

    @property
    def backbone_parameters(self) -> int:
        """Parameters without the output layer: those of a critic that starts as the policy."""
        return self.layers * self.layer_parameters + self.width + self.head_parameters

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return self.backbone_parameters + (0 if self.tied else self.head_parameters)


def shape_of_config(config: Mapping[str, Any]) -> ModelShape:
    """Returns the sizes that a transformers config.json states.

    Raises:
        LookupError, TypeError, ValueError: it is not the configuration of a decoder-only transformer.
    """
    config = config.get("text_config") or config
    family, width = config["model_type"], int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    head = int(config.get("head_dim") or width // heads)
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
    mlp = config.get("moe_intermediate_size") if experts > 1 else None
    return ModelShape(
        layers=int(config["num_hidden_layers"]),
        width=width,
        query_width=heads * head,
        key_width=int(config.get("num_key_value_heads") or heads) * head,
        mlp_width=int(mlp or config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        gated=not family.startswith(_NO_GATE),
        qk_norm=family.startswith(_QK_NORM),
        qkv_bias=family.startswith(_QKV_BIAS) or bool(config.get("attention_bias")),
        experts=experts,
        experts_used=int(config.get("num_experts_per_tok") or 1),
    )


@cache
def _public() -> Mapping[str, ModelShape]:
    rows = yaml.safe_load(files("troll.experiment").joinpath("model_shapes.yaml").read_text(encoding="utf-8"))
    return {model_id: shape_of_config(row["config"]) for row in rows for model_id in row["ids"]}


def typical_shape(billions: float) -> ModelShape:
    """Returns usual sizes of a model of which only the number of parameters is known, which they have.

    128 units of width for each layer, as many keys as a quarter of the queries, and a vocabulary of 128 Ki.
    """
    layers = max(2, round((1e9 * billions / 12 / 128**2) ** (1 / 3)))
    width = 128 * layers
    vocabulary = max(1, min(2**17, int(1e9 * billions / width / 4)))
    rest = 1e9 * billions - 2 * vocabulary * width
    mlp = max(1, round((rest / layers - 2.5 * width**2) / 3 / width))
    return ModelShape(layers, width, width, width // 4, mlp, vocabulary, tied=False)


def shape_of(source: Hub | Wheel | None) -> ModelShape | None:
    """Returns a pretrained model's sizes without downloading anything; None if they are not known here.

    They come from its config.json in the mirror or in the hub's cache, else from model_shapes.yaml. A model
    from a wheel is looked up by the name of its file.
    """
    if isinstance(source, Wheel):
        name = source.file.rpartition("/")[2].partition(".")[0]
        return next((shape for key, shape in _public().items() if key.endswith(f"/{name}")), None)
    if source is None:
        return None
    try:
        if (path := config_of(source.id)) is not None:
            return shape_of_config(json.loads(path.read_text(encoding="utf-8")))
    except (UserError, OSError, LookupError, TypeError, ValueError, AttributeError):
        pass  # whatever loads the model reports what is wrong with the file
    return _public().get(source.id)
