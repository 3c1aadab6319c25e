"""Tallies: what a step finds in each batch becomes one value, summed on the device and read on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.metrics import Metric
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.plain_state import no_plain_state


class OpenMean(NamedTuple):
    """A mean that is still open: `total / weight`, both scalars."""

    total: Any
    weight: Any


class Observation(NamedTuple):
    """What a metric gets to see of a batch.

    Attributes:
        metric: the metric.
        y_true: targets.
        y_pred: predictions.
        sample_weight: their weights, or None.
        mask: which predictions count, or None for all. Metrics that take no weights see all of them, as in Keras.
    """

    metric: Metric
    y_true: PyTree
    y_pred: PyTree
    sample_weight: ArrayLike | None = None
    mask: jax.Array | None = None

    def added_to(self, variables: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """The metric's variables afterwards."""
        return tuple(self.metric.stateless_update_state(variables, *self._arguments()))

    def update(self) -> None:
        """Let the metric's own variables change."""
        self.metric.update_state(*self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        weight = self._weight()
        return (self.y_true, self.y_pred, *(() if weight is None else (weight,)))

    def _weight(self) -> ArrayLike | None:
        """The weights, 0 for what does not count."""
        if self.mask is None or (self.sample_weight is None and not self.metric.weighs(self.y_true, self.y_pred)):
            return self.sample_weight
        mask = jnp.asarray(self.mask, jnp.float32)
        if self.sample_weight is None:
            return mask
        mask = spread(mask, jnp.asarray(self.sample_weight)) if mask.ndim < jnp.ndim(self.sample_weight) else mask
        return mask * spread(self.sample_weight, mask)


@dataclasses.dataclass(frozen=True)
class MeanAccumulator:
    """The mean of a scalar over all rows."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Its own."""
        return (self.name,)

    def start(self) -> OpenMean:
        """Of nothing yet."""
        return OpenMean(np.float32(0), np.float32(0))

    def read(self, state: OpenMean) -> dict[str, Any]:
        """The mean."""
        return {self.name: float(state.total / state.weight)}


@dataclasses.dataclass(frozen=True)
class MetricAccumulator:
    """A metric, whose state is its variables; `result` is its `stateless_result`, compiled where it can be."""

    name: str
    metric: Metric
    names: tuple[str, ...]
    result: Callable[[tuple[jax.Array, ...]], PyTree]

    def start(self) -> tuple[np.ndarray, ...]:
        """The variables when they are reset."""
        return tuple(np.asarray(value) for value in self.metric.stateless_reset_state())

    def read(self, state: tuple[jax.Array, ...]) -> dict[str, Any]:
        """The result by name: numbers as floats, others as arrays. Computed outside of the mesh."""
        values = _checked(self.name, self.result(state))
        return {name: float(value) if np.ndim(value) == 0 else np.asarray(value) for name, value in values.items()}


Accumulator = MeanAccumulator | MetricAccumulator
"""How something that is logged is begun and read, and its names; `add` adds to it."""


def accumulator_of(name: str, found: Any) -> Accumulator:
    """The accumulator of what a step found under this name (traced)."""
    if not isinstance(found, Observation):
        return MeanAccumulator(name)
    variables = found.added_to(tuple(found.metric.stateless_reset_state()))
    with no_plain_state(found.metric):
        found.added_to(variables)
    compute = found.metric.stateless_result
    try:
        result = compute(variables)
    except jax.errors.JAXTypeError:  # it needs numbers, and there are none yet
        return MetricAccumulator(name, found.metric, (name,), compute)
    return MetricAccumulator(name, found.metric, tuple(_checked(name, result)), jax.jit(compute))


def by_name(name: str, result: Any) -> Mapping[str, Any]:
    """What a metric logs for a result: its values, if that is a dict, else the result under the metric's name."""
    return result if isinstance(result, Mapping) else {name: result}


def flat_logs(step: str, logs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the logs of a step with the entries of inner dicts under their own names, as in Keras.

    Raises:
        ModelError: two entries have the same name.
    """
    flat: dict[Any, Any] = {}
    for name, value in logs.items():
        found = flat_logs(step, value) if isinstance(value, Mapping) else {name: value}
        twice = [name for name in found if name in flat]
        if twice:
            raise ModelError(
                f"{step} logs a name twice",
                given=f"{', '.join(map(repr, twice))}, also in an inner dict",
                expected="each name once: inner dicts are logged under their own names",
                fix="rename one of them",
            )
        flat |= found
    return flat


def _checked(name: str, result: Any) -> Mapping[str, Any]:
    """`by_name`, where all are numbers or arrays of them."""
    values = by_name(name, result)
    for value in values.values():
        try:
            jnp.asarray(value)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"the result of metric {name!r} is no number",
                given=f"{shorten(value)} of type {type(value).__name__}",
                expected="a number, an array, or a dict of them",
                fix="return the value of a variable, or what jax.numpy computes of them, from `result`",
            ) from error
    return values


def add(state: PyTree, found: PyTree, rows: ArrayLike) -> PyTree:
    """The state of an accumulator after a batch: a metric's as it says, a mean with the scalar weighted by rows."""
    if isinstance(found, Observation):
        return found.added_to(state)
    return OpenMean(state.total + jnp.asarray(found, jnp.float32) * rows, state.weight + rows)
