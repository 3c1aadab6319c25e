"""Qwen 3 with experts in all or some layers, whose weights may sum to less than 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.experts_family import DENSE, NUMBER, ExpertsFamily, dense_layers, wrong_dense_layers
from keras_dist.pretrained.family import Document, register_family

_LAYER, _EXPERTS = "model.layers.{}.mlp", "layers/{}/feed_forward"
_WINDOW = ("use_sliding_window", "sliding_window")


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
        **dict.fromkeys(NUMBER),
        **dict(zip(_WINDOW, (False, 4096), strict=True)),
        **dict(zip(DENSE, (1, None), strict=True)),
    }
    fixed: ClassVar = {"attention.qk_norm": "head"}
    handled: ClassVar = (*ExpertsFamily.handled, *NUMBER, *_WINDOW)
    harmless: ClassVar = (*ExpertsFamily.harmless, "max_window_layers")
    names: ClassVar = {
        **ExpertsFamily.names,
        f"{_EXPERTS}/experts_(gate|up|down)": rf"{_LAYER}.experts.{{}}.\1_proj.weight",
        f"{_EXPERTS}/router": f"{_LAYER}.gate.weight",
    }

    def options(self, document: Document) -> dict[str, Any]:
        count = next((document[name] for name in NUMBER if document[name] is not None), 128)
        return {
            **super().options(document),
            "attention.use_output_bias": document["attention_bias"],
            "attention.window": document["sliding_window"] if document["use_sliding_window"] else None,
            "experts.num_experts": count,
            "experts.dense_layers": dense_layers(document),
        }

    def _unsupported(self, document: Document) -> Iterator[str]:
        yield from super()._unsupported(document)
        yield from wrong_dense_layers(document)

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        experts, window = config.experts, config.attention.window
        found = {**super().entries(config), **dict(zip(_WINDOW, (window is not None, window), strict=True))}
        if experts is None:
            return found
        found |= dict.fromkeys(NUMBER, experts.num_experts)
        given = {**self.defaults, **config.extra, "num_hidden_layers": config.num_layers}
        is_given = dense_layers(given) == experts.dense_layers
        return found if is_given else {**found, **dict(zip(DENSE, (1, list(experts.dense_layers)), strict=True))}
