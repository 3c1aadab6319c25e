"""Gemma 2: norms around each layer, scaled embeddings, limited scores, and windows in every second layer."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import DecoderFamily, read_layer_types, written_layer_types
from keras_dist.pretrained.family import Document, register_family

_LAYER = "model.layers.{}"


@register_family("gemma2")
class Gemma2(DecoderFamily):
    """Gemma 2.

    Source: `transformers.Gemma2ForCausalLM`.
    """

    architecture = "Gemma2ForCausalLM"
    keys: ClassVar = {
        **{key: field for key, field in DecoderFamily.keys.items() if key != "hidden_act"},
        "hidden_activation": "feed_forward.activation",
        "attn_logit_softcapping": "attention.soft_cap",
        "final_logit_softcapping": "logit_soft_cap",
        "attention_bias": "attention.use_bias",
        "sliding_window": "attention.window",
    }
    defaults: ClassVar = {
        **DecoderFamily.defaults,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar = {"norm.adds_one": True, "norm.placement": "both"}
    only: ClassVar = {"use_bidirectional_attention": (False, None)}
    handled: ClassVar = (*DecoderFamily.handled, "query_pre_attn_scalar", "layer_types")
    harmless: ClassVar = ("hidden_act", "_sliding_window_pattern")
    names: ClassVar = {
        **DecoderFamily.names,
        "layers/{}/attention_post_norm/scale": f"{_LAYER}.post_attention_layernorm.weight",
        "layers/{}/feed_forward_norm/scale": f"{_LAYER}.pre_feedforward_layernorm.weight",
        "layers/{}/feed_forward_post_norm/scale": f"{_LAYER}.post_feedforward_layernorm.weight",
    }

    def options(self, document: Document) -> dict[str, Any]:
        pattern = document["sliding_window_pattern"]
        sliding = read_layer_types(document, lambda layer: (layer + 1) % pattern > 0)
        return {
            **super().options(document),
            "attention.use_output_bias": document["attention_bias"],
            "attention.scale": document["query_pre_attn_scalar"] ** -0.5,
            "attention.sliding_layers": sliding,
            "embedding_scale": math.sqrt(document["hidden_size"]),
        }

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        scalar = round(config.attention.score_scale**-2)
        types = written_layer_types(config)
        return {**super().entries(config), "query_pre_attn_scalar": scalar, "layer_types": types}
