"""gpt-oss: experts with biases and limited hidden units, sinks in the scores, and windows in every second layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from keras_dist.interop import Joined, Linear
from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import DecoderFamily, read_layer_types, written_layer_types
from keras_dist.pretrained.families.experts_family import NUMBER, ExpertsFamily
from keras_dist.pretrained.family import Document, register_family

_LAYER, _EXPERTS = "model.layers.{}.mlp", "layers/{}/feed_forward/experts"


@register_family("gpt_oss")
class GptOss(ExpertsFamily):
    """gpt-oss, whose weights are not quantized.

    Source: `transformers.GptOssForCausalLM`.
    """

    architecture = "GptOssForCausalLM"
    keys: ClassVar = {
        **ExpertsFamily.keys,
        "attention_bias": "attention.use_bias",
        "sliding_window": "attention.window",
        "swiglu_alpha": "feed_forward.swiglu_alpha",
        "swiglu_limit": "feed_forward.swiglu_limit",
    }
    defaults: ClassVar = {
        **ExpertsFamily.defaults,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "attention_bias": True,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "num_experts_per_tok": 4,
        NUMBER[0]: 128,
        "rope_theta": 150_000.0,
    }
    rotary: ClassVar = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    fixed: ClassVar = {"attention.has_sinks": True, "experts.use_bias": True}
    handled: ClassVar = (*ExpertsFamily.handled, "layer_types")
    harmless: ClassVar = (*ExpertsFamily.harmless, "experts_per_token", "initial_context_length")
    names: ClassVar = {
        **{path: name for path, name in DecoderFamily.names.items() if "feed_forward/" not in path},
        "layers/{}/attention/sinks": "model.layers.{}.self_attn.sinks",
        (f"{_EXPERTS}_gate", f"{_EXPERTS}_up"): Joined(f"{_LAYER}.experts.gate_up_proj", 2, interleaved=True),
        (f"{_EXPERTS}_gate_bias", f"{_EXPERTS}_up_bias"): Joined(
            f"{_LAYER}.experts.gate_up_proj_bias", 1, interleaved=True
        ),
        f"{_EXPERTS}_down(|_bias)": rf"{_LAYER}.experts.down_proj\1",
        "layers/{}/feed_forward/router": f"{_LAYER}.router.weight",
        "layers/{}/feed_forward/router_bias": f"{_LAYER}.router.bias",
    }
    transform: ClassVar = {**DecoderFamily.transform, ".*/router": Linear()}

    def tables(self, names_in_file: Collection[str]) -> tuple[Mapping[Any, Any], Mapping[str, Any]]:
        return self.names, self.transform  # files have one array for all experts

    def options(self, document: Document) -> dict[str, Any]:
        sliding = read_layer_types(document, lambda layer: layer % 2 == 0)
        biases = {"attention.use_output_bias": document["attention_bias"]}
        return {**super().options(document), **biases, "attention.sliding_layers": sliding}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        return {**super().entries(config), "layer_types": written_layer_types(config)}
