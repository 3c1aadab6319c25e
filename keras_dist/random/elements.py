"""What chance does to the elements of an array: `dropout`, `shuffle`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_fraction, is_int
from keras_dist.errors import ModelError, shorten
from keras_dist.random.seed_generator import key_of


def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> jax.Array:
    """A fraction of the inputs becomes 0, and the others grow by 1 / (1 - rate), so that the expected sum stays.

    Args:
        inputs: an array.
        rate: the fraction, from 0 to 1; with 0 and 1 no numbers are drawn.
        noise_shape: the shape in which is drawn; elements along dims of 1 are dropped together, None stands for the dim
            of `inputs`. By default the shape of `inputs`.
        seed: as of `normal`.

    Raises:
        ModelError: `rate` is not a fraction, `noise_shape` does not broadcast to `inputs`, `seed` is none, or there is
            none inside a compiled function.

    Source: `keras.random.dropout`.
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
    """The elements of `x` in another order along an axis, each line along it in an order of its own.

    Args:
        x: an array.
        axis: along which they change places.
        seed: as of `normal`.

    Raises:
        ModelError: `axis` is none of `x`, `seed` is none, or there is none inside a compiled function.

    Source: `keras.random.shuffle`, on JAX.
    """
    x = jnp.asarray(x)
    if not is_int(axis, -x.ndim, x.ndim - 1):
        raise ModelError(
            "`axis` is not an axis of `x`",
            given=f"axis={shorten(axis)}, x of shape {x.shape}",
            expected=f"an integer from {-x.ndim} to {x.ndim - 1}" if x.ndim else "an array of at least one dim",
            fix="for example axis=0" if x.ndim else "pass a list of numbers",
        )
    return jax.random.permutation(key_of(seed), x, axis, independent=True)


def _noise_shape(noise_shape: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    if noise_shape is None:
        return shape
    if isinstance(noise_shape, Sequence) and len(noise_shape) == len(shape):
        found = tuple(size if wanted is None else wanted for wanted, size in zip(noise_shape, shape, strict=True))
        if all(drawn in (1, size) for drawn, size in zip(found, shape, strict=True)):
            return found
    raise ModelError(
        "`noise_shape` does not broadcast to the inputs",
        given=f"noise_shape={shorten(noise_shape)}, inputs of shape {shape}",
        expected=f"{len(shape)} dims, each 1, None, or that of the inputs",
        fix=f"for example noise_shape={(*shape[:1], *(1 for _ in shape[1:]))}",
    )
