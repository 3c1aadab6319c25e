"""Counts and choices at random: `randint`, `categorical`, `binomial`."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError, shorten
from keras_dist.random.arguments import check_float_dtype, check_int_dtype, check_shape
from keras_dist.random.seed_generator import key_of


def randint(shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> jax.Array:
    """Integers that are equally likely in [minval, maxval).

    Args:
        shape: of the result.
        minval: the least integer.
        maxval: above all integers.
        dtype: one of integers.
        seed: as of `normal`.

    Raises:
        ModelError: `shape`, `dtype` or `seed` is none, or there is no seed inside a compiled function.

    Source: `keras.random.randint`.
    """
    return jax.random.randint(key_of(seed), check_shape(shape), minval, maxval, check_int_dtype(dtype))


def categorical(logits: Any, num_samples: int, dtype: Any = "int32", seed: Any = None) -> jax.Array:
    """Classes, each drawn with the probability of its logit.

    Args:
        logits: logarithms of probabilities up to a constant a row, (batch, classes).
        num_samples: how many are drawn for each row, independently.
        dtype: of the result.
        seed: as of `normal`.

    Returns:
        Indices of classes, (batch, num_samples).

    Raises:
        ModelError: `logits` does not have two dims, `num_samples` is no count, `seed` is none, or there is none inside
            a compiled function.

    Source: `keras.random.categorical`.
    """
    logits = jnp.asarray(logits)
    if logits.ndim != 2:
        raise ModelError(
            "`logits` does not have two dims",
            given=f"shape {logits.shape}",
            expected="(batch, classes)",
            fix="for one distribution pass logits[None]" if logits.ndim == 1 else "reshape it to (-1, classes)",
        )
    shape = (logits.shape[0], _check_count(num_samples))
    return jax.random.categorical(key_of(seed), logits[..., None], axis=1, shape=shape).astype(dtype)


def binomial(shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None) -> jax.Array:
    """How many of `counts` trials succeed.

    Args:
        shape: of the result.
        counts: numbers of trials, that broadcast to `shape`.
        probabilities: of success, that broadcast to `shape`.
        dtype: a floating-point one; float32 by default.
        seed: as of `normal`.

    Raises:
        ModelError: as of `randint`.

    Source: `keras.random.binomial`.
    """
    dims, dtype = check_shape(shape), check_float_dtype(dtype)
    return jax.random.binomial(key_of(seed), jnp.asarray(counts), jnp.asarray(probabilities), dims, dtype)


def _check_count(num_samples: Any) -> int:
    try:
        count = operator.index(num_samples)
    except TypeError:
        count = -1
    if count < 0:
        raise ModelError(
            "`num_samples` is not a count",
            given=f"num_samples={shorten(num_samples)}",
            expected="an integer of at least 0",
            fix="for example num_samples=1",
        )
    return count
