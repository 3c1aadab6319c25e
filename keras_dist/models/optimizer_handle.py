"""`OptimizerHandle`: a model's optimizer as seen from outside the compiled step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from keras_dist.distribution.placement import place_copy
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers import LearningRateState
from keras_dist.training.cell import StateCell


class OptimizerHandle:
    """One of a model's optimizers: its learning rate.

    Attributes:
        name: its name among the model's optimizers.
    """

    def __init__(self, name: str, cell: StateCell) -> None:
        self.name = name
        self._cell = cell

    @property
    def learning_rate(self) -> float:
        """The current learning rate. Setting it counts from the next step and compiles nothing.

        Raises:
            ModelError: the optimizer does not keep its rate in state (plain optax, a schedule), or it is set to
                something that is not a finite number.
        """
        with self._cell.lock:
            return float(np.asarray(self._rates()[0]))

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        rate = _checked_rate(value)
        with self._cell.lock:
            new = place_copy(rate, self._rates()[0].sharding)
            slots = jax.tree.map(
                lambda node: node._replace(learning_rate=new) if _keeps_rate(node) else node,
                self._cell.state.slots[self.name],
                is_leaf=_keeps_rate,
            )
            self._cell.state = self._cell.state.replace(slots={**self._cell.state.slots, self.name: slots})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _rates(self) -> list[Any]:
        nodes = jax.tree.leaves(self._cell.state.slots[self.name], is_leaf=_keeps_rate)
        rates = [node.learning_rate for node in nodes if _keeps_rate(node)]
        if not rates:
            raise ModelError(
                f"optimizer {self.name!r} does not keep its learning rate in state",
                given="an optax transformation with a fixed rate or a schedule",
                expected="an optimizer by name, or one made by keras_dist.optimizers",
                fix="in place of optax.adam(1e-3): optimizers.with_learning_rate(optax.scale_by_adam(), 1e-3)",
            )
        return rates


def _checked_rate(value: Any) -> np.float32:
    try:
        rate = np.float32(value) if np.ndim(value) == 0 else np.float32("nan")
    except (TypeError, ValueError):
        rate = np.float32("nan")
    if not np.isfinite(rate):
        raise ModelError(
            "`learning_rate` is not a number",
            given=f"{shorten(value)} of type {type(value).__name__}",
            expected="a finite number",
            fix="for example 1e-3; a schedule belongs in compile: optimizer=optax.adam(schedule)",
        )
    return rate


def _keeps_rate(node: Any) -> bool:
    return isinstance(node, LearningRateState)
