"""Qwen 3 with experts in all or some layers, whose weights may sum to less than 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.experts_family import DENSE, NUMBER, ExpertsFamily, dense_layers, wrong_dense_layers
from keras_dist.pretrained.family import Document, register_family

_LAYER, _EXPERTS = "model.layers.{}.mlp", "layers/{}/feed_forward"


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
        "sliding_window": "attention.window",
    }
    defaults: ClassVar = {
        **ExpertsFamily.defaults,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "attention_bias": False,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "num_experts_per_tok": 8,
        NUMBER[0]: 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        **dict(zip(DENSE, (1, None), strict=True)),
    }
    fixed: ClassVar = {"attention.qk_norm": "head"}
    handled: ClassVar = (*ExpertsFamily.handled, "use_sliding_window")
    harmless: ClassVar = (*ExpertsFamily.harmless, "max_window_layers")
    names: ClassVar = {
        **ExpertsFamily.names,
        f"{_EXPERTS}/experts_(gate|up|down)": rf"{_LAYER}.experts.{{}}.\1_proj.weight",
        f"{_EXPERTS}/router": f"{_LAYER}.gate.weight",
    }

    def options(self, document: Document) -> dict[str, Any]:
        return {
            **super().options(document),
            "attention.use_output_bias": document["attention_bias"],
            **({} if document["use_sliding_window"] else {"attention.window": None}),
            "experts.dense_layers": dense_layers(document),
        }

    def _unsupported(self, document: Document) -> Iterator[str]:
        yield from super()._unsupported(document)
        yield from wrong_dense_layers(document)

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        found = {**super().entries(config), "use_sliding_window": config.attention.window is not None}
        experts = config.experts
        if experts is None:
            return found
        given = {**self.defaults, **config.extra, "num_hidden_layers": config.num_layers}
        is_given = dense_layers(given) == experts.dense_layers
        return found if is_given else {**found, **dict(zip(DENSE, (1, list(experts.dense_layers)), strict=True))}
