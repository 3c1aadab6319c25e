"""`ModelVariable`: the handle on one array of a model, valid for as long as the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from keras_dist._operators import Operators, as_pytree
from keras_dist._types import ArrayLike
from keras_dist.distribution.devices import check_not_forked
from keras_dist.distribution.layout import TensorLayout, layout_on
from keras_dist.distribution.placement import host_copy, place_copy
from keras_dist.distribution.plan import Row
from keras_dist.errors import ModelError
from keras_dist.training.state_cell import StateCell
from keras_dist.variables.variable import checked_value


@as_pytree
class ModelVariable(Operators):
    """A handle on one array of a model: a variable, or a slot of its optimizer such as a momentum.

    It reads and writes the model's current state. Reading returns a copy, which later training does not change.

    Args:
        row: the plan's.
        cell: owns the arrays.
        is_trainable: tells whether the variable of a path is trained, as far as its layers have a say.
        name: what `add_weight` called it; by default the last name of its path.
        index: of an optimizer's array its place in the training state; None for variables.

    Attributes:
        path: the names that lead to it, such as `d1/kernel`.
        name: what `add_weight` called it, such as `kernel`.
        shape: its dims.
        dtype: its element type.
        is_key: whether it is the key of a random stream.
    """

    def __init__(
        self,
        row: Row,
        cell: StateCell,
        is_trainable: Callable[[str], bool],
        name: str | None = None,
        index: int | None = None,
    ) -> None:
        self._row = row
        self._cell = cell
        self._is_trainable = is_trainable
        self._index = index
        self.path = row.path
        self.name = name or row.path.rpartition("/")[2]
        self.shape = row.shape
        self.dtype = row.dtype
        self.is_key = row.role == "rng"

    @property
    def trainable(self) -> bool:
        """Whether the variable is trained. Changes count from the next `compile`."""
        return self._is_trainable(self.path)

    @trainable.setter
    def trainable(self, value: bool) -> NoReturn:
        graph = self._cell.graph
        if graph.is_foreign:
            raise ModelError(
                f"cannot set `trainable` of {self.path!r}",
                given=f"variable.trainable = {value} in a module with {graph.described_kinds()}",
                expected="what is trained to be chosen when the model is made: an NNX filter, or a regular expression",
                fix="Model.from_nnx(factory, trainable=nnx.LoRAParam), or trainable='head/.*'",
            )
        raise ModelError(
            f"cannot set `trainable` of {self.path!r}",
            given=f"variable.trainable = {value}",
            expected="`trainable` of whole layers to be set",
            fix="layer.trainable = False, or add_weight(..., trainable=False), then compile",
        )

    @property
    def constraint(self) -> Callable[[jax.Array], jax.Array] | None:
        """The function that is applied to the value after each update, or None."""
        return None if self._index is not None else self._cell.graph.constraints[self._cell.index(self.path)]

    @property
    def layout(self) -> TensorLayout:
        """The layout on the mesh."""
        row = self._cell.row(self.path) if self._index is None else self._cell.state_plan.rows[self._index]
        return layout_on(row.axes, self._cell.mesh)

    _is_private = True

    @property
    def _lock(self) -> Any:
        return self._cell.lock

    def _array(self) -> jax.Array:
        """The array itself, which the next step may delete, and nobody else holds."""
        return self._cell.private(self._place)

    @property
    def _place(self) -> int:
        return self._cell.place(self.path) if self._index is None else self._index

    def _read(self) -> jax.Array:
        with self._cell.lock:
            return place_copy(self._array(), self.layout.backend_layout)

    def numpy(self) -> np.ndarray:
        """Return the value on the host; of a PRNG key its data. In a job of several processes all must call it."""
        with self._cell.lock:
            return host_copy(self._array())

    def _checked(self, value: ArrayLike) -> ArrayLike:
        check_not_forked()
        return checked_value(value, self._row)

    def _write(self, value: ArrayLike) -> jax.Array:
        if self._index is None:
            self._cell.write(self._cell.index(self.path), value)
        else:
            with self._cell.lock:
                self._cell.put({self._index: place_copy(value, self.layout.backend_layout, f"variable {self.path!r}")})
        return self._read()

    def _store(self, array: jax.Array) -> None:
        with self._cell.lock:
            self._cell.put({self._place: array})

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}, axes={self.layout.axes}>"
        )
