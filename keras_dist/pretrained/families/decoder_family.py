"""`DecoderFamily`: the tables of Llama, which most decoders share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from keras_dist.errors import ConfigError, shorten
from keras_dist.interop import Linear
from keras_dist.pretrained.config import DecoderConfig, NetworkConfig
from keras_dist.pretrained.family import Document, Family, dense, read_rotary, written_rotary

_LAYER = "model.layers.{}"
SLIDING, FULL = "sliding_attention", "full_attention"


def read_layer_types(document: Document, slides: Callable[[int], bool]) -> tuple[int, ...] | None:
    """Return the layers with a window, by `layer_types`, or else by `slides`."""
    kinds, number = document.get("layer_types"), document.get("num_hidden_layers")
    if not isinstance(number, int):
        return None
    if kinds is None:
        return tuple(filter(slides, range(number)))
    unknown = [kind for kind in kinds if kind not in (SLIDING, FULL)]
    if unknown:
        raise ConfigError("unknown types of layers", given=f"layer_types {shorten(unknown)} are not supported")
    if len(kinds) != number:
        given = f"layer_types must have num_hidden_layers={number} entries, not {len(kinds)}"
        raise ConfigError("types of other layers", given=given)
    return tuple(layer for layer, kind in enumerate(kinds) if kind == SLIDING)


def rotary_by_kind(document: Document) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return `rope_parameters` of layers without a window, and of layers with one; empty where it has none."""
    nested = document.get("rope_parameters") or {}
    flat = sorted(nested.keys() - {FULL, SLIDING})
    if flat and not all(map(nested.get, (FULL, SLIDING))):  # transformers ignores these, and rotates by its defaults
        given = f"rope_parameters has {', '.join(flat)} outside of {FULL} and {SLIDING}"
        raise ConfigError("rotary embeddings of no kind of layer", given=given)
    wrong = {kind: value for kind, value in nested.items() if not isinstance(value, Mapping | None)}
    if wrong:
        given = f"rope_parameters={shorten(wrong)} must be a dict of dicts"
        raise ConfigError("rotary embeddings that are not dicts", given=given)
    return nested.get(FULL) or {}, nested.get(SLIDING) or {}


def written_layer_types(config: NetworkConfig) -> list[str]:
    """Return `layer_types` of a config."""
    return [SLIDING if config.attention.slides(layer) else FULL for layer in range(config.num_layers)]


def read_kinds(document: Document, *bases: str) -> dict[str, Any]:
    """Return the rotary embeddings of each kind of layer; `rope_theta` may be in the entries `bases`."""
    both = zip(("rotary", "sliding_rotary"), rotary_by_kind(document), bases, strict=True)
    given = {f"attention.{field}": {"rope_theta": document[base], **parameters} for field, parameters, base in both}
    return {field: read_rotary(document, parameters) for field, parameters in given.items()}


def written_kinds(config: NetworkConfig) -> dict[str, Any]:
    """Return `layer_types` and `rope_parameters` of a config with rotary embeddings for each kind of layer."""
    rotaries = {FULL: config.attention.rotary, SLIDING: config.attention.sliding_rotary}
    parameters = {kind: written_rotary(rotary) for kind, rotary in rotaries.items() if rotary is not None}
    return {"rope_parameters": parameters, "layer_types": written_layer_types(config)}


class DecoderFamily(Family):
    """A decoder with the names of Llama. Subclasses change single entries of the tables.

    Attributes:
        rotates_parts: whether `transformers` can rotate a part of each head in networks of the family.
        rotary: `rope_parameters` of files without.
    """

    rotates_parts: ClassVar[bool] = False
    rotary: ClassVar[Document] = {}

    keys: ClassVar = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "intermediate_size": "feed_forward.size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "attention.num_heads",
        "num_key_value_heads": "attention.num_kv_heads",
        "head_dim": "attention.head_dim",
        "hidden_act": "feed_forward.activation",
        "rms_norm_eps": "norm.epsilon",
        "max_position_embeddings": "max_length",
        "initializer_range": "initializer_range",
        "tie_word_embeddings": "tied_head",
    }
    defaults: ClassVar = {
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
    }
    handled: ClassVar = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
    names: ClassVar = {
        "embedding/embeddings": "model.embed_tokens.weight",
        **dense("layers/{}/attention/query", f"{_LAYER}.self_attn.q_proj"),
        **dense("layers/{}/attention/key", f"{_LAYER}.self_attn.k_proj"),
        **dense("layers/{}/attention/value", f"{_LAYER}.self_attn.v_proj"),
        **dense("layers/{}/attention/output", f"{_LAYER}.self_attn.o_proj"),
        **dense("layers/{}/feed_forward/(gate|up|down)", rf"{_LAYER}.mlp.\1_proj"),
        "layers/{}/attention/query_norm/scale": f"{_LAYER}.self_attn.q_norm.weight",
        "layers/{}/attention/key_norm/scale": f"{_LAYER}.self_attn.k_norm.weight",
        "layers/{}/attention_norm/scale": f"{_LAYER}.input_layernorm.weight",
        "layers/{}/feed_forward_norm/scale": f"{_LAYER}.post_attention_layernorm.weight",
        "norm/scale": "model.norm.weight",
        "head/kernel": "lm_head.weight",
    }
    transform: ClassVar = {
        ".*/attention/(query|key|value)/kernel": Linear(),
        ".*/attention/output/kernel": Linear(inputs=2),
        ".*/attention/(query|key|value)/bias": Linear(inputs=0),
        ".*/attention/(query|key)_norm/scale": Linear(inputs=0),
        ".*/feed_forward/(gate|up|down)/kernel": Linear(),
        "head/kernel": Linear(),
    }
    copies: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
    ignored: ClassVar = (r".*\.rotary_emb\.inv_freq",)

    def positions(self, document: Document) -> dict[str, Any]:
        if self.fixed.get("learned_positions"):
            return {}
        has_own = any(document.get(key) for key in ("rope_parameters", "rope_scaling"))
        rotary = read_rotary(document if has_own else {**document, "rope_parameters": self.rotary})
        if rotary.partial_rotary_factor != 1 and not self.rotates_parts:
            given = f"partial_rotary_factor={shorten(rotary.partial_rotary_factor)} is not supported, only 1"
            raise ConfigError("rotary embeddings of a part", given=given)
        return {"attention.rotary": rotary}

    def options(self, document: Document) -> dict[str, Any]:
        heads, size = document.get("num_attention_heads"), document.get("hidden_size")
        found: dict[str, Any] = {}
        if document.get("num_key_value_heads") is None:
            found["attention.num_kv_heads"] = heads
        if document.get("head_dim") is None and isinstance(heads, int) and isinstance(size, int):
            found["attention.head_dim"] = size // max(heads, 1)
        return found

    def entries(self, config: DecoderConfig) -> dict[str, Any]:
        rotary = config.attention.rotary
        return {} if rotary is None else {"rope_parameters": written_rotary(rotary)}
