"""Real numbers at random: `normal`, `truncated_normal`, `uniform`, `gamma`, `beta`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.random.arguments import check_float_dtype, check_shape
from keras_dist.random.seed_generator import key_of


def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Normally distributed numbers.

    Args:
        shape: of the result.
        mean: their expectation.
        stddev: their standard deviation.
        dtype: a floating-point one; float32 by default.
        seed: an integer, for the same numbers in each call; a `SeedGenerator`, for other ones; by default the next
            numbers of the process, which compiled functions must not draw.

    Raises:
        ModelError: `shape`, `dtype` or `seed` is none, or there is no seed inside a compiled function.

    Example:
        >>> normal((2, 3), seed=1337).shape
        (2, 3)

    Source: `keras.random.normal`.
    """
    return jax.random.normal(key_of(seed), check_shape(shape), check_float_dtype(dtype)) * stddev + mean


def truncated_normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Normally distributed numbers, of which those further than 2 `stddev` from the mean are drawn again.

    Args:
        shape: of the result.
        mean: their expectation.
        stddev: the standard deviation before anything is cut off.
        dtype: as of `normal`.
        seed: as of `normal`.

    Raises:
        ModelError: as of `normal`.

    Source: `keras.random.truncated_normal`.
    """
    dims, dtype = check_shape(shape), check_float_dtype(dtype)
    return jax.random.truncated_normal(key_of(seed), -2.0, 2.0, dims, dtype) * stddev + mean


def uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Numbers that are equally likely in [minval, maxval).

    Args:
        shape: of the result.
        minval: the least number.
        maxval: above all numbers.
        dtype: as of `normal`.
        seed: as of `normal`.

    Raises:
        ModelError: as of `normal`.

    Source: `keras.random.uniform`.
    """
    return jax.random.uniform(key_of(seed), check_shape(shape), check_float_dtype(dtype), minval, maxval)


def gamma(shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Numbers of the Gamma distribution with scale 1.

    Args:
        shape: of the result.
        alpha: the parameter of its form, a number or numbers that broadcast to `shape`.
        dtype: as of `normal`.
        seed: as of `normal`.

    Raises:
        ModelError: as of `normal`.

    Source: `keras.random.gamma`.
    """
    return jax.random.gamma(key_of(seed), jnp.asarray(alpha), check_shape(shape), check_float_dtype(dtype))


def beta(shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Numbers of the Beta distribution, between 0 and 1.

    Args:
        shape: of the result.
        alpha: its first parameter, a number or numbers that broadcast to `shape`.
        beta: its second parameter, likewise.
        dtype: as of `normal`.
        seed: as of `normal`.

    Raises:
        ModelError: as of `normal`.

    Source: `keras.random.beta`.
    """
    dims, dtype = check_shape(shape), check_float_dtype(dtype)
    return jax.random.beta(key_of(seed), jnp.asarray(alpha), jnp.asarray(beta), dims, dtype)
