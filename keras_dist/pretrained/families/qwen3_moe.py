"""Qwen 3 with experts in all or some layers, whose weights may sum to less than 1."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.experts_family import ExpertsFamily
from keras_dist.pretrained.family import Document, register_family

_LAYER, _EXPERTS = "model.layers.{}.mlp", "layers/{}/feed_forward"
_WINDOW = ("use_sliding_window", "sliding_window")
_DENSE = ("decoder_sparse_step", "mlp_only_layers")
_NUMBER = ("num_local_experts", "num_experts")
"""Names of one entry: `transformers` 5.24 writes the first, and earlier ones the second."""


@register_family("qwen3_moe")
class Qwen3Moe(ExpertsFamily):
    """Qwen 3 with experts.

    Source: `transformers.Qwen3MoeForCausalLM`.
    """

    architecture = "Qwen3MoeForCausalLM"
    keys: ClassVar = {
        **ExpertsFamily.keys,
        "attention_bias": "attention.use_bias",
        "moe_intermediate_size": "experts.units",
        "norm_topk_prob": "experts.normalize",
    }
    defaults: ClassVar = {
        **ExpertsFamily.defaults,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "attention_bias": False,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "num_experts_per_tok": 8,
        **dict.fromkeys(_NUMBER),
        **dict(zip(_WINDOW, (False, 4096), strict=True)),
        **dict(zip(_DENSE, (1, None), strict=True)),
    }
    fixed: ClassVar = {"attention.qk_norm": "head"}
    handled: ClassVar = (*ExpertsFamily.handled, *_NUMBER, *_WINDOW)
    harmless: ClassVar = (*ExpertsFamily.harmless, "max_window_layers")
    names: ClassVar = {
        **ExpertsFamily.names,
        f"{_EXPERTS}/experts_(gate|up|down)": rf"{_LAYER}.experts.{{}}.\1_proj.weight",
        f"{_EXPERTS}/router": f"{_LAYER}.gate.weight",
    }

    def options(self, document: Document) -> dict[str, Any]:
        count = next((document[name] for name in _NUMBER if document[name] is not None), 128)
        return {
            **super().options(document),
            "attention.use_output_bias": document["attention_bias"],
            "attention.window": document["sliding_window"] if document["use_sliding_window"] else None,
            "experts.num_experts": count,
            "experts.dense_layers": _dense_layers(document),
        }

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        experts, window = config.experts, config.attention.window
        found = {**super().entries(config), **dict(zip(_WINDOW, (window is not None, window), strict=True))}
        if experts is None:
            return found
        found |= dict.fromkeys(_NUMBER, experts.num_experts)
        given = {**self.defaults, **config.extra, "num_hidden_layers": config.num_layers}
        is_given = _dense_layers(given) == experts.dense_layers
        return found if is_given else {**found, **dict(zip(_DENSE, (1, list(experts.dense_layers)), strict=True))}


def _dense_layers(document: Document) -> tuple[int, ...]:
    step, dense = (document[name] for name in _DENSE)
    layers = document.get("num_hidden_layers")
    return tuple(layer for layer in range(layers or 0) if (layer + 1) % step or layer in (dense or ()))
