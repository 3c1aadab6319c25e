"""Smooth activations of single values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def sigmoid(x: Any) -> jax.Array:
    """`1 / (1 + exp(-x))`.

    Source: `keras.activations.sigmoid`.
    """
    return jax.nn.sigmoid(jnp.asarray(x))


def log_sigmoid(x: Any) -> jax.Array:
    """`log(sigmoid(x))`.

    Source: `keras.activations.log_sigmoid`.
    """
    return jax.nn.log_sigmoid(jnp.asarray(x))


def tanh(x: Any) -> jax.Array:
    """The hyperbolic tangent.

    Source: `keras.activations.tanh`.
    """
    return jax.nn.tanh(jnp.asarray(x))


def exponential(x: Any) -> jax.Array:
    """`exp(x)`.

    Source: `keras.activations.exponential`.
    """
    return jnp.exp(jnp.asarray(x))


def softplus(x: Any) -> jax.Array:
    """`log(exp(x) + 1)`.

    Source: `keras.activations.softplus`.
    """
    return jax.nn.softplus(jnp.asarray(x))


def softsign(x: Any) -> jax.Array:
    """`x / (abs(x) + 1)`.

    Source: `keras.activations.softsign`.
    """
    return jax.nn.soft_sign(jnp.asarray(x))


def squareplus(x: Any, b: float = 4) -> jax.Array:
    """`(x + sqrt(x**2 + b)) / 2`.

    Source: `keras.activations.squareplus`; https://arxiv.org/abs/2112.11687.
    """
    return jax.nn.squareplus(jnp.asarray(x), b)


def elu(x: Any, alpha: float = 1.0) -> jax.Array:
    """`x` above 0, `alpha * (exp(x) - 1)` below.

    Source: `keras.activations.elu`; https://arxiv.org/abs/1511.07289.
    """
    return jax.nn.elu(jnp.asarray(x), alpha)


def selu(x: Any) -> jax.Array:
    """`elu` with the scales that keep mean 0 and variance 1 from layer to layer, beside `LecunNormal` kernels.

    Source: `keras.activations.selu`; https://arxiv.org/abs/1706.02515.
    """
    return jax.nn.selu(jnp.asarray(x))


def celu(x: Any, alpha: float = 1.0) -> jax.Array:
    """`x` above 0, `alpha * (exp(x / alpha) - 1)` below.

    Source: `keras.activations.celu`; https://arxiv.org/abs/1704.07483.
    """
    return jax.nn.celu(jnp.asarray(x), alpha)


def silu(x: Any) -> jax.Array:
    """`x * sigmoid(x)`, also called swish.

    Source: `keras.activations.silu`; https://arxiv.org/abs/1710.05941.
    """
    return jax.nn.silu(jnp.asarray(x))


def gelu(x: Any, approximate: bool = False) -> jax.Array:
    """`x * P(X <= x)` for a normally distributed X.

    Args:
        x: an array.
        approximate: whether by tanh instead of erf.

    Source: `keras.activations.gelu`; https://arxiv.org/abs/1606.08415.
    """
    return jax.nn.gelu(jnp.asarray(x), approximate)


def mish(x: Any) -> jax.Array:
    """`x * tanh(softplus(x))`.

    Source: `keras.activations.mish`; https://arxiv.org/abs/1908.08681.
    """
    return jax.nn.mish(jnp.asarray(x))
