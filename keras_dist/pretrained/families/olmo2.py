"""OLMo 2: norms after attention and feed-forward network, and over all heads of queries and keys."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import Document, register_family


@register_family("olmo2")
class Olmo2(DecoderFamily):
    """OLMo 2.

    Source: `transformers.Olmo2ForCausalLM`.
    """

    architecture = "Olmo2ForCausalLM"
    keys: ClassVar = {**DecoderFamily.keys, "attention_bias": "attention.use_bias"}
    defaults: ClassVar = {**DecoderFamily.defaults, "rms_norm_eps": 1e-5, "attention_bias": False}
    fixed: ClassVar = {"norm.placement": "after", "attention.qk_norm": "all"}
    names: ClassVar = {
        **DecoderFamily.names,
        "layers/{}/attention_post_norm/scale": "model.layers.{}.post_attention_layernorm.weight",
        "layers/{}/feed_forward_post_norm/scale": "model.layers.{}.post_feedforward_layernorm.weight",
    }

    def options(self, document: Document) -> dict[str, Any]:
        return {**super().options(document), "attention.use_output_bias": document["attention_bias"]}
