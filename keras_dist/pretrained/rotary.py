"""Rotary position embeddings: frequencies with the scalings in use, and the rotation of queries and keys."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.pretrained.attending import Span
from keras_dist.pretrained.config import NetworkConfig, Rotary

Angles = tuple[jax.Array, jax.Array]
"""Cosine and sine (batch, length, pairs), or (1, length, pairs), in float32."""


def angles(rotary: Rotary | None, config: NetworkConfig, positions: jax.Array) -> Angles | None:
    """Return cosine and sine for positions (batch, length); None without rotary embeddings."""
    if rotary is None:
        return None
    if rotary.factor is None:  # as in transformers
        original = rotary.original_max_position_embeddings or config.max_length
        rotary = dataclasses.replace(rotary, factor=config.max_length / original)
    frequencies, factor = _frequencies(rotary, config.attention.head_dim, positions)
    angle = positions[..., None].astype("float32") * frequencies
    return jnp.cos(angle) * factor, jnp.sin(angle) * factor


def rotated(values: jax.Array, angles: Angles, neighbours: bool = False) -> jax.Array:
    """Rotate the first dims of heads (batch, length, heads, head_dim): the first half of them with the second.

    With `neighbours` each dim of an even number is rotated with the next one.
    """
    cosine, sine = (each[:, :, None, :] for each in angles)
    pairs = cosine.shape[-1]
    first, second, rest = jnp.split(values.astype("float32"), (pairs, 2 * pairs), axis=-1)
    if neighbours:
        both = jnp.concatenate((first, second), axis=-1)
        first, second = both[..., ::2], both[..., 1::2]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    if neighbours:
        turned = (jnp.stack(turned, axis=-1).reshape(*values.shape[:-1], 2 * pairs),)
    return jnp.concatenate((*turned, rest), axis=-1).astype(values.dtype)


def grown(query: jax.Array, span: Span, growth: float, rotary: Rotary) -> jax.Array:
    """Scale queries (batch, length, heads, head_dim) by their position: `query_growth` of `AttentionConfig`."""
    positions = span.index[None] if span.positions is None else span.positions
    factor = 1 + growth * jnp.log1p(positions // (rotary.original_max_position_embeddings or 1))
    return query * factor[:, :, None, None].astype(query.dtype)


def _frequencies(rotary: Rotary, head_dim: int, positions: jax.Array) -> tuple[jax.Array | np.ndarray, float]:
    """Return the angle of each pair for one position, and the factor of sine and cosine.

    Source: https://arxiv.org/abs/2104.09864; scalings as in `transformers.modeling_rope_utils`.
    """
    dim = int(head_dim * rotary.partial_rotary_factor)
    base = (1 / rotary.rope_theta ** (np.arange(0, dim, 2) / dim)).astype("float32")
    if rotary.rope_type == "linear":
        return base / (rotary.factor or 1), 1.0
    if rotary.rope_type == "llama3":
        return _llama3(rotary, base), 1.0
    if rotary.rope_type == "yarn":
        return _yarn(rotary, base, dim), _yarn_factor(rotary)
    if rotary.rope_type == "longrope":
        # as in transformers, the longest sequence of the batch decides for all of them
        length, original = jnp.max(positions) + 1, rotary.original_max_position_embeddings or 0
        short, long = (base / np.asarray(each, "float32") for each in (rotary.short_factor, rotary.long_factor))
        return jnp.where(length > original, long, short), _longrope_factor(rotary)
    return base, 1.0


def _llama3(rotary: Rotary, base: np.ndarray) -> np.ndarray:
    """Divide low frequencies by `factor`, keep high ones, and interpolate between."""
    factor, low, high = rotary.factor or 1, rotary.low_freq_factor or 1, rotary.high_freq_factor or 1
    rotations = (rotary.original_max_position_embeddings or 1) * base / (2 * math.pi)
    share = np.clip((rotations - low) / (high - low), 0, 1)
    return ((1 - share) * base / factor + share * base).astype("float32")


def _yarn(rotary: Rotary, base: np.ndarray, dim: int) -> np.ndarray:
    """Divide frequencies with few rotations by `factor`, keep others, and interpolate between: arXiv:2309.00071."""
    original = rotary.original_max_position_embeddings or 1

    def pair_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rotary.rope_theta))

    low, high = pair_of(rotary.beta_fast or 32), pair_of(rotary.beta_slow or 1)
    if rotary.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    return (base / (rotary.factor or 1) * ramp + base * (1 - ramp)).astype("float32")


def _yarn_factor(rotary: Rotary) -> float:
    if rotary.attention_factor is not None:
        return rotary.attention_factor

    def scale(coefficient: float) -> float:
        factor = rotary.factor or 1
        return 1.0 if factor <= 1 else 0.1 * coefficient * math.log(factor) + 1

    if rotary.mscale and rotary.mscale_all_dim:
        return scale(rotary.mscale) / scale(rotary.mscale_all_dim)
    return scale(1)


def _longrope_factor(rotary: Rotary) -> float:
    if rotary.attention_factor is not None:
        return rotary.attention_factor
    factor, original = rotary.factor or 1, rotary.original_max_position_embeddings or 1
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
