"""Qwen 2, 2.5 and 3: Llama with biases or normalized queries and keys, and a window in the last layers."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import DecoderFamily, read_layer_types, written_layer_types
from keras_dist.pretrained.family import Document, register_family


@register_family("qwen2")
class Qwen2(DecoderFamily):
    """Qwen 2 and 2.5.

    Source: `transformers.Qwen2ForCausalLM`.
    """

    architecture = "Qwen2ForCausalLM"
    keys: ClassVar = {**DecoderFamily.keys, "sliding_window": "attention.window"}
    defaults: ClassVar = {
        **DecoderFamily.defaults,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
    fixed: ClassVar = {"attention.use_bias": True}
    handled: ClassVar = (*DecoderFamily.handled, "use_sliding_window", "layer_types")

    def options(self, document: Document) -> dict[str, Any]:
        window = document["sliding_window"] if document["use_sliding_window"] else None
        sliding = read_layer_types(document, lambda layer: layer >= document["max_window_layers"])
        window = window if sliding else None
        return {**super().options(document), "attention.window": window, "attention.sliding_layers": sliding}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        uses = config.attention.window is not None
        return {**super().entries(config), "use_sliding_window": uses, "layer_types": written_layer_types(config)}


@register_family("qwen3")
class Qwen3(Qwen2):
    """Qwen 3.

    Source: `transformers.Qwen3ForCausalLM`.
    """

    architecture = "Qwen3ForCausalLM"
    keys: ClassVar = {**Qwen2.keys, "attention_bias": "attention.use_bias"}
    defaults: ClassVar = {**Qwen2.defaults, "attention_bias": False, "head_dim": 128}
    fixed: ClassVar = {"attention.qk_norm": "head"}

    def options(self, document: Document) -> dict[str, Any]:
        return {**super().options(document), "attention.use_output_bias": document["attention_bias"]}
