"""The weights of a layer: how they are made, and in which order they are listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist import _paths
from keras_dist.errors import ModelError, shorten


class Statistic(nnx.Variable):
    """A weight that is not trained by gradients, such as a moving mean."""


class OwnWeight:
    """A handle on a weight that a layer owns itself, because it is in no model yet.

    Attributes:
        path: the names that lead to it from the layer, such as `kernel`.
        name: what `add_weight` called it.
        shape: its dims.
        dtype: its element type.
        trainable: whether gradients train it.
        layout: None: it lives where JAX puts arrays.
    """

    layout = None

    def __init__(self, path: str, variable: nnx.Variable, trainable: bool) -> None:
        self._variable = variable
        self.path = path
        self.name = keras_name(variable) or path.rpartition("/")[2]
        self.trainable = trainable

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims."""
        return self._variable.shape

    @property
    def dtype(self) -> Any:
        """Its element type."""
        return self._variable.dtype

    @property
    def value(self) -> jax.Array:
        """Its current value."""
        return self._variable[...]

    def numpy(self) -> np.ndarray:
        """Its current value on the host."""
        return np.asarray(self._variable[...])

    def assign(self, value: Any) -> None:
        """Set its value.

        Raises:
            ModelError: the shape differs.
        """
        if np.shape(value) != self.shape:
            raise ModelError(
                f"cannot assign to {self.path!r}: the shape differs",
                given=f"shape {np.shape(value)}",
                expected=f"shape {self.shape}",
                fix="reshape the value, or assign to another variable",
            )
        self._variable[...] = jnp.array(value, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}>"


def keras_name(variable: Any) -> str | None:
    """What `add_weight` called a variable; None for others."""
    return variable.get_metadata().get("keras_name")


def walk(module: Any) -> Iterator[tuple[_paths.Parts, nnx.Variable]]:
    """Every variable of a module once, in Keras's order, with the names that lead to it.

    First a layer's own weights, those that are trained before the others, then its sublayers, all in the order in which
    they were assigned; then the same for each sublayer.
    """
    yield from _walk(module, (), set())


def _walk(node: Any, parts: _paths.Parts, seen: set[int]) -> Iterator[tuple[_paths.Parts, nnx.Variable]]:
    if id(node) in seen:
        return
    seen.add(id(node))
    children = children_of(node)
    variables = [(name, value) for name, value in children if isinstance(value, nnx.Variable)]
    for name, value in sorted(variables, key=lambda item: not isinstance(item[1], nnx.Param)):
        if id(value) not in seen:
            seen.add(id(value))
            yield _paths.visible((*parts, name)), value
    for name, value in children:
        if not isinstance(value, nnx.Variable):
            yield from _walk(value, (*parts, name), seen)


def children_of(node: Any) -> list[tuple[str | int, Any]]:
    """The variables and modules that a module holds, in the order of assignment."""
    named = list(enumerate(node)) if isinstance(node, nnx.List) else list(vars(node).items())
    return [(name, value) for name, value in named if isinstance(value, nnx.Variable | nnx.Module)]


def penalties(module: Any) -> list[Any]:
    """What the regularizers of the trained weights give, a scalar each."""
    frozen: set[int] = set()
    for _, node in nnx.iter_graph(module):
        if getattr(node, "_trainable", True) is False:
            frozen |= {id(variable) for _, variable in walk(node)}
    found = []
    for _, variable in walk(module):
        regularizer = variable.get_metadata().get("regularizer")
        if regularizer is not None and isinstance(variable, nnx.Param) and id(variable) not in frozen:
            found.append(regularizer(variable[...]))
    return found


def check_initial_value(value: Any, shape: tuple[int, ...], weight: str, layer: str, initializer: Any) -> None:
    """Check what an initializer returned.

    Raises:
        ModelError: it is no array of this shape.
    """
    if jnp.shape(value) != shape:
        raise ModelError(
            f"the initializer of {weight!r} in layer {layer!r} gave another shape",
            given=f"shape {jnp.shape(value)} from {shorten(initializer)}",
            expected=f"shape {shape}",
            fix="return an array of the shape that the initializer is called with",
        )


def check_shape(shape: Any, weight: str, layer: str) -> tuple[int, ...]:
    """`shape` as a tuple of positive integers.

    Raises:
        ModelError: it is none.
    """
    dims = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1 for size in dims):
        raise ModelError(
            f"weight {weight!r} of layer {layer!r} cannot have this shape",
            given=f"shape {shorten(shape)}",
            expected="integers of at least 1",
            fix="give the dims that follow from the input a fixed size: for example Input((28, 28, 1))",
        )
    return tuple(int(size) for size in dims)
