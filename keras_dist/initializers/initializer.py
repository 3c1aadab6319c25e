"""Base classes of initializers, and initializers of users' functions and arrays."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from keras_dist import random
from keras_dist._support.arguments import argument_error
from keras_dist._support.signatures import takes
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError, shorten
from keras_dist.random.seeds import KeySource, check_seed, key_of, next_key, wrap_key
from keras_dist.serialization.configurable import Configurable

_KEYS = ("key", "rng", "rng_key", "prng_key")


class Initializer(Configurable):
    """Base of all initializers; a subclass defines `__call__(shape, dtype, key)`, which returns values of a weight.

    Values depend only on the arguments, so that they can be computed inside `jax.jit`. `initializers.get` also takes a
    subclass without `key`, as in Keras.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import initializers
        >>> class Halves(initializers.Initializer):
        ...     def __call__(self, shape, dtype="float32", key=None):
        ...         return jnp.full(shape, 0.5, dtype)
        >>> Halves()((2,))
        Array([0.5, 0.5], dtype=float32)
    """

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return the values of a weight.

        Args:
            shape: the shape of the weight.
            dtype: the dtype of the weight; None is float32.
            key: a typed PRNG key, different for each weight of a layer. The seed of the initializer takes precedence.
                Without both, `keras_dist.random` provides a key.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(shape, dtype, key)")

    def clone(self) -> Self:
        """Return a new initializer with the same arguments."""
        return self.from_config(self.get_config())


class RandomInitializer(Initializer):
    """Base of initializers that draw random numbers.

    Args:
        seed: None for the key of each weight; an integer, 0 <= seed < 2**32, for the same values in each call, as in
            Keras; or a `SeedGenerator`, whose seed is mixed with the key of a weight.

    Raises:
        ModelError: `seed` is neither of these.
    """

    def __init__(self, seed: int | random.SeedGenerator | None = None) -> None:
        self.seed = seed if seed is None or isinstance(seed, KeySource) else check_seed(seed)

    def choose_key(self, key: jax.Array | None) -> jax.Array:
        """Return the key of the seed, else `key`, else the next key of `keras_dist.random`."""
        if isinstance(self.seed, int):
            return wrap_key(jnp.array([self.seed, 0], jnp.uint32))
        if key is None:
            return next_key() if self.seed is None else key_of(self.seed)
        if not isinstance(key, jax.Array):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise argument_error("key", key, "a PRNG key of JAX, or None", fix="for example key=jax.random.key(0)")
        if self.seed is None or self.seed.seed is None:
            return key
        # the generator is not part of the program that creates a layer's weights
        return jax.random.fold_in(key, self.seed.seed)


class FromFunction(RandomInitializer):
    """A function as an initializer.

    Args:
        function: `f(shape, dtype)`, as in Keras, or `f(key, shape, dtype)`, as in `jax.nn.initializers`, recognised by
            the names of its parameters, or else by their number.

    Raises:
        ModelError: `function` has other parameters.

    Example:
        >>> import jax
        >>> from keras_dist import initializers
        >>> initializers.FromFunction(jax.nn.initializers.ones)((2,))
        Array([1., 1.], dtype=float32)
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.wants_key = _wants_key(function)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return the result of the function as an array of `dtype`."""
        dtype = dtype or "float32"
        if self.wants_key:
            values = self.function(self.choose_key(key), shape, dtype)
        elif _takes_dtype_by_name(self.function):
            values = self.function(shape, dtype=dtype)
        else:
            values = self.function(shape, dtype)
        return jnp.asarray(values, dtype)


class FromArray(Initializer):
    """The values of an array of the shape of the weight."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return the array as `dtype`; raise a ModelError if its shape is not `shape`."""
        self.check(shape)
        return jnp.asarray(self.value, dtype or "float32")

    def check(self, shape: Sequence[int]) -> None:
        """Raise a ModelError if the shape of the array is not `shape`."""
        if tuple(shape) != self.value.shape:
            summary = f"the array of an initializer must have the shape of the weight, {tuple(shape)}"
            fix = "reshape it; one number for a whole weight is initializers.Constant(number)"
            raise ModelError(summary, given=f"an array of shape {self.value.shape}", fix=fix)


def has_contract(function: Callable[..., Any]) -> bool:
    """Whether the form of `function` is `function(shape, dtype, key=key)`."""
    return "key" in _parameters(function)[1:] and takes(function, (), "float32", key=None)


def _wants_key(function: Callable[..., Any]) -> bool:
    """Whether `function` is `f(key, shape, dtype)` and not `f(shape, dtype)`."""
    names = [*_parameters(function), "", ""]
    first, second = names[:2]
    keras_form = _takes_dtype_by_name(function) or takes(function, (), "float32")
    if first not in _KEYS and second != "shape" and keras_form:
        return False
    if first != "shape" and takes(function, None, (), "float32"):
        return True
    summary = "an initializer must be f(shape, dtype), f(key, shape, dtype) or f(shape, dtype, key)"
    given = f"{shorten(function)} with parameters ({', '.join(_parameters(function))})"
    raise ModelError(summary, given=given, fix="change its parameters, or wrap it: lambda shape, dtype: ...")


def _takes_dtype_by_name(function: Callable[..., Any]) -> bool:
    return takes(function, (), dtype="float32")


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters, or none if Python does not know them."""
    try:
        return list(inspect.signature(function).parameters)
    except Exception:  # in words about it, by the user's own __repr__
        return []
