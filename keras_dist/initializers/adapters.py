"""Functions and arrays as initializers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._signatures import takes
from keras_dist.errors import ModelError, shorten
from keras_dist.initializers.initializer import Initializer, RandomInitializer

_KEYS = ("key", "rng", "rng_key", "prng_key")


class FromFunction(RandomInitializer):
    """An initializer of a function of another form.

    Args:
        function: `f(shape, dtype)`, as in Keras, or `f(key, shape, dtype)`, as in `jax.nn.initializers`. The names of
            its parameters decide, and where they say nothing, their number.

    Raises:
        ModelError: it has neither form.

    Example:
        >>> import jax
        >>> from keras_dist import initializers
        >>> initializers.FromFunction(jax.nn.initializers.ones)((2,))
        Array([1., 1.], dtype=float32)
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self._wants_key = _wants_key(function)

    def __call__(self, shape: Sequence[int], dtype: Any = "float32", key: jax.Array | None = None) -> jax.Array:
        """What the function gives, as an array of `dtype`."""
        dtype = dtype or "float32"
        if self._wants_key:
            values = self.function(self.choose_key(key), shape, dtype)
        elif _takes_dtype_by_name(self.function):
            values = self.function(shape, dtype=dtype)
        else:
            values = self.function(shape, dtype)
        return jnp.asarray(values, dtype)


class FromArray(Initializer):
    """The values of an array.

    Args:
        value: an array of the shape of the weight.

    Source: arrays given to `keras.initializers.get`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, shape: Sequence[int], dtype: Any = "float32", key: jax.Array | None = None) -> jax.Array:
        """The array, as `dtype`.

        Raises:
            ModelError: it has another shape.
        """
        if tuple(shape) != self.value.shape:
            raise ModelError(
                "the array of an initializer does not have the shape of the weight",
                given=f"an array of shape {self.value.shape}",
                expected=f"an array of shape {tuple(shape)}",
                fix="reshape it; one number for a whole weight is initializers.Constant(number)",
            )
        return jnp.asarray(self.value, dtype or "float32")


def has_contract(function: Callable[..., Any]) -> bool:
    """Whether `function` is to be called as `function(shape, dtype, key=key)`."""
    return "key" in _parameters(function)[1:] and takes(function, (), "float32", key=None)


def _wants_key(function: Callable[..., Any]) -> bool:
    """Whether `function` is `f(key, shape, dtype)`; False when it is `f(shape, dtype)`."""
    first, second, *_ = *_parameters(function), "", ""
    keras_form = _takes_dtype_by_name(function) or takes(function, (), "float32")
    if first not in _KEYS and second != "shape" and keras_form:
        return False
    if first != "shape" and takes(function, None, (), "float32"):
        return True
    raise ModelError(
        "an initializer has other parameters than a shape and a dtype",
        given=f"{shorten(function)} with parameters ({', '.join(_parameters(function))})",
        expected="f(shape, dtype), f(key, shape, dtype) or f(shape, dtype, key)",
        fix="change its parameters, or wrap it: lambda shape, dtype: ...",
    )


def _takes_dtype_by_name(function: Callable[..., Any]) -> bool:
    return takes(function, (), dtype="float32")


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The names of its parameters; none where Python cannot tell."""
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:
        return []
