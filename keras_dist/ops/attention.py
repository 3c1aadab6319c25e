"""Attention: arithmetic, which layers call, and `dot_product_attention`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops.operation import as_array, operation


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    axes: Sequence[int],
    scale: float,
    drop: Callable[[jax.Array], jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Return `drop(softmax(query @ key.T * scale)) @ value` of heads over the dims `axes`, and the softmax.

    Arrays are (batch, positions, heads, size of a head); the number of key and value heads divides the query's.
    """
    repeats = query.shape[-2] // key.shape[-2]
    key, value = jnp.repeat(key, repeats, -2), jnp.repeat(value, repeats, -2)
    targets, sources, products = _letters(query.ndim, axes)
    scores = jnp.einsum(f"{sources},{targets}->{products}", key, query * jnp.asarray(scale, query.dtype))
    scores = _masked_softmax(scores, mask, tuple(range(-len(axes), 0)))
    return jnp.einsum(f"{products},{sources}->{targets}", drop(scores), value), scores


def _letters(rank: int, axes: Sequence[int]) -> tuple[str, str, str]:
    """Return the einsum letters of query, key and scores, such as `abcd`, `aecd`, `acbe`."""
    targets = string.ascii_lowercase[:rank]
    fresh = dict(zip(axes, string.ascii_lowercase[rank:], strict=False))
    sources = "".join(fresh.get(dim, letter) for dim, letter in enumerate(targets))
    batch = "".join(letter for dim, letter in enumerate(targets[:-1]) if dim not in axes)
    products = batch + "".join(targets[axis] for axis in axes) + "".join(sources[axis] for axis in axes)
    return targets, sources, products


def _masked_softmax(scores: jax.Array, mask: jax.Array | None, axes: tuple[int, ...]) -> jax.Array:
    """Return the softmax of the scores; 0 where all are masked."""
    if mask is None:
        return jax.nn.softmax(scores, axes)
    lowest = -3e4 if scores.dtype == jnp.float16 else -1e9
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, lowest), axes), 0)


def positions_kept(targets: int, sources: int, is_causal: bool, window: int | None) -> list[jax.Array]:
    """Return masks (targets, sources): of no later positions if causal, and of distances below `window`."""
    distance = jnp.arange(targets)[:, None] - jnp.arange(sources)
    return [*([distance >= 0] if is_causal else []), *([] if window is None else [jnp.abs(distance) < window])]


def softmax_of_kept(scores: jax.Array, source_mask: jax.Array | None, is_causal: bool) -> jax.Array:
    """Return the softmax of scores (..., target, source); a large number is subtracted from masked scores."""
    kept = jnp.ones(scores.shape[-2:], bool)
    kept = jnp.tril(kept) if is_causal else kept
    kept = kept if source_mask is None else kept & jnp.asarray(source_mask, bool)[..., None, :]
    lowest = 65504.0 if scores.dtype == jnp.float16 else 1e9
    return jax.nn.softmax(jnp.where(kept, scores, scores - lowest))


@operation
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> jax.Array:
    """Return `softmax(query @ key * scale + bias) @ value` for each head; see `jax.nn.dot_product_attention`.

    Args:
        query: (batch, targets, heads, dims).
        key: (batch, sources, heads, dims); its number of heads divides the number of `query`.
        value: like `key`.
        bias: broadcasts to (batch, heads, targets, sources).
        mask: True where a target may attend to a source; broadcasts in the same way.
        scale: None for `1 / sqrt(dims)`.
        is_causal: whether targets attend only to earlier sources and their own.
        flash_attention: whether to use cuDNN, available on GPUs; None for XLA.
        attn_logits_soft_cap: must be None.

    Raises:
        ModelError: an array does not have four dims, or `attn_logits_soft_cap` is given.
    """
    arrays = [as_array(array) for array in (query, key, value)]
    if any(array.ndim != 4 for array in arrays) or attn_logits_soft_cap is not None:
        summary = "dot_product_attention takes query, key and value (batch, steps, heads, dims), and no cap of logits"
        given = f"shapes {[array.shape for array in arrays]}, attn_logits_soft_cap={attn_logits_soft_cap}"
        raise ModelError(summary, given=given, fix="ops.expand_dims(x, 2) for one head")
    dtype = jnp.result_type(*arrays)

    def of_heads(array: jax.Array) -> jax.Array:
        while array.ndim < 4:
            is_of_heads = array.ndim == 3 and array.shape[1] == arrays[0].shape[2]
            array = jnp.expand_dims(array, 2 if is_of_heads else 1)
        return array

    return jax.nn.dot_product_attention(
        *(array.astype(dtype) for array in arrays),
        bias=None if bias is None else of_heads(as_array(bias, dtype)),
        mask=None if mask is None else of_heads(as_array(mask)).astype(bool),
        scale=scale,
        is_causal=is_causal,
        implementation="cudnn" if flash_attention else "xla",
    )
