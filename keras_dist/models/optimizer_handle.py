"""`OptimizerHandle`: a model's optimizer as seen from outside the compiled step."""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import numpy as np

from keras_dist.distribution.placement import place_copy
from keras_dist.distribution.plan import Row
from keras_dist.errors import ModelError
from keras_dist.optimizers import LearningRateState, Optimizer, ScheduledRateState, checked_rate
from keras_dist.training.cell import StateCell, host_copy


class SlotVariable:
    """A handle on one array of an optimizer's state, such as a momentum. It holds no array itself.

    Attributes:
        path: the names that lead to it, such as `optimizer/inner/iterations`.
        name: the last of them.
        shape: its dims.
        dtype: its element type.
    """

    def __init__(self, row: Row, index: int, cell: StateCell) -> None:
        self.path = row.path
        self.name = row.path.rpartition("/")[2]
        self.shape, self.dtype = row.shape, row.dtype
        self._index = index
        self._cell = cell

    @property
    def value(self) -> jax.Array:
        """Its current value, as it is laid out: a copy, which later training does not change or delete."""
        with self._cell.lock:
            sharding = jax.tree.leaves(self._cell.state_plan.shardings)[self._index]
            return place_copy(jax.tree.leaves(self._cell.state)[self._index], sharding)

    def numpy(self) -> np.ndarray:
        """Its current value on the host; in a job of several processes all must call."""
        return host_copy(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}>"


class OptimizerHandle:
    """One of a model's optimizers, whose state is in the model.

    Args:
        key: its name among the model's optimizers.
        cell: owns the state.
        transformation: what `compile` was given, or made of a name.

    Attributes:
        name: of the optimizer; of transformations of optax, which have none, the name among the model's optimizers.
        transformation: what `compile` was given, or made of a name. Compiling with it again goes on with its slots.
    """

    def __init__(self, key: str, cell: StateCell, transformation: Any) -> None:
        self.name = transformation.name if isinstance(transformation, Optimizer) else key
        self.transformation = transformation
        self._key = key
        self._cell = cell

    @property
    def variables(self) -> list[SlotVariable]:
        """Handles on its state: the learning rate, the steps it has counted, and what it keeps for each weight.

        Source: `keras.optimizers.Optimizer.variables`, in another order and without the models' variables.
        """
        leaves = jax.tree_util.tree_leaves_with_path(self._cell.state_plan.shardings)
        rows = self._cell.state_plan.rows
        own = (jax.tree_util.GetAttrKey("slots"), jax.tree_util.DictKey(self._key))
        return [SlotVariable(rows[i], i, self._cell) for i, (path, _) in enumerate(leaves) if path[:2] == own]

    def get_config(self) -> dict[str, Any]:
        """The arguments that make the same optimizer, with the current learning rate unless it follows a schedule.

        Raises:
            ModelError: it is a transformation of optax, which does not tell its arguments.

        Source: `keras.optimizers.Optimizer.get_config`.
        """
        if not isinstance(self.transformation, Optimizer):
            raise ModelError(
                f"optimizer {self.name!r} has no config",
                given="an optax transformation",
                expected="an optimizer by name, or one made by keras_dist.optimizers",
                fix="note yourself what made it",
            )
        return self.transformation.get_config_at(float(self.learning_rate))

    def apply(self, grads: Any, trainable_variables: Any = None) -> NoReturn:
        """An error: the state of a model changes in compiled steps alone.

        Raises:
            ModelError: always.
        """
        del grads, trainable_variables
        raise ModelError(
            "gradients are not applied from outside of a step",
            given="model.optimizer.apply or apply_gradients",
            expected="a pure train_step(state, batch, rngs) -> (state, logs), which is compiled with the model",
            fix="compile(..., train_step=train_step), and in it state = model.apply_gradients(state, grads)",
        )

    def apply_gradients(self, grads_and_vars: Any) -> NoReturn:
        """An error; see `apply`."""
        self.apply(grads_and_vars)

    @property
    def iterations(self) -> int:
        """The number of steps taken."""
        with self._cell.lock:
            return int(self._cell.state.step)

    @property
    def learning_rate(self) -> LearningRate:
        """The learning rate of the next step, a float. Setting it counts from then on and compiles nothing.

        Raises:
            ModelError: the optimizer does not keep its rate in state (plain optax); or it is set while it follows a
                schedule, or to something that is not a finite number.
        """
        with self._cell.lock:
            return LearningRate(np.asarray(self._rated()[0].learning_rate), self)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        rate = checked_rate(value)
        with self._cell.lock:
            settable = [node for node in self._rated() if isinstance(node, LearningRateState)]
            if not settable:
                raise ModelError(
                    f"the learning rate of optimizer {self.name!r} follows a schedule",
                    given=f"learning_rate = {rate}",
                    expected="an optimizer whose rate is a number",
                    fix="compile with a number, for example SGD(0.1), or let the schedule tell all rates",
                )
            new = place_copy(rate, settable[0].learning_rate.sharding)
            slots = jax.tree.map(
                lambda node: node._replace(learning_rate=new) if isinstance(node, LearningRateState) else node,
                self._cell.state.slots[self._key],
                is_leaf=_has_rate,
            )
            self._cell.state = self._cell.state.replace(slots={**self._cell.state.slots, self._key: slots})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _rated(self) -> list[LearningRateState | ScheduledRateState]:
        nodes = jax.tree.leaves(self._cell.state.slots[self._key], is_leaf=_has_rate)
        rated = [node for node in nodes if _has_rate(node)]
        if not rated:
            raise ModelError(
                f"optimizer {self.name!r} does not keep its learning rate in state",
                given="an optax transformation with a fixed rate or a schedule",
                expected="an optimizer by name, or one made by keras_dist.optimizers",
                fix="in place of optax.adam(1e-3): optimizers.with_learning_rate(optax.scale_by_adam(), 1e-3)",
            )
        return rated


class LearningRate(float):
    """A learning rate as it was when it was asked for, with what Keras's variable has beside its value.

    Args:
        value: the rate.
        handle: of the optimizer.
    """

    def __new__(cls, value: Any, handle: OptimizerHandle) -> LearningRate:
        """A float."""
        rate = super().__new__(cls, value)
        rate._handle = handle  # type: ignore[attr-defined]
        return rate

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies are plain floats: a history that holds rates does not hold the model."""
        return float, (float(self),)

    @property
    def value(self) -> float:
        """As a plain float."""
        return float(self)

    def numpy(self) -> np.float32:
        """As numpy has it."""
        return np.float32(self)

    def assign(self, value: float) -> None:
        """The same as `optimizer.learning_rate = value`.

        Raises:
            ModelError: the optimizer follows a schedule, or it is not a finite number.
        """
        self._handle.learning_rate = value  # type: ignore[attr-defined]


def _has_rate(node: Any) -> bool:
    return isinstance(node, LearningRateState | ScheduledRateState)
