"""Accumulators: values found in each batch are summed on the device, and read on the host when somebody wants them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

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


@dataclasses.dataclass(frozen=True, eq=False)
class Accumulator:
    """A logged value; `add` updates its state."""

    names: tuple[str, ...]  # in the logs
    start: Callable[[], PyTree]  # returns the initial state
    read: Callable[[Any], dict[str, Any]]  # returns the values of a state on the host, by name: numbers as floats
    metric: Metric | None = None  # whose variables are the state
    is_mean: bool = False
    is_rate: bool = False  # a sum, which `LazyLogs` divides by the duration
    is_reset_by_users: bool = False  # a class of the user defines how the state is reset


def accumulator_of(name: str, found: Any) -> Accumulator:
    """Return the accumulator of a value that a step logs under this name (traced)."""
    if isinstance(found, Observation):
        return _of_metric(name, found)
    if isinstance(found, Latest):
        return of_last_value(name, jax.ShapeDtypeStruct((), np.float32))
    if isinstance(found, Count):
        return Accumulator((name,), lambda: np.float32(0), lambda state: {name: float(state)}, is_rate=True)

    def mean(state: OpenMean) -> dict[str, Any]:
        if not state.weight and name.endswith("loss"):
            return {name: 0.0}  # as in Keras
        with np.errstate(invalid="ignore"):
            return {name: float(np.divide(state.total, state.weight))}

    return Accumulator((name,), lambda: OpenMean(np.float32(0), np.float32(0)), mean, is_mean=True)


def of_last_value(name: str, like: jax.ShapeDtypeStruct) -> Accumulator:
    """Return the accumulator of a value that is logged as in the last step."""
    return Accumulator((name,), lambda: np.zeros(like.shape, like.dtype), lambda state: {name: _on_host(state)})


def _of_metric(name: str, found: Observation) -> Accumulator:
    """Return the accumulator of a metric; its result is computed outside of the mesh, and compiled if possible."""
    metric, names = found.metric, (name,)
    variables = found.added_to(tuple(metric.stateless_reset_state()))
    with no_plain_state(metric):
        found.added_to(variables)
    compute: Callable[..., PyTree] = metric.stateless_result
    try:
        result = compute(variables)
    except jax.errors.JAXTypeError:  # it needs values, and these are traced
        pass
    else:
        names, compute = tuple(_checked(name, result)), jax.jit(compute)

    def start() -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(value) for value in metric.stateless_reset_state())

    def read(state: tuple[jax.Array, ...]) -> dict[str, Any]:
        return {key: _on_host(value) for key, value in _checked(name, compute(state)).items()}

    has_own_reset = type(metric).reset_state is not Metric.reset_state
    return Accumulator(names, start, read, metric, is_reset_by_users=has_own_reset)


def _on_host(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def check_names(accumulators: Mapping[str, Accumulator]) -> None:
    """Check that the names of the values of a metric differ from all other logged names."""
    for name, accumulator in accumulators.items():
        repeated = set(accumulator.names) & (accumulators.keys() - {name})
        if repeated and accumulator.metric is not None:
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
                if accumulator.is_rate:
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
