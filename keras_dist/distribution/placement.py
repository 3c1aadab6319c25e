"""Moving arrays to devices without sharing the caller's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from keras_dist._operators import native


def place_copy(value: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """A copy of `value` with `sharding`, in memory of its own.

    `jax.device_put` may hand back, or point into, the buffer it was given (the same sharding, one device to eight,
    aligned numpy memory); a later donated step would then delete or overwrite the caller's array.

    Args:
        value: an array, or a Python number.
        sharding: where the copy goes.
    """
    return _copier(sharding)(jax.device_put(native(value), sharding))


@functools.lru_cache(maxsize=512)
def _copier(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jax.numpy.copy, out_shardings=sharding)
