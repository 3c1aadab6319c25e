"""Keras's random functions: numbers of a distribution, `dropout` and `shuffle`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_fraction, check_int, check_shape, is_int, shapes
from keras_dist.errors import ModelError, shorten
from keras_dist.random.seeds import key_of


def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw normally distributed numbers.

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
    """
    return jax.random.normal(key_of(seed), check_shape("shape", shape), _float_dtype(dtype)) * stddev + mean


def truncated_normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw normally distributed numbers; those further than 2 `stddev` from the mean are drawn again.

    Args:
        shape: of the result.
        mean: their expectation.
        stddev: the standard deviation before anything is cut off.
        dtype: as in `normal`.
        seed: as in `normal`.

    Raises:
        ModelError: as in `normal`.
    """
    dims, dtype = check_shape("shape", shape), _float_dtype(dtype)
    return jax.random.truncated_normal(key_of(seed), -2.0, 2.0, dims, dtype) * stddev + mean


def uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw uniformly distributed numbers from [minval, maxval).

    Args:
        shape: of the result.
        minval: the least number.
        maxval: above all numbers.
        dtype: as in `normal`.
        seed: as in `normal`.

    Raises:
        ModelError: as in `normal`.
    """
    return jax.random.uniform(key_of(seed), check_shape("shape", shape), _float_dtype(dtype), minval, maxval)


def gamma(shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the Gamma distribution with scale 1.

    Args:
        shape: of the result.
        alpha: the shape parameter, a number or numbers that broadcast to `shape`.
        dtype: as in `normal`.
        seed: as in `normal`.

    Raises:
        ModelError: as in `normal`.
    """
    return jax.random.gamma(key_of(seed), jnp.asarray(alpha), check_shape("shape", shape), _float_dtype(dtype))


def beta(shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the Beta distribution.

    Args:
        shape: of the result.
        alpha: its first parameter, a number or numbers that broadcast to `shape`.
        beta: its second parameter, which broadcasts to `shape`.
        dtype: as in `normal`.
        seed: as in `normal`.

    Raises:
        ModelError: as in `normal`.
    """
    dims, dtype = check_shape("shape", shape), _float_dtype(dtype)
    return jax.random.beta(key_of(seed), jnp.asarray(alpha), jnp.asarray(beta), dims, dtype)


def randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> jax.Array:
    """Draw uniformly distributed integers from [minval, maxval).

    Args:
        shape: of the result.
        minval: the least integer.
        maxval: above all integers.
        dtype: one of integers; int32 by default.
        seed: as in `normal`.

    Raises:
        ModelError: `shape`, `dtype` or `seed` is none, or there is no seed inside a compiled function.
    """
    return jax.random.randint(key_of(seed), check_shape("shape", shape), minval, maxval, _int_dtype(dtype))


def categorical(logits: Any, num_samples: int, dtype: Any = "int32", seed: Any = None) -> jax.Array:
    """Draw classes with the probabilities that logits give.

    Args:
        logits: logarithms of probabilities up to a constant a row, (batch, classes).
        num_samples: how many are drawn for each row, independently.
        dtype: of the result.
        seed: as in `normal`.

    Returns:
        Indices of classes, (batch, num_samples).

    Raises:
        ModelError: `logits` does not have two dims, `num_samples` is no count, `seed` is none, or there is none inside
            a compiled function.
    """
    logits = jnp.asarray(logits)
    if logits.ndim != 2:
        fix = "for one distribution pass logits[None]" if logits.ndim == 1 else "reshape it to (-1, classes)"
        raise ModelError("`logits` must have the shape (batch, classes)", given=shapes(logits=logits), fix=fix)
    shape = (logits.shape[0], check_int("num_samples", num_samples, 0))
    return jax.random.categorical(key_of(seed), logits[..., None], axis=1, shape=shape).astype(dtype)


def binomial(shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the binomial distribution: numbers of successes in `counts` trials.

    Args:
        shape: of the result.
        counts: numbers of trials, that broadcast to `shape`.
        probabilities: of success, that broadcast to `shape`.
        dtype: a floating-point one; float32 by default.
        seed: as in `normal`.

    Raises:
        ModelError: as in `randint`.
    """
    dims, dtype = check_shape("shape", shape), _float_dtype(dtype)
    return jax.random.binomial(key_of(seed), jnp.asarray(counts), jnp.asarray(probabilities), dims, dtype)


def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> jax.Array:
    """Set a fraction of the inputs to 0, and scale the others by 1 / (1 - rate).

    Args:
        inputs: an array.
        rate: the fraction, from 0 to 1; with 0 and 1 no numbers are drawn.
        noise_shape: the shape in which is drawn; elements along dims of 1 are dropped together, None stands for the dim
            of `inputs`. By default the shape of `inputs`.
        seed: as in `normal`.

    Raises:
        ModelError: `rate` is not a fraction, `noise_shape` does not broadcast to `inputs`, `seed` is none, or there is
            none inside a compiled function.
    """
    inputs, rate = jnp.asarray(inputs), check_fraction("rate", rate)
    shape = _noise_shape(noise_shape, inputs.shape)
    if rate == 0:
        return inputs
    if rate == 1:
        return jnp.zeros_like(inputs)
    kept = jax.random.bernoulli(key_of(seed), 1 - rate, shape)
    return jnp.where(kept, inputs / (1 - rate), 0)


def shuffle(x: Any, axis: int = 0, seed: Any = None) -> jax.Array:
    """Shuffle the elements of `x` along an axis, each line along it independently.

    Args:
        x: an array.
        axis: along which they change places.
        seed: as in `normal`.

    Raises:
        ModelError: `axis` is none of `x`, `seed` is none, or there is none inside a compiled function.

    Source: `keras.random.shuffle`, on JAX.
    """
    x = jnp.asarray(x)
    if not is_int(axis, -x.ndim, x.ndim - 1):
        axes = f"an integer from {-x.ndim} to {x.ndim - 1}" if x.ndim else "an axis of `x`, which has none"
        fix = "for example axis=0" if x.ndim else "pass a list of numbers"
        raise ModelError(f"`axis` must be {axes}", given=f"axis={shorten(axis)}, x of shape {x.shape}", fix=fix)
    return jax.random.permutation(key_of(seed), x, axis, independent=True)


def _noise_shape(noise_shape: Sequence[int | None] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    if noise_shape is None:
        return shape
    wanted = noise_shape if isinstance(noise_shape, Sequence) else ()  # pyright: ignore[reportUnnecessaryIsInstance]
    if len(wanted) == len(shape):
        found = tuple(size if dim is None else dim for dim, size in zip(wanted, shape, strict=True))
        if all(drawn in (1, size) for drawn, size in zip(found, shape, strict=True)):
            return found
    given = f"noise_shape={shorten(noise_shape)}, inputs of shape {shape}"
    fix = f"for example noise_shape={(*shape[:1], *(1 for _ in shape[1:]))}"
    raise ModelError("`noise_shape` does not broadcast to the inputs", given=given, fix=fix)


def _float_dtype(dtype: Any) -> np.dtype:
    return _dtype("float32" if dtype is None else dtype, jnp.floating, "a floating-point dtype", "float32")


def _int_dtype(dtype: Any) -> np.dtype:
    return _dtype("int32" if dtype is None else dtype, jnp.integer, "an integer dtype", "int32")


def _dtype(dtype: Any, kind: Any, expected: str, example: str) -> np.dtype:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if not jnp.issubdtype(found, kind):
        raise argument_error("dtype", dtype, expected, example=example)
    return found
