"""Tallies: what a step finds in each batch becomes one value, summed on the device and read on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist.metrics import Metric


class OpenMean(NamedTuple):
    """A mean that is still open: `total / weight`, both scalars."""

    total: Any
    weight: Any


class Observation(NamedTuple):
    """What a metric gets to see of a batch."""

    metric: Metric
    y_true: Any
    y_pred: Any
    sample_weight: Any = None

    def added_to(self, variables: tuple[Any, ...]) -> tuple[Any, ...]:
        """The metric's variables afterwards."""
        weight = () if self.sample_weight is None else (self.sample_weight,)
        return tuple(self.metric.stateless_update_state(variables, self.y_true, self.y_pred, *weight))


class Tally(Protocol):
    """How something that is logged is begun and read; `add` adds to it.

    Attributes:
        names: what it is logged as.
    """

    @property
    def names(self) -> tuple[str, ...]: ...  # noqa: D102

    def start(self) -> Any:
        """Its state before the first batch."""
        ...

    def read(self, state: Any) -> dict[str, Any]:
        """Its values by name."""
        ...


@dataclasses.dataclass(frozen=True)
class MeanTally:
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
class MetricTally:
    """A metric, whose state is its variables; `result` is its `stateless_result`, compiled where it can be."""

    name: str
    metric: Metric
    names: tuple[str, ...]
    result: Callable[[tuple[Any, ...]], Any]

    def start(self) -> tuple[Any, ...]:
        """The variables when they are reset."""
        return tuple(np.asarray(value) for value in self.metric.stateless_reset_state())

    def read(self, state: tuple[Any, ...]) -> dict[str, Any]:
        """The result by name: numbers as floats, others as arrays. Computed outside of the mesh."""
        result = self.result(state)
        values = result if isinstance(result, Mapping) else {self.name: result}
        return {name: float(value) if np.ndim(value) == 0 else np.asarray(value) for name, value in values.items()}


def tally_of(name: str, found: Any) -> Tally:
    """The tally of what a step found under this name (traced)."""
    if not isinstance(found, Observation):
        return MeanTally(name)
    variables = found.added_to(tuple(found.metric.stateless_reset_state()))
    compute = found.metric.stateless_result
    try:
        result = compute(variables)
    except jax.errors.JAXTypeError:  # it needs numbers, and there are none yet
        return MetricTally(name, found.metric, (name,), compute)
    names = tuple(result) if isinstance(result, Mapping) else (name,)
    return MetricTally(name, found.metric, names, jax.jit(compute))


def add(state: Any, found: Any, rows: int) -> Any:
    """The state of a tally after a batch: a metric's as it says, a mean's with the scalar weighted by the rows."""
    if isinstance(found, Observation):
        return found.added_to(state)
    return OpenMean(state.total + jnp.asarray(found, jnp.float32) * rows, state.weight + rows)
