"""Ministral: Mistral with a window in some layers. Ministral 3: Mistral with queries that grow with their position."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import read_layer_types, written_layer_types
from keras_dist.pretrained.families.mistral import Mistral
from keras_dist.pretrained.family import Document, register_family

_GROWTH = "llama_4_scaling_beta"
_OWN = (_GROWTH, "max_position_embeddings")
_ROTARY = {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16384}
_ROTARY |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, _GROWTH: 0.1}


@register_family("ministral")
class Ministral(Mistral):
    """Ministral.

    Source: `transformers.MinistralForCausalLM`.
    """

    architecture = "MinistralForCausalLM"
    handled: ClassVar = (*Mistral.handled, "layer_types")

    def options(self, document: Document) -> dict[str, Any]:
        sliding = read_layer_types(document, lambda _: document["sliding_window"] is not None)
        return {**super().options(document), "attention.sliding_layers": sliding}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        return {**super().entries(config), "layer_types": written_layer_types(config)}


@register_family("ministral3")
class Ministral3(Mistral):
    """Ministral 3, without images.

    Source: `transformers.Ministral3ForCausalLM`.
    """

    architecture = "Ministral3ForCausalLM"
    defaults: ClassVar = {
        **Mistral.defaults,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 262144,
        "sliding_window": None,
    }
    rotary: ClassVar = {key: value for key, value in _ROTARY.items() if key != _GROWTH}

    def positions(self, document: Document) -> dict[str, Any]:
        given = {key: document[key] for key in ("rope_parameters", "rope_scaling") if document.get(key)}
        rest = {key: {name: value[name] for name in value if name not in _OWN} for key, value in given.items()}
        growth = next(value.get(_GROWTH) for value in (*given.values(), _ROTARY))
        return {**super().positions({**document, **rest}), "attention.query_growth": growth}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        found = super().entries(config)
        rotary = {**found.get("rope_parameters", {}), _GROWTH: config.attention.query_growth}
        return {**found, "rope_parameters": rotary}
