"""`LazyLogs` and `LazyOutputs`: logs for callbacks, fetched from the device when they are read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.training.accumulators import Accumulator, RateAccumulator


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
