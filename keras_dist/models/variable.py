"""`ModelVariable`: a handle on one variable of a model, valid for as long as the model."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.placement import place_copy
from keras_dist.distribution.plan import Row
from keras_dist.errors import ModelError, shorten
from keras_dist.training.cell import StateCell, host_copy


class ModelVariable:
    """A handle on one variable of a model. It holds no array: it reads and writes the model's current state.

    Attributes:
        path: the names that lead to it, such as `d1/kernel`.
        name: the last of them, such as `kernel`.
        shape: its dims.
        dtype: its element type.
        layout: its `TensorLayout`.
        trainable: whether it is trained.
        is_key: whether it is the key of a random stream.
    """

    def __init__(self, row: Row, cell: StateCell) -> None:
        self._row = row
        self._cell = cell
        self.path = row.path
        self.name = row.path.rpartition("/")[2]
        self.shape = row.shape
        self.dtype = row.dtype
        self.trainable = cell.is_trained(row.path)
        self.is_key = row.role == "rng"

    @property
    def layout(self) -> TensorLayout:
        """Where its dims lie."""
        return TensorLayout(self._cell.row(self.path).axes, self._cell.mesh)

    @property
    def value(self) -> jax.Array:
        """Its current value: a copy, which later training does not change or delete."""
        with self._cell.lock:
            return place_copy(self._cell.read(self.path), self.layout.backend_layout)

    @value.setter
    def value(self, value: Any) -> None:
        raise ModelError(
            f"cannot set `value` of {self.path!r}",
            given=f"variable.value = {shorten(value)}",
            expected="`value` to be read only",
            fix="variable.assign(value)",
        )

    def numpy(self) -> np.ndarray:
        """Its current value on the host; of a PRNG key its data."""
        with self._cell.lock:
            return host_copy(self._cell.read(self.path))

    def assign(self, value: Any) -> None:
        """Set its value, from the next step on. Layout and dtype stay as they are.

        Args:
            value: an array of its shape.

        Raises:
            ModelError: the shape differs, or it is no array that its dtype can hold.
        """
        self._cell.write(self.path, checked_value(value, self._row))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}, axes={self.layout.axes}>"
        )


def checked_value(value: Any, row: Row) -> Any:
    """`value` in the dtype of `row`.

    Raises:
        ModelError: it has another shape, is no numbers, or is complex where the variable is not.
    """
    if getattr(value, "dtype", None) == row.dtype and np.shape(value) == row.shape:
        return value
    _check_numbers(value, row)
    if np.shape(value) != row.shape:
        raise ModelError(
            f"cannot assign to {row.path!r}: the shape differs",
            given=f"shape {np.shape(value)}",
            expected=f"shape {row.shape}",
            fix="reshape the value, or assign to another variable",
        )
    return jax.numpy.asarray(value, row.dtype)


def _check_numbers(value: Any, row: Row) -> None:
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    is_number = dtype == np.bool_ or jax.numpy.issubdtype(dtype, jax.numpy.number)
    loses_part = _is_complex(dtype) and not _is_complex(row.dtype)
    if not is_number or loses_part:
        raise ModelError(
            f"cannot assign to {row.path!r}: not numbers of its kind",
            given=f"{shorten(value)} of type {type(value).__name__}",
            expected=f"an array that casts to {row.dtype}",
            fix="convert it first, for example np.asarray(value).real",
        )


def _is_complex(dtype: Any) -> bool:
    """Whether `dtype` has an imaginary part."""
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.complexfloating))
