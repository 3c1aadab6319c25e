"""Gemma 3 without images: Gemma 2 with normalized queries and keys, and two rotary embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from keras_dist.errors import ConfigError, shorten
from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.gemma2 import Gemma2
from keras_dist.pretrained.family import Document, read_rotary, register_family, written_rotary

_KINDS = ("full_attention", "sliding_attention")


@register_family("gemma3_text")
class Gemma3Text(Gemma2):
    """Gemma 3, without images.

    Source: `transformers.Gemma3ForCausalLM`.
    """

    architecture = "Gemma3ForCausalLM"
    keys: ClassVar = {key: field for key, field in Gemma2.keys.items() if key != "attn_logit_softcapping"}
    defaults: ClassVar = {
        **Gemma2.defaults,
        "final_logit_softcapping": None,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    }
    fixed: ClassVar = {**Gemma2.fixed, "attention.qk_norm": "head"}
    harmless: ClassVar = (*Gemma2.harmless, "attn_logit_softcapping")  # ignored by transformers
    handled: ClassVar = (*Gemma2.handled, "rope_local_base_freq")

    def positions(self, document: Document) -> dict[str, Any]:
        nested = document.get("rope_parameters") or {}
        flat = sorted(nested.keys() - set(_KINDS))
        if flat and not all(map(nested.get, _KINDS)):  # transformers ignores these, and rotates by its defaults
            given = f"rope_parameters has {', '.join(flat)} outside of {' and '.join(_KINDS)}"
            raise ConfigError("rotary embeddings of no kind of layer", given=given)
        wrong = {kind: value for kind, value in nested.items() if not isinstance(value, Mapping | None)}
        if wrong:
            given = f"rope_parameters={shorten(wrong)} must be a dict of dicts"
            raise ConfigError("rotary embeddings that are not dicts", given=given)
        full = {**document, "rope_parameters": nested.get("full_attention")}
        local = nested.get("sliding_attention") or {"rope_theta": document["rope_local_base_freq"]}
        return {**super().positions(full), "attention.sliding_rotary": read_rotary(document, local)}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        rotaries = {"full_attention": config.attention.rotary, "sliding_attention": config.attention.sliding_rotary}
        parameters = {kind: written_rotary(rotary) for kind, rotary in rotaries.items() if rotary is not None}
        return {**super().entries(config), "rope_parameters": parameters}
