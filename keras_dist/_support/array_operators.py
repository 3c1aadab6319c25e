# pyright: basic
"""`Operators`: objects that represent an array in arithmetic, comparisons, jax and numpy."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.raw_errors import explained
from keras_dist._support.stateless_scope import current_scope
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import combinable, has_explicit_mesh, hide_mesh_in, hides_mesh
from keras_dist.errors import LayoutError, ModelError, shorten


def value_of(operand: Any) -> Any:
    """Return the array that `operand` represents, for the mesh that is set; return anything else unchanged."""
    value = operand.value if isinstance(operand, Operators) else operand
    return value if has_explicit_mesh() else combinable(value)  # arrays of dtensor keep their layouts


def values_in(tree: PyTree) -> PyTree:
    """Replace variables by their arrays; JAX itself would read them without the current scope."""
    return jax.tree.map(value_of, tree, is_leaf=lambda leaf: isinstance(leaf, Operators))


def native(value: Any) -> Any:
    """Convert a numpy array to native byte order, which JAX needs; return anything else unchanged."""
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    return value


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: _computed(function, self, other)


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: _computed(function, other, self)


@hides_mesh
def _computed(function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    try:
        return function(value_of(one), value_of(other))
    except ValueError as error:
        if "incompatible devices" not in str(error):
            raise
        fix = "keras_dist.dtensor.copy_to_mesh(array, layout) brings an array to the mesh of a layout"
        raise LayoutError("arrays of different meshes cannot be combined", given=str(error), fix=fix) from error


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: function(self.value)


@hide_mesh_in
class Operators:
    """Base of objects that represent an array. Subclasses define what is only declared here.

    Source: `keras.Variable`.
    """

    __slots__ = ()
    __array_priority__ = 100  # as for jax's arrays: `numpy_array * self` calls `__rmul__`

    path: Any
    shape: Any
    dtype: Any
    is_traced: Any
    """Whether the value is a tracer, as in the copy of the object that JAX makes in a trace."""

    _read: Callable[[], Any]  # returns the current array
    _checked: Callable[[Any], Any]  # returns a value as an array of this shape and dtype
    _write: Callable[[Any], Any]  # replaces the current array by a checked one, and returns the new `value`
    _array: Callable[[], Any]  # the current array without other owners: a compiled function may reuse its memory
    _store: Callable[[Any], None]  # replaces the current array by one with the same sharding and no other owner
    peek: Callable[[], Any]
    """Return the current array for immediate use; the caller must not keep it."""

    _lock: Any = threading.RLock()
    """Held from reading `_array` until its user is dispatched, or a new array stored; shared without a model."""

    @explained
    def assign(self, value: Any) -> Any:
        """Set and return the value.

        Raises:
            ModelError: the shape differs, or the dtype cannot represent the value.
        """
        value, scope = self._checked(value), current_scope()
        return self._write(value) if scope is None else scope.put(self, value)

    @property
    @hides_mesh
    def value(self) -> Any:
        """The current array; in a traced function of variables, the value in the trace. Set it by `assign`."""
        scope = current_scope()
        return self._read() if scope is None else scope.get(self, self._read)

    @value.setter
    def value(self, value: Any) -> NoReturn:
        given = f"variable.value = {shorten(value)}"
        raise ModelError(f"cannot set `value` of {self.path!r}", given=given, fix="variable.assign(value)")

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def numpy(self) -> np.ndarray:
        """Return the value as a numpy array."""
        return np.asarray(self.value)

    @explained
    def assign_add(self, value: Any) -> Any:
        """Add `value`, and return the sum."""
        return self.assign(self.value + jnp.asarray(value_of(value)))

    @explained
    def assign_sub(self, value: Any) -> Any:
        """Subtract `value`, and return the difference."""
        return self.assign(self.value - jnp.asarray(value_of(value)))

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __round__(self, ndigits: int | None = None) -> Any:
        return jnp.round(self.value, ndigits or 0)

    __hash__ = None  # type: ignore[assignment]  # as for arrays, since `==` compares elements

    __bool__, __int__, __float__, __index__ = _unary(bool), _unary(int), _unary(float), _unary(operator.index)
    __neg__, __pos__ = _unary(operator.neg), _unary(operator.pos)
    __abs__, __invert__ = _unary(operator.abs), _unary(operator.invert)
    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __and__, __rand__ = _binary(operator.and_), _reflected(operator.and_)
    __or__, __ror__ = _binary(operator.or_), _reflected(operator.or_)
    __xor__, __rxor__ = _binary(operator.xor), _reflected(operator.xor)
    __eq__, __ne__ = _binary(operator.eq), _binary(operator.ne)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
