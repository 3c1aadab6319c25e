"""Mistral 7B and what has its form: Llama with a sliding window in all layers."""

from __future__ import annotations

from typing import ClassVar

from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import register_family


@register_family("mistral")
class Mistral(DecoderFamily):
    """Mistral.

    Source: `transformers.MistralForCausalLM`.
    """

    architecture = "MistralForCausalLM"
    keys: ClassVar = {**DecoderFamily.keys, "sliding_window": "attention.window"}
    defaults: ClassVar = {**DecoderFamily.defaults, "sliding_window": 4096}
