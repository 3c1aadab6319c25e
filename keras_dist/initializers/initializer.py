"""`Initializer`: what gives a weight its first values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError, shorten
from keras_dist.random import check_seed, next_key
from keras_dist.saving import Configurable


class Initializer(Configurable):
    """Base of all initializers: a subclass gives values in `__call__(shape, dtype, key)`.

    Values follow from the arguments alone, so that they can be computed inside a `jax.jit`. A subclass without
    `key`, as in Keras, is taken by `initializers.get`, too.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import initializers
        >>> class Halves(initializers.Initializer):
        ...     def __call__(self, shape, dtype="float32", key=None):
        ...         return jnp.full(shape, 0.5, dtype)
        >>> Halves()((2,))
        Array([0.5, 0.5], dtype=float32)

    Source: `keras.initializers.Initializer`.
    """

    def __call__(self, shape: Sequence[int], dtype: Any = "float32", key: jax.Array | None = None) -> jax.Array:
        """The values of a weight.

        Args:
            shape: of the weight.
            dtype: of the weight; None is float32.
            key: a typed PRNG key, of which the layer gives each weight its own. A seed that the initializer was
                made with goes before it; without both, `keras_dist.random` gives a key.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say in __call__(shape, dtype, key) what it gives")

    def clone(self) -> Self:
        """A new one with the same arguments."""
        return self.from_config(self.get_config())


class RandomInitializer(Initializer):
    """Base of the initializers that draw random numbers.

    Args:
        seed: None, or an integer, 0 <= seed < 2**32, that goes before every key: the values are the same in each call,
            and those of Keras.

    Raises:
        ModelError: `seed` is not such an integer.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = None if seed is None else check_seed(seed)

    def choose_key(self, key: jax.Array | None) -> jax.Array:
        """The key of the seed, else `key`, else the next one of `keras_dist.random`.

        Raises:
            ModelError: `key` is no PRNG key.
        """
        if self.seed is not None:
            return jax.random.wrap_key_data(jnp.array([self.seed, 0], jnp.uint32), impl="threefry2x32")
        if key is None:
            return next_key()
        if not isinstance(key, jax.Array):
            raise ModelError(
                "`key` is not a PRNG key",
                given=f"{shorten(key)} of type {type(key).__name__}",
                expected="a key of JAX, or None",
                fix="for example key=jax.random.key(0)",
            )
        return key
