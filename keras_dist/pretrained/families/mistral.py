"""Mistral 7B and what has its form: Llama with a sliding window in all layers."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import Document, register_family


@register_family("mistral")
class Mistral(DecoderFamily):
    """Mistral.

    Source: `transformers.MistralForCausalLM`.
    """

    architecture = "MistralForCausalLM"
    defaults: ClassVar = {**DecoderFamily.defaults, "sliding_window": 4096}
    handled: ClassVar = (*DecoderFamily.handled, "sliding_window")

    def options(self, document: Document) -> dict[str, Any]:
        return {**super().options(document), "attention.window": document["sliding_window"]}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        return {**super().entries(config), "sliding_window": config.attention.window}
