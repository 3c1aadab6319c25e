"""Activations of straight and nearly straight pieces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def relu(x: Any, negative_slope: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> jax.Array:
    """`x` above `threshold`, at most `max_value`; `negative_slope * (x - threshold)` below.

    Args:
        x: an array.
        negative_slope: a number.
        max_value: a number, or None for no limit.
        threshold: a number.

    Source: `keras.activations.relu`.
    """
    x = jnp.asarray(x)
    if max_value is None and threshold == 0:
        return jax.nn.leaky_relu(x, negative_slope) if negative_slope else jax.nn.relu(x)
    above = jnp.where(x > threshold, x, 0)
    if max_value is not None:
        above = jnp.clip(above, 0, max_value)
    return above - negative_slope * jax.nn.relu(threshold - x) if negative_slope else above


def leaky_relu(x: Any, negative_slope: float = 0.2) -> jax.Array:
    """`x` above 0, `negative_slope * x` below.

    Source: `keras.activations.leaky_relu`.
    """
    return jax.nn.leaky_relu(jnp.asarray(x), negative_slope)


def relu6(x: Any) -> jax.Array:
    """`min(max(x, 0), 6)`.

    Source: `keras.activations.relu6`.
    """
    return jax.nn.relu6(jnp.asarray(x))


def threshold(x: Any, threshold: float, default_value: float) -> jax.Array:
    """`x` above `threshold`, else `default_value`.

    Source: `keras.activations.threshold`.
    """
    x = jnp.asarray(x)
    return jnp.where(x > threshold, x, default_value)


def linear(x: Any) -> Any:
    """`x`, as it is.

    Source: `keras.activations.linear`.
    """
    return x


def hard_tanh(x: Any) -> jax.Array:
    """`min(max(x, -1), 1)`.

    Source: `keras.activations.hard_tanh`.
    """
    return jax.nn.hard_tanh(jnp.asarray(x))


def hard_sigmoid(x: Any) -> jax.Array:
    """`min(max(x / 6 + 1 / 2, 0), 1)`.

    Source: `keras.activations.hard_sigmoid`.
    """
    return jax.nn.hard_sigmoid(jnp.asarray(x))


def sparse_sigmoid(x: Any) -> jax.Array:
    """`min(max((x + 1) / 2, 0), 1)`.

    Source: `keras.activations.sparse_sigmoid`; https://arxiv.org/abs/1901.02324.
    """
    return jax.nn.sparse_sigmoid(jnp.asarray(x))


def hard_silu(x: Any) -> jax.Array:
    """`x * hard_sigmoid(x)`.

    Source: `keras.activations.hard_silu`; https://arxiv.org/abs/1905.02244.
    """
    return jax.nn.hard_silu(jnp.asarray(x))


def sparse_plus(x: Any) -> jax.Array:
    """0 below -1, `(x + 1)**2 / 4` up to 1, `x` above.

    Source: `keras.activations.sparse_plus`.
    """
    return jax.nn.sparse_plus(jnp.asarray(x))
