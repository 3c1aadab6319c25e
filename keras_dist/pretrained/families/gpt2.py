"""GPT-2: learned positions, LayerNormalization with biases, and one array for query, key and value."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_dist.interop import Joined, Linear
from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import WITH_BIASES, Document, dense, layer_norm, register_family, size_of_heads

_PARTS = tuple(f"layers/{{}}/attention/{part}" for part in ("query", "key", "value"))


@register_family("gpt2")
class GPT2(DecoderFamily):
    """GPT-2.

    Source: `transformers.GPT2LMHeadModel`.
    """

    architecture = "GPT2LMHeadModel"
    keys: ClassVar = {
        "vocab_size": "vocab_size",
        "n_embd": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "attention.num_heads",
        "n_inner": "feed_forward.size",
        "n_positions": "max_length",
        "activation_function": "feed_forward.activation",
        "layer_norm_epsilon": "norm.epsilon",
        "initializer_range": "initializer_range",
        "tie_word_embeddings": "tied_head",
    }
    defaults: ClassVar = {
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar = {**WITH_BIASES, "learned_positions": True}
    only: ClassVar = {
        "scale_attn_weights": (True,),
        **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), (False,)),
        "add_cross_attention": (False,),
    }
    harmless, handled = ("n_ctx",), ()
    names: ClassVar = {
        "embedding/embeddings": "transformer.wte.weight",
        "position_embedding/embeddings": "transformer.wpe.weight",
        tuple(f"{part}/kernel" for part in _PARTS): Joined("transformer.h.{}.attn.c_attn.weight", axis=1),
        tuple(f"{part}/bias" for part in _PARTS): "transformer.h.{}.attn.c_attn.bias",
        **dense("layers/{}/attention/output", "transformer.h.{}.attn.c_proj"),
        **dense("layers/{}/feed_forward/up", "transformer.h.{}.mlp.c_fc"),
        **dense("layers/{}/feed_forward/down", "transformer.h.{}.mlp.c_proj"),
        **layer_norm("layers/{}/attention_norm", "transformer.h.{}.ln_1"),
        **layer_norm("layers/{}/feed_forward_norm", "transformer.h.{}.ln_2"),
        **layer_norm("norm", "transformer.ln_f"),
        "head/kernel": "lm_head.weight",
    }
    transform: ClassVar = {
        ".*/attention/(query|key|value)/kernel": Linear(transpose=False),
        ".*/attention/(query|key|value)/bias": Linear(inputs=0),
        ".*/attention/output/kernel": Linear(inputs=2, transpose=False),
        "head/kernel": Linear(),
    }
    copies: ClassVar = {"lm_head.weight": "transformer.wte.weight"}
    ignored: ClassVar = (r".*h\.\d+\.attn\.(masked_)?bias",)
    prefix = "transformer."

    def options(self, document: Document) -> dict[str, Any]:
        head_dim = size_of_heads(document, "n_embd", "n_head")
        numbers = {"attention.num_kv_heads": document.get("n_head"), "attention.head_dim": head_dim}
        has_default = document["n_inner"] is None and isinstance(document.get("n_embd"), int)
        return {**numbers, **({"feed_forward.size": 4 * document["n_embd"]} if has_default else {})}

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        return {}
