"""Llama 1, 2 and 3, and what has their form."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import Document, register_family


@register_family("llama")
class Llama(DecoderFamily):
    """Llama.

    Source: `transformers.LlamaForCausalLM`.
    """

    architecture = "LlamaForCausalLM"
    keys: ClassVar = {**DecoderFamily.keys, "attention_bias": "attention.use_bias", "mlp_bias": "feed_forward.use_bias"}
    defaults: ClassVar = {**DecoderFamily.defaults, "attention_bias": False, "mlp_bias": False}

    def options(self, document: Document) -> dict[str, Any]:
        return {**super().options(document), "attention.use_output_bias": document["attention_bias"]}
