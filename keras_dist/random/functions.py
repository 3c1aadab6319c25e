"""Random functions: samples of distributions, `dropout` and `shuffle`."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_fraction, check_int, check_shape, is_int, shapes
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.errors import ModelError, shorten
from keras_dist.random.seeds import key_of


def normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the normal distribution.

    Args:
        shape: the shape of the result.
        mean: the mean.
        stddev: the standard deviation.
        dtype: a floating point dtype; float32 by default.
        seed: an integer, for the same numbers in each call; a `SeedGenerator`, for new numbers; by default the next
            numbers of the process, which compiled functions must not draw.

    Raises:
        ModelError: an argument is invalid, or a compiled function has no seed.

    Example:
        >>> normal((2, 3), seed=1337).shape
        (2, 3)
    """
    return jax.random.normal(key_of(seed), check_shape("shape", shape), _float_dtype(dtype)) * stddev + mean


def truncated_normal(shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the normal distribution, redrawing numbers more than 2 `stddev` from the mean.

    Args:
        shape, mean, dtype, seed: as in `normal`.
        stddev: the standard deviation before truncation.
    """
    dims, dtype = check_shape("shape", shape), _float_dtype(dtype)
    return jax.random.truncated_normal(key_of(seed), -2.0, 2.0, dims, dtype) * stddev + mean


def uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the uniform distribution over [minval, maxval). Other arguments and errors as in `normal`."""
    return jax.random.uniform(key_of(seed), check_shape("shape", shape), _float_dtype(dtype), minval, maxval)


def gamma(shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the Gamma distribution with scale 1.

    Args:
        shape, dtype, seed: as in `normal`.
        alpha: shape parameters, which broadcast to `shape`.
    """
    return jax.random.gamma(key_of(seed), jnp.asarray(alpha), check_shape("shape", shape), _float_dtype(dtype))


def beta(shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw from the Beta distribution.

    Args:
        shape, dtype, seed: as in `normal`.
        alpha, beta: parameters, which broadcast to `shape`.
    """
    dims, dtype = check_shape("shape", shape), _float_dtype(dtype)
    return jax.random.beta(key_of(seed), jnp.asarray(alpha), jnp.asarray(beta), dims, dtype)


def randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> jax.Array:
    """Draw integers uniformly from [minval, maxval), int32 by default. Other arguments and errors as in `normal`."""
    return jax.random.randint(key_of(seed), check_shape("shape", shape), minval, maxval, _int_dtype(dtype))


def categorical(logits: Any, num_samples: int, dtype: Any = "int32", seed: Any = None) -> jax.Array:
    """Draw class indices (batch, num_samples) with probabilities given by logits.

    Args:
        logits: unnormalized log probabilities (batch, classes).
        num_samples: number of independent samples for each row.
        dtype: the dtype of the result.
        seed: as in `normal`.

    Raises:
        ModelError: an argument is invalid, or a compiled function has no seed.
    """
    logits = jnp.asarray(logits)
    if logits.ndim != 2:
        fix = "for one distribution pass logits[None]" if logits.ndim == 1 else "reshape it to (-1, classes)"
        raise ModelError("`logits` must have the shape (batch, classes)", given=shapes(logits=logits), fix=fix)
    shape = (logits.shape[0], check_int("num_samples", num_samples, 0))
    return jax.random.categorical(key_of(seed), logits[..., None], axis=1, shape=shape).astype(dtype)


def binomial(shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """Draw numbers of successes from the binomial distribution.

    Args:
        shape, dtype, seed: as in `normal`.
        counts: numbers of trials, which broadcast to `shape`.
        probabilities: probabilities of success, which broadcast to `shape`.
    """
    dims, dtype = check_shape("shape", shape), _float_dtype(dtype)
    return jax.random.binomial(key_of(seed), jnp.asarray(counts), jnp.asarray(probabilities), dims, dtype)


def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> jax.Array:
    """Set a fraction of the inputs to 0, and scale the others by 1 / (1 - rate).

    Args:
        inputs: an array.
        rate: the fraction, from 0 to 1; for 0 and 1 no numbers are drawn.
        noise_shape: the shape of the random numbers, by default the shape of `inputs`. Elements along dims of 1 are
            dropped together; None is the size of `inputs`.
        seed: as in `normal`.

    Raises:
        ModelError: an argument is invalid, or a compiled function has no seed.
    """
    inputs, rate = jnp.asarray(inputs), check_fraction("rate", rate)
    shape = _noise_shape(noise_shape, inputs.shape)
    if rate == 0:
        return inputs
    if rate == 1:
        return jnp.zeros_like(inputs)
    kept = jax.random.bernoulli(key_of(seed), 1 - rate, shape)
    return jnp.where(kept, inputs / (1 - rate), 0)


@hides_mesh
def shuffle(x: Any, axis: int = 0, seed: Any = None) -> jax.Array:
    """Shuffle the elements of `x` along `axis`, independently of other axes. For `seed` see `normal`.

    Raises:
        ModelError: an argument is invalid, or a compiled function has no seed.
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
    except Exception:  # numpy raises several
        found = np.dtype(object)
    if not jnp.issubdtype(found, kind):
        raise argument_error("dtype", dtype, expected, example=example)
    return found
