"""`LearningRateVariable`: the learning rate of an optimizer, with and without variables."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from keras_dist._support.signatures import takes
from keras_dist.errors import ModelError
from keras_dist.optimizers.learning_rate import (
    LearningRate,
    LearningRateState,
    Rate,
    ScheduledRateState,
    check_rate,
    checked_rate,
    rate_after,
)
from keras_dist.optimizers.optimizer_variables import OptimizerVariables, has_rate, is_variable


class LearningRateVariable(OptimizerVariables):
    """The learning rate: a variable of the state or, before there is state, the argument of the optimizer."""

    @property
    def learning_rate(self) -> Any:
        """The rate of the next step, a float; before there is state, the argument of the optimizer.

        A new rate applies from the next step on, without recompilation. Before there is state it may be a schedule.

        Raises:
            ModelError: the rate is not in the state (plain optax), follows a schedule, or is not a finite number.
        """
        if self._state is not None:
            node = self._rated()
            rate = node.learning_rate.numpy()
            if callable(self._rate) and takes(self._rate, 0):  # `iterations` may have been assigned
                rate = rate_after(self._rate, node.inner.iterations.value)
            return LearningRate(rate, self)
        rate = next((inner.learning_rate for inner in self._inner().values()), self._rate)
        return rate if callable(rate) else LearningRate(rate, self)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value) and not isinstance(value, float) and not (self.built or self._is_used or self._inner()):
            check_rate(value)
            self._rate = value
            self._arguments = {**self._arguments, "learning_rate": value}  # of `get_config`
            return
        rate = checked_rate(value)
        if isinstance(self._rated(), ScheduledRateState) if self._state is not None else callable(self._rate):
            summary = f"the learning rate of optimizer {self.name!r} follows a schedule"
            fix = "compile with a number, for example SGD(0.1), or change the schedule"
            raise ModelError(summary, given=f"learning_rate = {rate}", fix=fix)
        if self._state is not None:
            self._rated().learning_rate.assign(rate)
        elif self._is_used:
            given = f"learning_rate = {rate}, of an optimizer whose state init() has returned"
            fix = "set model.optimizer.learning_rate; in a state of optax state._replace(learning_rate=...)"
            raise ModelError(f"`learning_rate` of the optimizer {self.name!r} cannot be changed", given=given, fix=fix)
        else:
            self._begin_with(rate)

    def _begin_with(self, rate: Any) -> None:
        """Replace the initial rate, unless it is the same in float32."""
        if not callable(rate) and np.float32(self._rate) != rate:  # type: ignore[arg-type]
            self._rate = float(rate)
        for inner in self._inner().values():
            inner._begin_with(rate)

    def _current_rate(self) -> Rate:
        """Return the current rate as a number, or the schedule."""
        node = next(iter(self._rates()), None)
        return float(np.asarray(node.learning_rate)) if isinstance(node, LearningRateState) else self._rate

    def _rates(self) -> list[Any]:
        nodes = jax.tree.leaves(self._state, is_leaf=lambda node: has_rate(node) or is_variable(node))
        return [node for node in nodes if has_rate(node)]

    def _rated(self) -> Any:
        """Return the part of the state that holds the learning rate."""
        for node in self._rates():
            return node
        summary = f"optimizer {self.name!r} does not keep its learning rate in state"
        fix = "in place of optax.adam(1e-3): optimizers.with_learning_rate(optax.scale_by_adam(), 1e-3)"
        raise ModelError(summary, given="an optax transformation with a fixed rate or a schedule", fix=fix)

    def detach(self) -> None:
        """Stop using the model's state, and keep its current learning rate."""
        if self._model_cell is not None:
            self._begin_with(self._current_rate())
            self._model = self._count = None
        for inner in self._inner().values():
            inner.detach()
