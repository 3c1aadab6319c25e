"""GLM 4: norms around each layer, neighbouring dims rotated in a part of each head, and one array for gate and up."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import register_family

_LAYER = "model.layers.{}"
_NORMS = {
    "attention": "input_layernorm",
    "attention_post": "post_self_attn_layernorm",
    "feed_forward": "post_attention_layernorm",
    "feed_forward_post": "post_mlp_layernorm",
}


@register_family("glm4")
class Glm4(DecoderFamily):
    """GLM 4, of 2025; `model_type` is `glm4`.

    Source: `transformers.Glm4ForCausalLM`.
    """

    architecture = "Glm4ForCausalLM"
    rotates_parts = True
    keys: ClassVar = {**DecoderFamily.keys, "attention_bias": "attention.use_bias"}
    defaults: ClassVar = {
        **DecoderFamily.defaults,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 0.00000015625,
        "max_position_embeddings": 131072,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    }
    fixed: ClassVar = {"norm.placement": "both", "attention.rotates_neighbours": True}
    names: ClassVar = {
        **{path: name for path, name in DecoderFamily.names.items() if "feed_forward" not in path},
        ("layers/{}/feed_forward/gate/kernel", "layers/{}/feed_forward/up/kernel"): f"{_LAYER}.mlp.gate_up_proj.weight",
        "layers/{}/feed_forward/down/kernel": f"{_LAYER}.mlp.down_proj.weight",
        **{f"layers/{{}}/{path}_norm/scale": f"{_LAYER}.{name}.weight" for path, name in _NORMS.items()},
    }

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        found = super().entries(config)
        if config.attention.rotary is not None:  # left out, it would be a half
            found["rope_parameters"]["partial_rotary_factor"] = config.attention.rotary.partial_rotary_factor
        return found
