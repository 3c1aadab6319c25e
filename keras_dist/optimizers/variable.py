"""`OptimizerVariable`: an array of the state of a built optimizer; `ModelState`: where a model holds that state."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import _jax
from keras_dist._operators import Operators, as_pytree, value_of
from keras_dist.errors import ModelError


@as_pytree
class OptimizerVariable(Operators):
    """An array of the state of a built optimizer. It counts as its value in arithmetic and `jax.numpy`.

    Args:
        path: the names that lead to it, such as `inner/slots/0/mu/dense/kernel`.
        value: the initial value; it decides shape and dtype for good.

    Attributes:
        path: the names that lead to it.
        name: the last of them.
        shape: its dims.
        dtype: its element type.
    """

    def __init__(self, path: str, value: jax.Array) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self.shape, self.dtype = value.shape, value.dtype
        self._value = value

    def _read(self) -> jax.Array:
        return self._value

    def assign(self, value: Any) -> jax.Array:
        """Replace the value, and return the new one.

        Raises:
            ModelError: it has another shape, or is traced.
        """
        array = value_of(value)
        if _jax.is_traced(array) or jnp.shape(array) != self.shape:
            raise ModelError(
                f"optimizer variable {self.path!r} cannot take this value",
                given="a traced array" if _jax.is_traced(array) else f"shape {jnp.shape(array)}",
                expected=f"an array of shape {self.shape}",
                fix="in compiled functions stateless_apply gives the new arrays; assign them afterwards",
            )
        self._value = jnp.asarray(array, self.dtype)
        return self._value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}>"


@dataclasses.dataclass(eq=False)
class ModelState:
    """The state of an optimizer in a model.

    Attributes:
        state: what `init` gave, with a handle in the place of each array.
        steps: a handle on how many steps the model has taken.
        cell: owns the arrays.
    """

    state: Any
    steps: Any
    cell: Any
