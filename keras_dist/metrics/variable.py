"""`MetricVariable`: an array of a metric's state, and the scope in which other values stand in its place."""

from __future__ import annotations

import contextlib
import contextvars
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.errors import ModelError

_replaced: contextvars.ContextVar[dict[MetricVariable, Any]] = contextvars.ContextVar("replaced")


def value_of(value: Any) -> Any:
    """The array of a variable; anything else as it is."""
    return value.value if isinstance(value, MetricVariable) else value


@contextlib.contextmanager
def replaced(values: Mapping[MetricVariable, Any]) -> Iterator[None]:
    """Inside, the variables have these values, and what is assigned is forgotten afterwards."""
    token = _replaced.set({**_replaced.get({}), **values})
    try:
        yield
    finally:
        _replaced.reset(token)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: function(jnp.asarray(self.value), value_of(other))


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: function(value_of(other), jnp.asarray(self.value))


class MetricVariable:
    """An array of a metric's state. It counts as its value in arithmetic; functions of `jax.numpy` take `value`.

    Args:
        value: the initial value; it decides shape and dtype for good.
        name: for errors and listings.
    """

    def __init__(self, value: np.ndarray, name: str) -> None:
        self.name = name
        self.shape = value.shape
        self.dtype = value.dtype
        self._value: Any = value
        self._held: Any = None

    @property
    def value(self) -> Any:
        """The current array."""
        values = _replaced.get({})
        if self in values:
            return values[self]
        if self._held is not None:
            self._value, self._held = np.asarray(self._held), None
        return self._value

    def hold(self, value: jax.Array) -> None:
        """Put an array of its shape and dtype in the place of the current one; reading it fetches it to the host."""
        self._held = value

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    def numpy(self) -> np.ndarray:
        """The current value on the host."""
        return np.asarray(self.value)

    def assign(self, value: Any) -> None:
        """Put `value` in the place of the current one; it is broadcast to the shape and cast to the dtype.

        Raises:
            ModelError: it has another shape.
        """
        array = jnp.asarray(value_of(value), self.dtype)
        if array.shape != self.shape:
            if array.ndim:
                raise ModelError(
                    f"metric variable {self.name!r} cannot take a value of another shape",
                    given=f"shape {array.shape}",
                    expected=f"shape {self.shape}, or a scalar",
                    fix=f"reduce the value first, or add_variable(shape={array.shape}, ...)",
                )
            array = jnp.broadcast_to(array, self.shape)
        values = _replaced.get(None)
        if values is None:
            self._value, self._held = array, None
        else:
            values[self] = array

    def assign_add(self, value: Any) -> None:
        """Add `value` in place."""
        self.assign(self.value + value_of(value))

    def assign_sub(self, value: Any) -> None:
        """Subtract `value` in place."""
        self.assign(self.value - value_of(value))

    def __jax_array__(self) -> Any:
        return jnp.asarray(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype)

    def __repr__(self) -> str:
        return f"<MetricVariable {self.name!r} {self.value}>"

    def __getitem__(self, index: Any) -> Any:
        return jnp.asarray(self.value)[index]

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __neg__(self) -> Any:
        return -jnp.asarray(self.value)

    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
