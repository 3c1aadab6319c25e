"""Activations that take small values away."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def soft_shrink(x: Any, threshold: float = 0.5) -> jax.Array:
    """`x`, moved by `threshold` towards 0 and at most up to it.

    Source: `keras.activations.soft_shrink`.
    """
    x = jnp.asarray(x)
    return jnp.where(x > threshold, x - threshold, jnp.where(x < -threshold, x + threshold, 0))


def hard_shrink(x: Any, threshold: float = 0.5) -> jax.Array:
    """`x` where it is farther from 0 than `threshold`, else 0.

    Source: `keras.activations.hard_shrink`.
    """
    x = jnp.asarray(x)
    return jnp.where(jnp.abs(x) > threshold, x, 0)


def tanh_shrink(x: Any) -> jax.Array:
    """`x - tanh(x)`.

    Source: `keras.activations.tanh_shrink`.
    """
    x = jnp.asarray(x)
    return x - jnp.tanh(x)
