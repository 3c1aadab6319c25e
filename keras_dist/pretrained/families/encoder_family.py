"""`EncoderFamily`: the tables that BERT and ViT share."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.interop import Linear
from keras_dist.pretrained.config import EncoderConfig
from keras_dist.pretrained.family import WITH_BIASES, Document, Family, dense, size_of_heads

_LAYER = "encoder.layer.{}"


class EncoderFamily(Family):
    """An encoder with LayerNormalization and biases everywhere."""

    kind: ClassVar = EncoderConfig
    keys: ClassVar = {
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "attention.num_heads",
        "intermediate_size": "feed_forward.size",
        "hidden_act": "feed_forward.activation",
        "layer_norm_eps": "norm.epsilon",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "initializer_range": 0.02}
    fixed: ClassVar = WITH_BIASES
    names: ClassVar = {
        **dense("layers/{}/attention/output", f"{_LAYER}.attention.output.dense"),
        **dense("layers/{}/feed_forward/up", f"{_LAYER}.intermediate.dense"),
        **dense("layers/{}/feed_forward/down", f"{_LAYER}.output.dense"),
        **dense("pooler", "pooler.dense"),
    }
    transform: ClassVar = {
        ".*/attention/(query|key|value)/kernel": Linear(),
        ".*/attention/(query|key|value)/bias": Linear(inputs=0),
        ".*/attention/output/kernel": Linear(inputs=2),
        ".*/feed_forward/(up|down)/kernel": Linear(),
        "pooler/kernel": Linear(),
    }
    unpooled: ClassVar[tuple[str, ...]] = ()
    """Classes of `transformers` without a pooled vector."""

    def options(self, document: Document) -> dict[str, Any]:
        heads, size = document.get("num_attention_heads"), document.get("hidden_size")
        has_pooler = not set(document.get("architectures") or ()) & set(self.unpooled)
        head_dim = size_of_heads(document, "hidden_size", "num_attention_heads")
        found = {"attention.num_kv_heads": heads, "attention.head_dim": head_dim}
        return {**found, "pooled_size": size if has_pooler else None}

    def entries(self, config: EncoderConfig) -> dict[str, Any]:
        known = set(config.extra.get("architectures", ())) & set(self.unpooled)
        return {"architectures": [self.architecture] if config.pooled_size else sorted(known or self.unpooled[:1])}

    def has_prefix(self, config: EncoderConfig) -> bool:
        return config.pooled_size is None and bool(self.unpooled)
