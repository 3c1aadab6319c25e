"""Mixtral: Mistral with experts in all layers."""

from __future__ import annotations

from typing import ClassVar

from keras_dist.pretrained.families.experts_family import ExpertsFamily
from keras_dist.pretrained.family import register_family

_LAYER, _EXPERTS = "model.layers.{}.block_sparse_moe", "layers/{}/feed_forward"


@register_family("mixtral")
class Mixtral(ExpertsFamily):
    """Mixtral.

    Source: `transformers.MixtralForCausalLM`.
    """

    architecture = "MixtralForCausalLM"
    keys: ClassVar = {**ExpertsFamily.keys, "sliding_window": "attention.window"}
    defaults: ClassVar = {
        **ExpertsFamily.defaults,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    }
    harmless: ClassVar = (*ExpertsFamily.harmless, "router_jitter_noise")  # in training only
    names: ClassVar = {
        **{path: name for path, name in ExpertsFamily.names.items() if "feed_forward/" not in path},
        f"{_EXPERTS}/experts_gate": f"{_LAYER}.experts.{{}}.w1.weight",
        f"{_EXPERTS}/experts_down": f"{_LAYER}.experts.{{}}.w2.weight",
        f"{_EXPERTS}/experts_up": f"{_LAYER}.experts.{{}}.w3.weight",
        f"{_EXPERTS}/router": f"{_LAYER}.gate.weight",
    }
