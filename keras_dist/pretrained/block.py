"""The block of decoders and encoders: self-attention and a feed-forward network, each with its normalizations.

Layers build their sublayers in `build`, and not when they first call them: a stack of blocks creates weights with a
leading dim, which no layer could be called with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError
from keras_dist.layers import EinsumDense, Layer, LayerNormalization, RMSNormalization
from keras_dist.layers.base.weight_arguments import Identifier
from keras_dist.ops.normalization import divided_by_rms, wide
from keras_dist.pretrained.attending import Scores, Span, Windows, attend, largest_scores
from keras_dist.pretrained.cache import Slots
from keras_dist.pretrained.config import NetworkConfig
from keras_dist.pretrained.feed_forward import Experts, FeedForward, kernel_initializer
from keras_dist.pretrained.kernels import Arrays, attend_by, whole_heads
from keras_dist.pretrained.rotary import Angles, grown, rotated
from keras_dist.variables import call_context


class RMSNormalizationFromOne(RMSNormalization):
    """`x / sqrt(mean(x**2) + epsilon) * (scale + 1)`: files of Gemma hold the difference from 1."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.scale = self.add_weight((input_shape[-1],), "zeros", name="scale")

    def call(self, x: jax.Array) -> jax.Array:
        values = wide(x)
        return divided_by_rms(values, -1, self.epsilon, self.scale[...].astype(values.dtype) + 1).astype(x.dtype)


def norm(config: NetworkConfig, axis: int | Sequence[int] = -1, **options: Any) -> Layer:
    """Return a normalization as `config` describes it."""
    if config.norm.kind == "layer":
        return LayerNormalization(axis, config.norm.epsilon, center=config.norm.center, **options)
    kind = RMSNormalizationFromOne if config.norm.adds_one else RMSNormalization
    return kind(axis, config.norm.epsilon, **options)


class SelfAttention(Layer):
    """Grouped-query attention of a sequence to itself, with rotary position embeddings."""

    def __init__(self, config: NetworkConfig, is_causal: bool, initializer: Identifier = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # angles stay float32
        self.options, self.is_causal = config.attention, is_causal
        heads, kernel = config.attention, kernel_initializer(config, initializer)
        self.initializer = kernel
        dtype = self.dtype_policy

        def projection(count: int) -> EinsumDense:
            bias_axes = "nh" if heads.use_bias else None
            shape = (None, count, heads.head_dim)
            return EinsumDense("btd,dnh->btnh", shape, bias_axes=bias_axes, kernel_initializer=kernel, dtype=dtype)

        counts = {"query": heads.num_heads, "key": heads.num_kv_heads, "value": heads.num_kv_heads}
        members: dict[str, Layer] = {name: projection(count) for name, count in counts.items()}
        bias_axes, shape = "d" if heads.use_output_bias else None, (None, config.hidden_size)
        options: dict[str, Any] = {"kernel_initializer": kernel, "dtype": dtype}
        members["output"] = EinsumDense("btnh,nhd->btd", shape, bias_axes=bias_axes, **options)
        self._members = members  # `output` is a property of layers
        if heads.qk_norm is not None:
            axis = -1 if heads.qk_norm == "head" else (-2, -1)
            self.query_norm, self.key_norm = (norm(config, axis, dtype=dtype) for _ in range(2))

    def build(self, input_shape: tuple[int, ...]) -> None:
        options, around = self.options, input_shape[:2]
        for name in ("query", "key", "value"):
            self._members[name].build(input_shape)
        query, key = ((*around, count, options.head_dim) for count in (options.num_heads, options.num_kv_heads))
        self._members["output"].build(query)
        if options.qk_norm is not None:
            self.query_norm.build(query)
            self.key_norm.build(key)
        if options.has_sinks:
            self.sinks = self.add_weight((options.num_heads,), self.initializer, name="sinks")

    def call(
        self,
        hidden: jax.Array,
        angles: Angles | None,
        queries: Span,
        keys: Span,
        window: int | Windows | None = None,
        slots: Slots | None = None,
    ) -> tuple[jax.Array, Slots | None]:
        """Return the output (batch, length, hidden_size), and the slots with the new keys and values."""
        options = self.options
        query, key, value = (self._members[name](hidden) for name in ("query", "key", "value"))
        key, value = (whole_heads(each, self._members["key"].kernel) for each in (key, value))
        if options.qk_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if angles is not None:
            query, key = (rotated(each, angles, options.rotates_neighbours) for each in (query, key))
        if options.query_growth is not None and options.rotary is not None:
            query = grown(query, queries, options.query_growth, options.rotary)
        if slots is not None:
            slots = slots.written(key, value)
            key, value = slots.read()
        sinks = self.sinks[...] if options.has_sinks else None
        scores = Scores(queries, keys, options.score_scale, self.is_causal, window, options.soft_cap, sinks)
        if slots is not None:  # few queries, and the mask depends on the slots
            attended = attend(query, key, value, scores)
        else:
            attended = self._attended((query, key, value), scores)
        return self._members["output"](attended), slots

    def _attended(self, arrays: Arrays, scores: Scores) -> jax.Array:
        return attend_by(self.options.implementation, self._members["query"].kernel, arrays, scores)


class ClippedSelfAttention(SelfAttention):
    """Self-attention that scales queries and keys down after an update, see `qk_clip` of `AttentionConfig`.

    Heads that share keys have a common factor for these: the root of the smallest that one of them needs.
    """

    def build(self, input_shape: tuple[int, ...]) -> None:
        super().build(input_shape)
        self.peaks = self.add_weight(
            (self.options.num_heads,), "zeros", "float32", trainable=False, autocast=False, name="peaks"
        )
        self.peaks.set_metadata("changes_always", True)  # no part of files: zeros between steps

    def _attended(self, arrays: Arrays, scores: Scores) -> jax.Array:
        context = call_context.current()
        if context is None or not context.training:
            return super()._attended(arrays, scores)
        found = jax.lax.stop_gradient(largest_scores(*arrays[:2], scores))
        self.peaks.assign(jnp.maximum(self.peaks[...], found))
        return attend(*arrays, scores)

    def _after_update(self) -> None:
        options, query, key = self.options, self._members["query"], self._members["key"]
        peaks = self.peaks[...]
        limit: Any = options.qk_clip
        needed = jnp.where((peaks > limit) & jnp.isfinite(peaks), limit / peaks, 1)
        shared = needed.reshape(*needed.shape[:-1], options.num_kv_heads, -1)
        of_keys = jnp.sqrt(shared.min(-1))
        of_queries = (shared / of_keys[..., None]).reshape(needed.shape)
        for layer, factor in ((query, of_queries), (key, of_keys)):
            if not layer.kernel.trainable:
                summary = f"qk_clip={limit} changes the weight {layer.kernel.path!r}, which is not trained"
                raise ModelError(summary, fix="train it, or leave out qk_clip")
            scaled = [(layer.kernel, factor[..., None, :, None])]
            scaled += [] if layer.bias is None else [(layer.bias, factor[..., None])]
            for weight, by in scaled:
                weight.assign((weight[...] * by).astype(weight.dtype))
        self.peaks.assign(jnp.zeros_like(peaks))


class Block(Layer):
    """Self-attention and a feed-forward network or experts, each added to its input."""

    def __init__(
        self,
        config: NetworkConfig,
        is_causal: bool,
        initializer: Identifier = None,
        has_experts: bool = False,
        is_first: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        dtype, placement = self.dtype_policy, config.norm.placement
        self.placement, self.residual_scale = placement, config.residual_scale
        attention = SelfAttention if config.attention.qk_clip is None else ClippedSelfAttention
        self.attention = attention(config, is_causal, initializer, dtype=dtype)
        self.feed_forward = (Experts if has_experts else FeedForward)(config, initializer, dtype=dtype)
        if placement != "after":
            skips = is_first and config.norm.skips_first
            self.attention_norm = None if skips else norm(config, dtype=dtype)
            self.feed_forward_norm = norm(config, dtype=dtype)
        if placement in ("after", "both"):
            self.attention_post_norm, self.feed_forward_post_norm = (norm(config, dtype=dtype) for _ in range(2))

    def build(self, input_shape: tuple[int, ...]) -> None:
        layers = (self.attention, self.feed_forward)
        if self.placement != "after":
            norms = (self.attention_norm, self.feed_forward_norm)
            layers = (*layers, *(each for each in norms if each is not None))
        if self.placement in ("after", "both"):
            layers = (*layers, self.attention_post_norm, self.feed_forward_post_norm)
        for layer in layers:
            layer.build(input_shape)

    def call(
        self,
        hidden: jax.Array,
        angles: Angles | None,
        queries: Span,
        keys: Span,
        window: int | Windows | None = None,
        slots: Slots | None = None,
    ) -> tuple[jax.Array, Slots | None, jax.Array | None]:
        """Return the hidden vectors, the slots with the new keys and values, and the tallies of `Experts`, or None."""
        before = self.placement in ("before", "both")
        normalized = self.attention_norm(hidden) if before and self.attention_norm is not None else hidden
        added, slots = self.attention(normalized, angles, queries, keys, window, slots)
        hidden, tallies = self._added(hidden, added, "attention"), None
        normalized = self.feed_forward_norm(hidden) if before else hidden
        if isinstance(self.feed_forward, Experts):
            mask = None if queries.segments is None else queries.segments > 0
            added, tallies = self.feed_forward(normalized, mask=mask)
        else:
            added = self.feed_forward(normalized)
        return self._added(hidden, added, "feed_forward"), slots, tallies

    def _added(self, hidden: jax.Array, added: jax.Array, name: str) -> jax.Array:
        if self.placement in ("after", "both"):
            added = getattr(self, f"{name}_post_norm")(added)
        hidden = hidden + (added if self.residual_scale == 1 else added * self.residual_scale)
        return getattr(self, f"{name}_norm")(hidden) if self.placement == "after_residual" else hidden
