"""Accumulators: values found in each batch are summed on the device, and read on the host when somebody wants them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.traced_values import explaining_traced_values
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.metrics import Metric
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.metric import no_plain_state


class OpenMean(NamedTuple):
    """An unfinished mean, `total / weight`, of a batch or several; both scalars, 0 for a batch that does not count."""

    total: Any
    weight: Any


class Latest(NamedTuple):
    """A scalar that is logged with its value in the last step."""

    value: Any


class Count(NamedTuple):
    """A count in a batch, logged per second."""

    value: Any


class Observation(NamedTuple):
    """The arguments of a metric for a batch; as in Keras, metrics without weights also get masked predictions."""

    metric: Metric
    y_true: PyTree
    y_pred: PyTree
    sample_weight: ArrayLike | None = None
    mask: jax.Array | None = None

    def added_to(self, variables: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Return the metric's variables after the batch."""
        with explaining_traced_values(f"metric {self.metric.name!r}"):
            return tuple(self.metric.stateless_update_state(variables, *self._arguments()))

    def update(self) -> None:
        """Update the metric's own variables."""
        self.metric.update_state(*self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        weight = self._weight()
        return (self.y_true, self.y_pred, *(() if weight is None else (weight,)))

    def _weight(self) -> ArrayLike | None:
        if self.mask is None or (self.sample_weight is None and not self.metric.weighs(self.y_true, self.y_pred)):
            return self.sample_weight
        mask = jnp.asarray(self.mask, jnp.float32)
        if self.sample_weight is None:
            return mask
        mask = spread(mask, jnp.asarray(self.sample_weight)) if mask.ndim < jnp.ndim(self.sample_weight) else mask
        return mask * spread(self.sample_weight, mask)


@dataclasses.dataclass(frozen=True)
class _ScalarAccumulator:
    name: str
    is_reset_by_users: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


class MeanAccumulator(_ScalarAccumulator):
    """The mean of a scalar over all rows, or with the weights of `OpenMean`s."""

    def start(self) -> OpenMean:
        """Return the initial state."""
        return OpenMean(np.float32(0), np.float32(0))

    def read(self, state: OpenMean) -> dict[str, Any]:
        """Return the mean; without weights 0 for losses, as in Keras, and NaN for other values."""
        if not state.weight and self.name.endswith("loss"):
            return {self.name: 0.0}
        with np.errstate(invalid="ignore"):
            return {self.name: float(np.divide(state.total, state.weight))}


@dataclasses.dataclass(frozen=True)
class LastAccumulator(_ScalarAccumulator):
    """The value of the last step."""

    like: jax.ShapeDtypeStruct

    def start(self) -> np.ndarray:
        """Return the initial state."""
        return np.zeros(self.like.shape, self.like.dtype)

    def read(self, state: Any) -> dict[str, Any]:
        """Return the value; numbers as floats."""
        return {self.name: float(state) if np.ndim(state) == 0 else np.asarray(state)}


class RateAccumulator(_ScalarAccumulator):
    """The sum of a count over the epoch; `LazyLogs` divides it by the duration."""

    def start(self) -> np.float32:
        """Return the initial state."""
        return np.float32(0)

    def read(self, state: Any) -> dict[str, Any]:
        """Return the sum."""
        return {self.name: float(state)}


@dataclasses.dataclass(frozen=True)
class MetricAccumulator:
    """A metric, whose state is its variables; `result` is its `stateless_result`, compiled if possible."""

    name: str
    metric: Metric
    names: tuple[str, ...]
    result: Callable[[tuple[jax.Array, ...]], PyTree]

    @property
    def is_reset_by_users(self) -> bool:
        """Whether the class of the metric defines its `reset_state`."""
        return type(self.metric).reset_state is not Metric.reset_state

    def start(self) -> tuple[np.ndarray, ...]:
        """Return the variables after a reset."""
        return tuple(np.asarray(value) for value in self.metric.stateless_reset_state())

    def read(self, state: tuple[jax.Array, ...]) -> dict[str, Any]:
        """Return the result by name: numbers as floats, others as arrays. It is computed outside of the mesh."""
        values = _checked(self.name, self.result(state))
        return {name: float(value) if np.ndim(value) == 0 else np.asarray(value) for name, value in values.items()}


Accumulator = MeanAccumulator | MetricAccumulator | LastAccumulator | RateAccumulator
"""Names, initial state and result of a logged value; `add` updates its state."""


def accumulator_of(name: str, found: Any) -> Accumulator:
    """Return the accumulator of a value that a step logs under this name (traced)."""
    if isinstance(found, Latest):
        return LastAccumulator(name, jax.ShapeDtypeStruct((), np.float32))
    if isinstance(found, Count):
        return RateAccumulator(name)
    if not isinstance(found, Observation):
        return MeanAccumulator(name)
    variables = found.added_to(tuple(found.metric.stateless_reset_state()))
    with no_plain_state(found.metric):
        found.added_to(variables)
    compute = found.metric.stateless_result
    try:
        result = compute(variables)
    except jax.errors.JAXTypeError:  # it needs values, and these are traced
        return MetricAccumulator(name, found.metric, (name,), compute)
    return MetricAccumulator(name, found.metric, tuple(_checked(name, result)), jax.jit(compute))


def check_names(accumulators: Mapping[str, Accumulator]) -> None:
    """Check that the names of the values of a metric differ from all other logged names."""
    for name, accumulator in accumulators.items():
        repeated = set(accumulator.names) & (accumulators.keys() - {name})
        if repeated and isinstance(accumulator, MetricAccumulator):
            given = f"the metric {name!r}, whose result has {', '.join(map(repr, accumulator.names))}"
            fix = "rename it in the result of the metric, or in the dict that the loss returns"
            raise ModelError(f"two values would be logged as {min(repeated)!r}", given=given, fix=fix)


def by_name(name: str, result: Any) -> Mapping[str, Any]:
    """Return the logs of a metric: its result if this is a dict, else the result under its name."""
    return result if isinstance(result, Mapping) else {name: result}


def flat_logs(step: str, logs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the logs of a step with inner dicts flattened, as in Keras; raise if two entries have the same name."""
    flat: dict[Any, Any] = {}
    for name, value in logs.items():
        found = flat_logs(step, value) if isinstance(value, Mapping) else {name: value}
        twice = [name for name in found if name in flat]
        if twice:
            given = f"{', '.join(map(repr, twice))}, also in an inner dict"
            raise ModelError(f"{step} logs a name twice", given=given, fix="rename one of them")
        flat |= found
    return flat


def _checked(name: str, result: Any) -> Mapping[str, Any]:
    values = by_name(name, result)
    for value in values.values():
        try:
            jnp.asarray(value)
        except (TypeError, ValueError) as error:
            summary = f"the result of metric {name!r} must be a number, an array, or a dict of them"
            fix = "return the value of a variable, or a value that jax.numpy computes from variables, in `result`"
            raise ModelError(summary, given=with_type(value), fix=fix) from error
    return values


def add(state: PyTree, found: PyTree, rows: ArrayLike) -> PyTree:
    """Return the state of an accumulator after a batch; scalars of a mean are weighted by rows."""
    if isinstance(found, Observation):
        return found.added_to(state)
    if isinstance(found, Latest):
        return jnp.asarray(found.value, jnp.float32)
    if isinstance(found, Count):
        return state + jnp.asarray(found.value, jnp.float32)
    if isinstance(found, OpenMean):
        return OpenMean(state.total + found.total, state.weight + found.weight)
    return OpenMean(state.total + jnp.asarray(found, jnp.float32) * rows, state.weight + rows)


class LazyLogs(MutableMapping[str, Any]):
    """Loss and metrics by name, which callbacks may write; the first read waits for the step. Counts become rates."""

    def __init__(
        self,
        states: Mapping[str, PyTree],
        accumulators: Mapping[str, Accumulator],
        known: Mapping[str, Any] | None = None,
        seconds: Callable[[], float] = lambda: math.nan,
    ) -> None:
        self._states = states
        self._accumulators = accumulators
        self._known = dict(known or {})
        self._seconds = seconds
        self._fetched: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        if self._fetched is not None:
            return iter(self._fetched)
        logged = (name for accumulator in self._accumulators.values() for name in accumulator.names)
        return iter(dict.fromkeys([*logged, *self._known]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __setitem__(self, name: str, value: Any) -> None:
        (self._known if self._fetched is None else self._fetched)[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values()[name]

    def __repr__(self) -> str:
        return repr(self._values())

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return self._values() | dict(other) if isinstance(other, Mapping) else NotImplemented

    def copy(self) -> dict[str, Any]:
        """Return the values as a dict."""
        return dict(self._values())

    def _values(self) -> dict[str, Any]:
        if self._fetched is None:
            host = jax.device_get(dict(self._states))
            self._fetched = {}
            for name, accumulator in self._accumulators.items():
                read = accumulator.read(host[name])
                if isinstance(accumulator, RateAccumulator):
                    read = {name: count / self._seconds() for name, count in read.items()}
                self._fetched |= read
            self._fetched |= self._known
        return self._fetched


class LazyOutputs(Mapping[str, Any]):
    """The `outputs` of a prediction for a group of batches; reading them waits for its steps."""

    def __init__(self, results: list[tuple[int, PyTree]]) -> None:
        self._results = results  # real rows, and outputs on the device, of each batch

    def __getitem__(self, name: str) -> Any:
        if name != "outputs":
            raise KeyError(name)
        return joined([real_outputs(rows, outputs) for rows, outputs in self._results])

    def __iter__(self) -> Iterator[str]:
        return iter(["outputs"])

    def __len__(self) -> int:
        return 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class PerBatch:
    """An output without a row for each example, such as a scalar or a table: a node of the outputs of a batch."""

    value: Any


def is_per_batch(node: Any) -> bool:
    """Whether `node` is a `PerBatch`."""
    return isinstance(node, PerBatch)


def joined(outputs: list[PyTree]) -> PyTree:
    """Join the outputs of batches: rows are concatenated, outputs without rows are stacked (batches, ...)."""
    return jax.tree_util.tree_map_with_path(_joined, *outputs, is_leaf=is_per_batch)


def _joined(path: Any, *parts: Any) -> np.ndarray:
    if not any(map(is_per_batch, parts)):
        return np.concatenate(parts)
    # an output with rows has them in every batch: a table may be as long as one of the batches
    values = [part.value if is_per_batch(part) else part for part in parts]
    if len({value.shape for value in values}) > 1:
        name = jax.tree_util.keystr(path) or "of the model"
        summary = f"predict: output {name} has neither a row for each example nor one shape"
        given = f"shapes {shorten(sorted({value.shape for value in values}))} of {len(values)} batches"
        fix = "choose a batch_size that divides the examples; or leave the output out with `call=`"
        raise ModelError(summary, given=given, fix=fix)
    return np.stack(values)


def of_one_batch(outputs: PyTree) -> PyTree:
    """Unwrap the outputs of a batch."""
    return jax.tree.map(lambda one: one.value if is_per_batch(one) else one, outputs, is_leaf=is_per_batch)


def real_outputs(rows: int, outputs: PyTree) -> PyTree:
    """Return the outputs for the first `rows` rows on the host; of sharded outputs, the rows of this process."""

    def real(output: Any) -> Any:
        if is_per_batch(output):
            return PerBatch(np.array(output.value))
        if not isinstance(output, jax.Array) or output.is_fully_addressable or output.is_fully_replicated:
            return np.asarray(output)[:rows].copy()
        parts = {shard.index[0].indices(len(output))[0]: shard.data for shard in output.addressable_shards}
        return np.concatenate([np.asarray(parts[start])[: max(rows - start, 0)] for start in sorted(parts)])

    return jax.tree.map(real, outputs, is_leaf=is_per_batch)
