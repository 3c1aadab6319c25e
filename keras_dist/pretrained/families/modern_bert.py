"""ModernBERT: an encoder with rotary positions, gates, and windows in most layers."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.interop import Linear
from keras_dist.pretrained.config import EncoderConfig
from keras_dist.pretrained.families.decoder_family import read_kinds, read_layer_types, written_kinds
from keras_dist.pretrained.families.encoder_family import EncoderFamily
from keras_dist.pretrained.family import Document, dense, layer_norm, register_family

_LAYER, _FEED_FORWARD = "model.layers.{}", "layers/{}/feed_forward"
_PARTS = tuple(f"layers/{{}}/attention/{part}" for part in ("query", "key", "value"))


@register_family("modernbert")
class ModernBert(EncoderFamily):
    """ModernBERT, without a head.

    Source: `transformers.ModernBertModel`.
    """

    architecture = "ModernBertModel"
    keys: ClassVar = {
        **{key: field for key, field in EncoderFamily.keys.items() if key not in ("hidden_act", "layer_norm_eps")},
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_length",
        "hidden_activation": "feed_forward.activation",
        "norm_eps": "norm.epsilon",
        "norm_bias": "norm.center",
        "attention_bias": "attention.use_bias",
        "mlp_bias": "feed_forward.use_bias",
    }
    defaults: ClassVar = {
        "initializer_range": 0.02,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), False),
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    }
    fixed: ClassVar = {"norm.kind": "layer", "norm.skips_first": True, "learned_positions": False, "final_norm": True}
    handled: ClassVar = ("rope_parameters", "layer_types")
    harmless: ClassVar = (
        *("classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias", "deterministic_flash_attn"),
        *("initializer_cutoff_factor", "layer_norm_eps", "position_embedding_type", "reference_compile"),
        *("repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index", "tie_word_embeddings"),
    )
    names: ClassVar = {
        "embedding/tokens/embeddings": "model.embeddings.tok_embeddings.weight",
        **layer_norm("embedding/norm", "model.embeddings.norm"),
        tuple(f"{part}/kernel" for part in _PARTS): f"{_LAYER}.attn.Wqkv.weight",
        tuple(f"{part}/bias" for part in _PARTS): f"{_LAYER}.attn.Wqkv.bias",
        **dense("layers/{}/attention/output", f"{_LAYER}.attn.Wo"),
        (f"{_FEED_FORWARD}/gate/kernel", f"{_FEED_FORWARD}/up/kernel"): f"{_LAYER}.mlp.Wi.weight",
        (f"{_FEED_FORWARD}/gate/bias", f"{_FEED_FORWARD}/up/bias"): f"{_LAYER}.mlp.Wi.bias",
        **dense(f"{_FEED_FORWARD}/down", f"{_LAYER}.mlp.Wo"),
        **layer_norm("layers/{}/attention_norm", f"{_LAYER}.attn_norm"),
        **layer_norm(f"{_FEED_FORWARD}_norm", f"{_LAYER}.mlp_norm"),
        **layer_norm("norm", "model.final_norm"),
    }
    transform: ClassVar = {**EncoderFamily.transform, ".*/feed_forward/gate/kernel": Linear()}
    prefix = "model."

    def positions(self, document: Document) -> dict[str, Any]:
        return read_kinds(document, "global_rope_theta", "local_rope_theta")

    def options(self, document: Document) -> dict[str, Any]:
        step, output = document["global_attn_every_n_layers"], {"attention.use_output_bias": document["attention_bias"]}
        sliding = read_layer_types(document, lambda layer: layer % step > 0)
        windows = {"attention.window": document["local_attention"] // 2 + 1, "attention.sliding_layers": sliding}
        return {**super().options(document), **output, **windows, "pooled_size": None}

    def entries(self, config: EncoderConfig) -> dict[str, Any]:
        width = max(2 * (config.attention.window or 1) - 2, 1)
        return {"architectures": [self.architecture], "local_attention": width, **written_kinds(config)}
