"""`OptimizerVariable`: an array of the state of a built optimizer; `ModelState`: where a model holds that state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist import _jax, _paths
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

    _is_private = True

    def _array(self) -> jax.Array:
        return self._value

    def _read(self) -> jax.Array:
        with self._lock:
            return jnp.array(self._value, copy=True)  # which no later step consumes

    def _checked(self, value: Any) -> jax.Array:
        if jnp.shape(value_of(value)) != self.shape:
            raise self._refused(f"shape {jnp.shape(value_of(value))}")
        return jnp.asarray(value_of(value), self.dtype)

    def _write(self, value: jax.Array) -> jax.Array:
        if _jax.is_traced(value):
            raise self._refused("a traced array")
        self._value = jnp.array(value, copy=True)
        return value

    def _store(self, array: jax.Array) -> None:
        self._value = array

    def _refused(self, given: str) -> ModelError:
        return ModelError(
            f"optimizer variable {self.path!r} cannot take this value",
            given=given,
            expected=f"an array of shape {self.shape}",
            fix="in compiled functions stateless_apply gives the new arrays; assign them afterwards",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}>"


@as_pytree
class Iterations(Operators):
    """The number of steps that an optimizer has taken, from before it has variables on.

    Args:
        optimizer: any.
    """

    path = name = "iterations"
    shape: tuple[int, ...] = ()
    dtype = jnp.dtype("int32")

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def _own(self) -> Any:
        return self._optimizer._steps_taken() if self._optimizer.built else None

    def _read(self) -> jax.Array:
        own = self._own()
        return jnp.zeros((), jnp.int32) if own is None else own.value

    def _checked(self, value: Any) -> Any:
        return value

    def _write(self, value: Any) -> Any:
        own = self._own()
        if own is None:
            raise ModelError(
                f"the optimizer {self._optimizer.name!r} has no variables yet",
                given="optimizer.iterations.assign(...)",
                expected="an optimizer that was built, or compiled with a model",
                fix="optimizer.build(model.trainable_variables) first",
            )
        return own.assign(value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {int(self.value)}>"


@dataclasses.dataclass(eq=False)
class ModelState:
    """The state of an optimizer in a model.

    Attributes:
        state: what `init` gave, with a handle in the place of each array.
        steps: a handle on how many steps the model has taken.
        cell: owns the arrays.
        trained: handles on the variables that it updates, in the order of `model.trainable_variables`.
        parts: for each the names that lead to it.
        scattered: lays gradients, nested by these names, as the slots that they update (traced).
    """

    state: Any
    steps: Any
    cell: Any
    trained: Sequence[Any] = ()
    parts: Sequence[_paths.Parts] = ()
    scattered: Callable[[Any], Any] = dataclasses.field(default=lambda grads: grads)
