"""`DecoderConfig` and `EncoderConfig`: everything that describes a network, apart from its weights.

A family translates `config.json` into one of these and back. All of the networks are one decoder, so an option is a
field here and a branch in one layer. Rotary options are called as in `rope_parameters` of `config.json`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from keras_dist._support.arguments import is_int
from keras_dist.errors import ConfigError, one_of, shorten
from keras_dist.pretrained.config_values import as_floats, of_class

ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""Activations by their names in `config.json`: `gelu` is exact, `gelu_new` and `gelu_pytorch_tanh` use tanh."""

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
PLACEMENTS = ("before", "after", "both", "after_residual")
QK_NORMS = (None, "head", "all")
IMPLEMENTATIONS = ("auto", "xla", "cudnn", "splash", "ring")
POOLED_ACTIVATIONS = ("tanh", "relu", "gelu", "silu", "sigmoid", "linear")
_NEEDED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
"""Options that a type of rotary scaling requires."""


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary position embeddings, with the names of `rope_parameters` in `config.json`.

    Attributes:
        rope_theta: base of the wavelengths.
        rope_type: scaling of the frequencies: `"default"` for none, `"linear"`, `"llama3"`, `"yarn"`, `"longrope"`.
        partial_rotary_factor: fraction of each head that is rotated.
        factor: ratio of the extended length to the original length.
        original_max_position_embeddings: length of the sequences in the original training.
        low_freq_factor, high_freq_factor: limits of interpolation, for `llama3`.
        beta_fast, beta_slow: limits of interpolation, in rotations, for `yarn`.
        truncate: whether the limits of `yarn` are rounded.
        attention_factor: factor of sine and cosine; None for the one that follows from `factor`.
        mscale, mscale_all_dim: coefficients of that factor, for `yarn`.
        short_factor, long_factor: divisors of the frequencies, for `longrope`, up to the original length and above.
    """

    rope_theta: float = 10_000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def problems(self, head_dim: int) -> Iterator[str]:
        yield from _not_among("rope_type", self.rope_type, ROPE_TYPES)
        for name in ("rope_theta", "factor", "low_freq_factor", "high_freq_factor"):
            if getattr(self, name) == 0:
                yield f"{name}=0 must be positive"
        if self.rope_type == "yarn" and self.rope_theta == 1:
            yield f"rope_theta={self.rope_theta:g} has no wavelengths to interpolate for rope_type='yarn'"
        if self.rope_type == "longrope" and self.original_max_position_embeddings == 1:
            yield "original_max_position_embeddings=1 must be at least 2 for rope_type='longrope'"
        if self.low_freq_factor is not None and self.low_freq_factor == self.high_freq_factor:
            yield f"low_freq_factor={self.low_freq_factor} must be less than high_freq_factor"
        rotated = int(head_dim * self.partial_rotary_factor)
        if not 0 < rotated <= head_dim or rotated % 2:
            factor = f"head_dim={head_dim} by partial_rotary_factor={self.partial_rotary_factor:g}"
            yield f"{factor} must be an even number of dims up to head_dim, not {rotated}"
            return
        missing = [name for name in _NEEDED.get(str(self.rope_type), ()) if getattr(self, name) is None]
        if missing:
            yield f"rope_type={self.rope_type!r} needs {', '.join(missing)}"
        pairs = int(head_dim * self.partial_rotary_factor) // 2
        for name in ("short_factor", "long_factor"):
            given = getattr(self, name)
            if given is not None and 0 in given:
                yield f"{name}={shorten(given)} must be positive numbers"
            if given is not None and len(given) != pairs:
                of = f"one for each rotated pair of head_dim={head_dim}"
                yield f"{name} must have {pairs} numbers, {of}, not {len(given)}"


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Self-attention.

    Attributes:
        num_heads: number of query heads.
        num_kv_heads: number of heads of keys and values; divides `num_heads`.
        head_dim: size of a head.
        use_bias: whether query, key and value have biases.
        use_output_bias: whether the output has a bias.
        qk_norm: normalization of queries and keys: `"head"` for each head, `"all"` over all heads, or None.
        scale: factor of the scores; None for `1 / sqrt(head_dim)`.
        soft_cap: limit of the scores, `cap * tanh(scores / cap)`, or None.
        window: a token attends to the last `window` tokens, its own included, and in encoders to as many of the next;
            None for all.
        sliding_layers: indices of the layers that use `window`; None for all layers.
        rotary: rotary position embeddings, or None.
        sliding_rotary: rotary position embeddings of `sliding_layers`; None for `rotary`.
        layers_without_rotary: indices of layers without rotary position embeddings.
        rotates_neighbours: whether rotary position embeddings rotate dims 0 and 1, 2 and 3, ... of a head, instead of
            the first half of its dims with the second.
        has_sinks: whether each head has a learned score that no key has, which takes its share of the softmax.
        query_growth: queries are multiplied by `1 + query_growth * log(1 + floor(position / length))`, where the length
            is `original_max_position_embeddings` of `rotary`; None for 1.
        implementation: `"xla"`, `"cudnn"`, `"splash"`, `"ring"`, or `"auto"`: a ring where the strategy has a sequence
            axis (see `ops.dot_product_attention`), else the fastest on the platform of the mesh: cuDNN on GPUs, Pallas
            splash attention on TPUs, XLA elsewhere and where these do not support the options. With a cache it is XLA.
            `"splash"` needs consecutive positions inside of a segment if there is a window; on CPUs it is interpreted,
            which is slow.
        qk_clip: largest score of a head, before `soft_cap`: after an update, queries and keys of heads with larger ones
            in its batch are scaled down (MuonClip, https://arxiv.org/abs/2507.20534, algorithm 1). None for no limit.
            Attention is then by XLA. A step that `LossScaleOptimizer` skips scales, too.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    use_bias: bool = False
    use_output_bias: bool = False
    qk_norm: str | None = None
    scale: float | None = None
    soft_cap: float | None = None
    window: int | None = None
    sliding_layers: tuple[int, ...] | None = None
    rotary: Rotary | None = None
    sliding_rotary: Rotary | None = None
    layers_without_rotary: tuple[int, ...] = ()
    rotates_neighbours: bool = False
    has_sinks: bool = False
    query_growth: float | None = None
    implementation: str = "auto"
    qk_clip: float | None = None

    @property
    def score_scale(self) -> float:
        """The factor of the scores."""
        return 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    def slides(self, layer: int) -> bool:
        """Return whether a layer uses the window."""
        return self.window is not None and (self.sliding_layers is None or layer in self.sliding_layers)

    def kind(self, layer: int) -> tuple[int | None, Rotary | None]:
        """Return the window and the rotary position embeddings of a layer."""
        slides = self.slides(layer)
        rotary = self.sliding_rotary if slides and self.sliding_rotary is not None else self.rotary
        return self.window if slides else None, None if layer in self.layers_without_rotary else rotary

    def problems(self) -> Iterator[str]:
        if self.soft_cap == 0:
            yield "soft_cap=0 must be positive"
        if self.qk_clip == 0:
            yield "qk_clip=0 must be positive"
        if self.qk_clip is not None and self.qk_norm is not None:
            yield f"qk_clip={self.qk_clip} has no effect with qk_norm={self.qk_norm!r}, which bounds the scores"
        if self.qk_clip is not None and self.implementation not in ("auto", "xla"):
            yield f"qk_clip={self.qk_clip} needs scores, which implementation={self.implementation!r} does not store"
        length = getattr(self.rotary, "original_max_position_embeddings", None)
        if self.query_growth is not None and length is None:
            yield f"query_growth={self.query_growth} needs original_max_position_embeddings of rotary"
        if self.num_heads % self.num_kv_heads:
            yield f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}"
        yield from _not_among("qk_norm", self.qk_norm, QK_NORMS)
        yield from _not_among("implementation", self.implementation, IMPLEMENTATIONS)
        for rotary in (self.rotary, self.sliding_rotary):
            yield from () if rotary is None else of_class("rotary", rotary, Rotary, self.head_dim)


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig:
    """The feed-forward network of a block.

    Attributes:
        size: number of hidden units.
        activation: name of the activation in `config.json`.
        gated: whether the activation of a second projection multiplies the hidden units.
        use_bias: whether the projections have biases.
        swiglu_limit: limit of the gate, and of the hidden units in both directions. Their product is then
            `gate * sigmoid(swiglu_alpha * gate) * (units + 1)`, without `activation`. None for no limit.
        swiglu_alpha: factor in that product.
    """

    size: int
    activation: str = "silu"
    gated: bool = True
    use_bias: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.702

    def problems(self) -> Iterator[str]:
        yield from _not_among("activation", self.activation, ACTIVATIONS)
        if self.swiglu_limit == 0:
            yield "swiglu_limit=0 must be positive"
        if self.swiglu_limit is not None and not self.gated:
            yield f"swiglu_limit={self.swiglu_limit} needs a gate, gated=True"


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
    """Experts, of which a router chooses some for each token, in place of one feed-forward network.

    An expert has the form of `FeedForwardConfig`, with its own `use_bias`; see `layers.MixtureOfExperts`.

    Attributes:
        num_experts: number of experts.
        top_k: number of experts of a token.
        units: number of hidden units of an expert; None for the `size` of `FeedForwardConfig`.
        normalize: whether the weights of the experts of a token sum to 1.
        use_bias: whether the router and the projections of experts have biases.
        load_balancing: factor of the loss of unequal use, in training. `transformers` calls it `router_aux_loss_coef`,
            and adds the loss where `output_router_logits` is set.
        dense_layers: indices of layers with one feed-forward network.
        capacity_factor: slots of experts in training, as a multiple of the choices of a row: further choices are
            dropped. None to drop none, which takes `num_experts / top_k` times the memory and FLOPs of 1. Without
            training none are dropped.
    """

    num_experts: int
    top_k: int = 2
    units: int | None = None
    normalize: bool = True
    use_bias: bool = False
    load_balancing: float = 0.001
    dense_layers: tuple[int, ...] = ()
    capacity_factor: float | None = None

    def problems(self) -> Iterator[str]:
        if self.top_k > self.num_experts:
            yield f"top_k={self.top_k} must be at most num_experts={self.num_experts}"
        if self.capacity_factor == 0:
            yield "capacity_factor=0 must be positive"


@dataclasses.dataclass(frozen=True)
class NormConfig:
    """The normalizations of a network.

    Attributes:
        kind: `"rms"` for `RMSNormalization`, `"layer"` for `LayerNormalization`.
        epsilon: added to the mean square, or the variance.
        placement: `"before"` attention and feed-forward network, `"after"` them, `"both"`, or `"after_residual"`.
        adds_one: whether `scale + 1` multiplies, instead of `scale`.
        center: whether an offset is added, for `"layer"`.
        skips_first: whether the first block has no normalization before its attention.
    """

    kind: str = "rms"
    epsilon: float = 1e-6
    placement: str = "before"
    adds_one: bool = False
    center: bool = True
    skips_first: bool = False

    def problems(self) -> Iterator[str]:
        yield from _not_among("norm kind", self.kind, ("rms", "layer"))
        yield from _not_among("norm placement", self.placement, PLACEMENTS)
        if self.skips_first and self.placement not in ("before", "both"):
            yield f"skips_first=True has no effect with placement={self.placement!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Options of decoders and encoders; one error lists all that are not valid.

    Attributes:
        family: name of the family, the `model_type` of `config.json`.
        hidden_size: size of the vector of a token.
        num_layers: number of blocks.
        attention: self-attention.
        feed_forward: the feed-forward networks.
        norm: the normalizations.
        experts: experts in place of the feed-forward networks, or None; for decoders.
        residual_scale: factor of the outputs of attention and feed-forward network, before they are added.
        max_length: longest sequence of the training; number of learned positions.
        initializer_range: standard deviation of initial kernels and embeddings.
        extra: entries of `config.json` that do not change the network, such as the ids of special tokens.
    """

    family: str
    hidden_size: int
    num_layers: int
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    norm: NormConfig = NormConfig()
    experts: ExpertsConfig | None = None
    residual_scale: float = 1.0
    max_length: int = 2048
    initializer_range: float = 0.02
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check all options; one error lists all problems."""
        found: list[tuple[str, str]] = []
        for name in ("", "attention", "feed_forward", "norm", "experts"):
            group = getattr(self, name) if name else self
            if group is None and name == "experts":
                continue
            problems = of_class(name, group, _GROUPS.get(name, NetworkConfig))
            found += [(f"{name}.".lstrip("."), problem) for problem in problems]
        if found:
            given = "; ".join(problem for _, problem in found)
            summary, fix = (
                f"the config of a {self.family!r} network is not valid",
                "correct them in config.json, or in ",
            )
            raise ConfigError(summary, problems=tuple(found), given=given, fix=f"{fix}the arguments")

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

    def problems(self) -> Iterator[str]:
        named = (("attention", "sliding_layers"), ("attention", "layers_without_rotary"), ("experts", "dense_layers"))
        for group, name in named:
            layers = getattr(getattr(self, group), name, None)  # other classes are reported
            beyond = [layer for layer in layers if is_int(layer, self.num_layers)] if isinstance(layers, tuple) else []
            if beyond:
                yield f"{name}={shorten(beyond)} must be below num_layers={self.num_layers}"

    def get_config(self) -> dict[str, Any]:
        """Return the options as plain values."""
        return _written(dataclasses.asdict(self))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make a config from what `get_config` returned, also after it was stored as JSON."""
        return _made(cls, config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(NetworkConfig):
    """Everything that describes a decoder.

    Attributes:
        vocab_size: number of tokens.
        learned_positions: whether a learned vector of its position is added to each token.
        embedding_scale: factor of the embeddings, or None.
        tied_head: whether the head uses the embeddings.
        logit_divisor: divisor of the logits.
        logit_soft_cap: limit of the logits, `cap * tanh(logits / cap)`, or None.

    Raises:
        ConfigError: options are not valid; all are listed.
    """

    vocab_size: int
    learned_positions: bool = False
    embedding_scale: float | None = None
    tied_head: bool = False
    logit_divisor: float = 1.0
    logit_soft_cap: float | None = None

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("logit_divisor", "logit_soft_cap"):
            if getattr(self, name) == 0:
                yield f"{name}=0 must be positive"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(NetworkConfig):
    """Everything that describes an encoder of text or images.

    Attributes:
        vocab_size: number of tokens; None for images.
        learned_positions: whether a learned vector of its position is added to each token.
        num_types: number of learned types of tokens.
        image_size: height and width of images; None for text [pixels].
        patch_size: height and width of a patch [pixels].
        channels: number of channels of images.
        final_norm: whether the last hidden vectors are normalized.
        pooled_size: size of the pooled first vector; None for none.
        pooled_activation: activation of the pooled vector.
    """

    vocab_size: int | None = None
    learned_positions: bool = True
    num_types: int = 0
    image_size: int | None = None
    patch_size: int = 16
    channels: int = 3
    final_norm: bool = False
    pooled_size: int | None = None
    pooled_activation: str = "tanh"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.experts is not None:
            yield "experts are available in decoders only"
        if self.image_size is not None and self.patch_size > self.image_size:
            yield f"patch_size={self.patch_size} must be at most image_size={self.image_size}"
        yield from _not_among("pooled_activation", self.pooled_activation, POOLED_ACTIVATIONS)


def _not_among(name: str, value: object, options: Sequence[str | None]) -> Iterator[str]:
    if not isinstance(value, str | None) or value not in options:
        yield f"{name}={shorten(value)} must be {one_of(options)}"


def field_of(kind: Any, name: str) -> dataclasses.Field[Any]:
    """Return a field of a config, such as `"attention.num_heads"`."""
    group, _, option = name.rpartition(".")
    return next(field for field in dataclasses.fields(_GROUPS[group] if group else kind) if field.name == option)


_GROUPS = {
    "attention": AttentionConfig,
    "feed_forward": FeedForwardConfig,
    "experts": ExpertsConfig,
    "norm": NormConfig,
    "rotary": Rotary,
    "sliding_rotary": Rotary,
}


def _written(value: Any) -> Any:
    """Return a value with lists for tuples, as in JSON."""
    if isinstance(value, Mapping):
        return {name: _written(each) for name, each in value.items()}
    return list(map(_written, value)) if isinstance(value, tuple | list) else value


def _made(cls: Any, config: Mapping[str, Any]) -> Any:
    """Make a group of options from plain values; options of an inner group may be called `"attention.num_heads"`."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        group, _, option = name.partition(".")
        if option:
            values.setdefault(group, {})[option] = value
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    for name in _GROUPS.keys() & values.keys():
        if isinstance(values[name], Mapping):
            values[name] = _made(_GROUPS[name], values[name])
    required = [field.name for field in dataclasses.fields(cls) if field.default is field.default_factory]
    return cls(**{name: None for name in required if name not in _GROUPS} | as_floats(cls, values))
