"""Granite 3 and 4 without experts: Llama with factors of embeddings, scores and residual sums, and divided logits."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.llama import Llama
from keras_dist.pretrained.family import register_family


@register_family("granite")
class Granite(Llama):
    """Granite.

    Source: `transformers.GraniteForCausalLM`.
    """

    architecture = "GraniteForCausalLM"
    keys: ClassVar = {
        **Llama.keys,
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_divisor",
    }
    defaults: ClassVar = {
        **Llama.defaults,
        **dict.fromkeys(("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"), 1.0),
    }

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        embeddings = 1.0 if config.embedding_scale is None else config.embedding_scale
        factors = {"embedding_multiplier": embeddings, "attention_multiplier": config.attention.score_scale}
        return {**super().entries(config), **factors}
