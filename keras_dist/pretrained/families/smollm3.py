"""SmolLM 3: Llama with some layers without rotary embeddings, which may have a window."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.errors import ConfigError
from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import read_layer_types, written_layer_types
from keras_dist.pretrained.families.llama import Llama
from keras_dist.pretrained.family import Document, register_family


@register_family("smollm3")
class SmolLM3(Llama):
    """SmolLM 3.

    Source: `transformers.SmolLM3ForCausalLM`.
    """

    architecture = "SmolLM3ForCausalLM"
    keys: ClassVar = {**Llama.keys, "sliding_window": "attention.window"}
    defaults: ClassVar = {
        **Llama.defaults,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "rope_theta": 2_000_000.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
    }
    handled: ClassVar = (*Llama.handled, "use_sliding_window", "layer_types", "no_rope_layers")
    harmless: ClassVar = ("max_window_layers",)

    def options(self, document: Document) -> dict[str, Any]:
        number, interval = document.get("num_hidden_layers") or 0, document["no_rope_layer_interval"]
        given = document["no_rope_layers"]
        if given is not None and len(given) != number:
            text = f"no_rope_layers must have num_hidden_layers={number} entries, not {len(given)}"
            raise ConfigError("rotary embeddings of other layers", given=text)
        rotated = given or [(layer + 1) % interval for layer in range(number)]
        without = tuple(layer for layer, has_rotary in enumerate(rotated) if not has_rotary)
        window = document["sliding_window"] if document["use_sliding_window"] else None
        sliding = read_layer_types(document, lambda layer: layer in without)
        return {
            **super().options(document),
            "attention.layers_without_rotary": without,
            "attention.window": window if sliding else None,
            "attention.sliding_layers": sliding,
        }

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        heads = config.attention
        return {
            **super().entries(config),
            "no_rope_layers": [int(layer not in heads.layers_without_rotary) for layer in range(config.num_layers)],
            "use_sliding_window": heads.window is not None,
            "layer_types": written_layer_types(config),
        }
