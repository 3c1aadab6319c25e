"""BERT: learned positions and types, and norms after each residual sum."""

from __future__ import annotations

from typing import ClassVar

from keras_dist.pretrained.families.encoder_family import EncoderFamily
from keras_dist.pretrained.family import dense, layer_norm, prefixed, register_family

_LAYER = "encoder.layer.{}"


@register_family("bert")
class Bert(EncoderFamily):
    """BERT, without a head for its training.

    Source: `transformers.BertModel`.
    """

    architecture = "BertModel"
    keys: ClassVar = {
        **EncoderFamily.keys,
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "num_types",
    }
    defaults: ClassVar = {**EncoderFamily.defaults, "max_position_embeddings": 512, "type_vocab_size": 2}
    fixed: ClassVar = {**EncoderFamily.fixed, "norm.placement": "after_residual"}
    only: ClassVar = {
        "position_embedding_type": ("absolute",),
        **dict.fromkeys(("is_decoder", "add_cross_attention"), (False,)),
    }
    harmless: ClassVar = (
        "tie_word_embeddings",
        *(f"pooler_{name}" for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")),
    )
    names: ClassVar = prefixed(
        "bert.",
        {
            **EncoderFamily.names,
            "embedding/tokens/embeddings": "embeddings.word_embeddings.weight",
            "embedding/positions/embeddings": "embeddings.position_embeddings.weight",
            "embedding/types/embeddings": "embeddings.token_type_embeddings.weight",
            **layer_norm("embedding/norm", "embeddings.LayerNorm"),
            **dense("layers/{}/attention/(query|key|value)", rf"{_LAYER}.attention.self.\1"),
            **layer_norm("layers/{}/attention_norm", f"{_LAYER}.attention.output.LayerNorm"),
            **layer_norm("layers/{}/feed_forward_norm", f"{_LAYER}.output.LayerNorm"),
        },
    )
    prefix = "bert."
    unpooled: ClassVar = ("BertForMaskedLM", "BertForTokenClassification", "BertForQuestionAnswering")
    ignored: ClassVar = (r"(bert\.)?embeddings\.position_ids",)
