"""`OptimizerHandle`: a model's optimizer as seen from outside the compiled step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from keras_dist.distribution.placement import place_copy
from keras_dist.errors import ModelError
from keras_dist.optimizers import LearningRateState, ScheduledRateState, checked_rate
from keras_dist.training.cell import StateCell


class OptimizerHandle:
    """One of a model's optimizers: its learning rate.

    Attributes:
        name: its name among the model's optimizers.
        transformation: what `compile` was given, or made of a name. Compiling with it again goes on with its slots.
    """

    def __init__(self, name: str, cell: StateCell, transformation: Any) -> None:
        self.name = name
        self.transformation = transformation
        self._cell = cell

    @property
    def iterations(self) -> int:
        """The number of steps taken."""
        with self._cell.lock:
            return int(self._cell.state.step)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step. Setting it counts from then on and compiles nothing.

        Raises:
            ModelError: the optimizer does not keep its rate in state (plain optax); or it is set while it follows a
                schedule, or to something that is not a finite number.
        """
        with self._cell.lock:
            return float(np.asarray(self._rated()[0].learning_rate))

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
                self._cell.state.slots[self.name],
                is_leaf=_has_rate,
            )
            self._cell.state = self._cell.state.replace(slots={**self._cell.state.slots, self.name: slots})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _rated(self) -> list[LearningRateState | ScheduledRateState]:
        nodes = jax.tree.leaves(self._cell.state.slots[self.name], is_leaf=_has_rate)
        rated = [node for node in nodes if _has_rate(node)]
        if not rated:
            raise ModelError(
                f"optimizer {self.name!r} does not keep its learning rate in state",
                given="an optax transformation with a fixed rate or a schedule",
                expected="an optimizer by name, or one made by keras_dist.optimizers",
                fix="in place of optax.adam(1e-3): optimizers.with_learning_rate(optax.scale_by_adam(), 1e-3)",
            )
        return rated


def _has_rate(node: Any) -> bool:
    return isinstance(node, LearningRateState | ScheduledRateState)
