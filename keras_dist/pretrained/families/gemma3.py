"""Gemma 3 without images: Gemma 2 with normalized queries and keys, and two rotary embeddings."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import rotary_by_kind, written_kinds
from keras_dist.pretrained.families.gemma2 import Gemma2
from keras_dist.pretrained.family import Document, read_rotary, register_family


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
        of_full, of_sliding = rotary_by_kind(document)
        full = {**document, "rope_parameters": of_full}
        local = of_sliding or {"rope_theta": document["rope_local_base_freq"]}
        return {**super().positions(full), "attention.sliding_rotary": read_rotary(document, local)}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        return {**super().entries(config), **written_kinds(config)}
