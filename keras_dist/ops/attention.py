"""Attention: arithmetic, which layers call, and `dot_product_attention`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError, one_of
from keras_dist.ops.operation import as_array, operation
from keras_dist.ops.ring_attention import RingOptions, ring_for

IMPLEMENTATIONS = ("auto", "xla", "cudnn", "ring")
"""Implementations of `dot_product_attention`."""


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


def positions_kept(targets: jax.Array, sources: jax.Array, is_causal: bool, window: int | None) -> list[jax.Array]:
    """Return masks (targets, sources): of no later positions if causal, and of distances below `window`."""
    distance = targets[:, None] - sources
    return [*([distance >= 0] if is_causal else []), *([] if window is None else [jnp.abs(distance) < window])]


def ring_options(
    query: jax.Array, key: jax.Array, mask: jax.Array | None, scale: float, is_causal: bool, window: int | None = None
) -> RingOptions:
    """Return the options of attention between all positions of `query` and `key`."""

    def visible(targets: jax.Array, sources: jax.Array) -> jax.Array | None:
        found = positions_kept(targets, sources, is_causal, window)
        return functools.reduce(jnp.logical_and, found)[None] if found else None

    targets, sources = (jnp.arange(array.shape[1]) for array in (query, key))
    return RingOptions(scale, visible, targets, sources, [] if mask is None else [mask])


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
    *,
    implementation: str = "auto",
) -> jax.Array:
    """Return `softmax(query @ key * scale + bias) @ value` for each head; see `jax.nn.dot_product_attention`.

    In the steps of a model whose strategy has a `sequence_axis`, such as `kd.presets.sequence_parallel`, keys and
    values are passed around this axis of the mesh, block by block (ring attention, arXiv:2310.01889): no device holds
    all of them, or all scores. With a bias, or where the axis does not divide the steps, XLA gathers keys and values;
    `kd.plan` names the reason.

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
        implementation: `"xla"`, `"cudnn"`, `"ring"`, or `"auto"`, a ring where the strategy has a sequence axis.

    Raises:
        ModelError: an array does not have four dims, `attn_logits_soft_cap` is given, or the implementation is unknown
            or cannot be used.

    Example:
        >>> import jax, keras_dist as kd
        >>> rules = kd.LayoutMap(kd.DeviceMesh("data=2,sequence=4"))
        >>> with kd.ModelParallel(rules, "data", sequence_axis="sequence").scope():
        ...     x = kd.Input((16, 32))
        ...     q, k, v = (kd.layers.EinsumDense("btf,fhd->bthd", (None, 4, 8))(x) for _ in range(3))
        ...     model = kd.Model(x, kd.ops.dot_product_attention(q, k, v, is_causal=True))
        >>> kd.plan(model, jax.ShapeDtypeStruct((8, 16, 32), "float32")).kernels
        ('attention in a ring over sequence',)
    """
    arrays = [as_array(array) for array in (query, key, value)]
    if any(array.ndim != 4 for array in arrays) or attn_logits_soft_cap is not None:
        summary = "dot_product_attention takes query, key and value (batch, steps, heads, dims), and no cap of logits"
        given = f"shapes {[array.shape for array in arrays]}, attn_logits_soft_cap={attn_logits_soft_cap}"
        raise ModelError(summary, given=given, fix="ops.expand_dims(x, 2) for one head")
    dtype = jnp.result_type(*arrays)
    if implementation not in IMPLEMENTATIONS:
        raise argument_error("implementation", implementation, one_of(IMPLEMENTATIONS), example="auto")

    def of_heads(array: jax.Array) -> jax.Array:
        while array.ndim < 4:
            is_of_heads = array.ndim == 3 and array.shape[1] == arrays[0].shape[2]
            array = jnp.expand_dims(array, 2 if is_of_heads else 1)
        return array

    query, key, value = (array.astype(dtype) for array in arrays)
    mask = None if mask is None else of_heads(as_array(mask)).astype(bool)
    asked = "cudnn" if flash_attention else implementation
    ring = ring_for(asked, query, key, [] if bias is None else ["a bias"])
    if ring is not None:
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return ring.attend(query, key, value, ring_options(query, key, mask, scale, is_causal))
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=None if bias is None else of_heads(as_array(bias, dtype)),
        mask=mask,
        scale=scale,
        is_causal=is_causal,
        implementation="cudnn" if asked == "cudnn" else "xla",
    )
