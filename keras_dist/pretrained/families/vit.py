"""ViT: patches of images after a learned first vector."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.interop import Permute, Reshape
from keras_dist.pretrained.config import EncoderConfig
from keras_dist.pretrained.families.encoder_family import EncoderFamily
from keras_dist.pretrained.family import Document, dense, layer_norm, prefixed, register_family

_LAYER = "encoder.layer.{}"


@register_family("vit")
class ViT(EncoderFamily):
    """ViT, without a classifier.

    Source: `transformers.ViTModel`.
    """

    architecture = "ViTModel"
    keys: ClassVar = {
        **EncoderFamily.keys,
        "image_size": "image_size",
        "patch_size": "patch_size",
        "num_channels": "channels",
        "qkv_bias": "attention.use_bias",
        "pooler_act": "pooled_activation",
    }
    defaults: ClassVar = {
        **EncoderFamily.defaults,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "encoder_stride": 16,
        "pooler_output_size": None,
        "pooler_act": "tanh",
    }
    fixed: ClassVar = {
        **{field: value for field, value in EncoderFamily.fixed.items() if field != "attention.use_bias"},
        "final_norm": True,
    }
    names: ClassVar = prefixed(
        "vit.",
        {
            **EncoderFamily.names,
            "embedding/first": "embeddings.cls_token",
            "embedding/positions": "embeddings.position_embeddings",
            **dense("embedding/patches", "embeddings.patch_embeddings.projection"),
            **dense("layers/{}/attention/(query|key|value)", rf"{_LAYER}.attention.attention.\1"),
            **layer_norm("layers/{}/attention_norm", f"{_LAYER}.layernorm_before"),
            **layer_norm("layers/{}/feed_forward_norm", f"{_LAYER}.layernorm_after"),
            **layer_norm("norm", "layernorm"),
        },
    )
    transform: ClassVar = {
        **EncoderFamily.transform,
        "embedding/first": Reshape(1, 1, -1),
        "embedding/positions": (lambda array: array[0], lambda array: array[None]),
        "embedding/patches/kernel": Permute(2, 3, 1, 0),
    }
    handled: ClassVar = ("pooler_output_size",)
    harmless: ClassVar = ("tie_word_embeddings",)
    prefix = "vit."
    unpooled: ClassVar = ("ViTForImageClassification", "ViTForMaskedImageModeling")

    def options(self, document: Document) -> dict[str, Any]:
        found, size, patch = super().options(document), document["image_size"], document["patch_size"]
        if isinstance(size, int) and isinstance(patch, int) and patch > 0:
            found["max_length"] = (size // patch) ** 2 + 1
        if found["pooled_size"] is not None and document["pooler_output_size"] is not None:
            found["pooled_size"] = document["pooler_output_size"]
        return found

    def entries(self, config: EncoderConfig) -> dict[str, Any]:
        return {**super().entries(config), "pooler_output_size": config.pooled_size}
