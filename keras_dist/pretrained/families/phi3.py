"""Phi 3 and 4: Llama with one array for query, key and value, and one for the gate and the hidden units."""

from __future__ import annotations

from typing import ClassVar

from keras_dist.interop import Joined
from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import register_family

_LAYER = "model.layers.{}"
_PARTS = tuple(f"layers/{{}}/attention/{part}/kernel" for part in ("query", "key", "value"))


@register_family("phi3")
class Phi3(DecoderFamily):
    """Phi 3 and 4.

    Source: `transformers.Phi3ForCausalLM`.
    """

    architecture = "Phi3ForCausalLM"
    rotates_parts = True
    keys: ClassVar = {**DecoderFamily.keys, "sliding_window": "attention.window"}
    defaults: ClassVar = {
        **DecoderFamily.defaults,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "sliding_window": None,
    }
    only: ClassVar = dict.fromkeys(("attention_bias", "mlp_bias", "lm_head_bias"), (False,))
    harmless: ClassVar = ("original_max_position_embeddings", "full_attn_mod", "interpolate_factor")
    names: ClassVar = {
        **{path: name for path, name in DecoderFamily.names.items() if not path.endswith("/kernel")},
        _PARTS: Joined(f"{_LAYER}.self_attn.qkv_proj.weight", axis=0),
        "layers/{}/attention/output/kernel": f"{_LAYER}.self_attn.o_proj.weight",
        ("layers/{}/feed_forward/gate/kernel", "layers/{}/feed_forward/up/kernel"): f"{_LAYER}.mlp.gate_up_proj.weight",
        "layers/{}/feed_forward/down/kernel": f"{_LAYER}.mlp.down_proj.weight",
        "head/kernel": "lm_head.weight",
    }
