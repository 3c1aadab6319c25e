"""Activations whose values depend on their neighbours along an axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from optax import projections

from keras_dist.errors import ModelError


def softmax(x: Any, axis: int | tuple[int, ...] = -1) -> jax.Array:
    """`exp(x) / sum(exp(x))`, a probability for each class.

    Args:
        x: an array.
        axis: of the classes.

    Source: `keras.activations.softmax`.
    """
    return jax.nn.softmax(jnp.asarray(x), axis)


def log_softmax(x: Any, axis: int | tuple[int, ...] = -1) -> jax.Array:
    """`log(softmax(x))`.

    Args:
        x: an array.
        axis: of the classes.

    Source: `keras.activations.log_softmax`.
    """
    return jax.nn.log_softmax(jnp.asarray(x), axis)


def sparsemax(x: Any, axis: int = -1) -> jax.Array:
    """The probabilities nearest to `x`: many are exactly 0.

    Args:
        x: an array.
        axis: of the classes.

    Differs from Keras: the values add up to 1, as in the paper. Those of Keras 3.15 do only where one class is left.

    Source: `keras.activations.sparsemax`; https://arxiv.org/abs/1602.02068.
    """
    x = jnp.asarray(x)
    dtype = jnp.result_type(x, 0.0)  # the projection gives float32 for shorter floats, and floors integers
    return jnp.apply_along_axis(projections.projection_simplex, axis, x.astype(dtype)).astype(dtype)


def glu(x: Any, axis: int = -1) -> jax.Array:
    """`a * sigmoid(b)` for the two halves `a` and `b` of `x`.

    Args:
        x: an array.
        axis: that is halved.

    Raises:
        ModelError: the dim is odd.

    Source: `keras.activations.glu`; https://arxiv.org/abs/1612.08083.
    """
    x = jnp.asarray(x)
    if x.shape[axis] % 2:
        raise ModelError(
            "glu cannot halve its input",
            given=f"shape {x.shape}, axis {axis}",
            expected="an even dim at that axis",
            fix="double the units of the layer before, or choose another axis",
        )
    return jax.nn.glu(x, axis)
