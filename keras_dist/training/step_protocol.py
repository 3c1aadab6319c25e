"""Steps in the form of Keras on JAX: methods of a model on lists of arrays.

`(self, state, data)` is Keras's form of a train step, `(state, batch, rngs)` the pure one; the parameters tell which.
Both are pure functions of arrays and run in the same programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.stateless_scope import StatelessScope
from keras_dist._support.types import PyTree
from keras_dist.data.batch import pack_x_y_sample_weight
from keras_dist.errors import ModelError, shorten
from keras_dist.metrics.metric import MetricState
from keras_dist.training.accumulators import Accumulator, flat_logs, of_last_value
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.loop import Mode
from keras_dist.training.optimization import Optimizer, TrainState, scaling_checked
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Batch, Draw, check_state

VARIABLES = ""  # key of the variables of metrics in the logs: no value is logged under an empty name

PARTS: dict[Mode, tuple[str, ...]] = {
    "train": ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
    "test": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict": ("trainable_variables", "non_trainable_variables"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class StepProtocol:
    """The steps of a model in the form of Keras on JAX, by mode; `prepare` creates the variables of metrics."""

    steps: Mapping[Mode, Callable[[Any, Any], Any]]
    model: Any
    prepare: Callable[[Any, TrainState, Batch], None]

    def metrics_variables(self) -> list[Any]:
        """Return the variables of all metrics."""
        return [variable for metric in self.model.metrics for variable in metric.variables]


class ProtocolStep:
    """A step of a model in the form of Keras, on a `TrainState` and logs; `accumulators` finds `changed`."""

    may_read_values = True

    def __init__(
        self, mode: Mode, protocol: StepProtocol, cell: StateCell, optimizers: Mapping[str, Optimizer]
    ) -> None:
        self._mode: Mode = mode
        self._protocol, self._cell = protocol, cell
        self.changed: list[int] = []
        self._variables: Sequence[Any] = ()  # of metrics, collected once, since callbacks may read them often
        self._optimizers = [(name, optimizers[name].transformation) for name in sorted(optimizers)]

    def accumulators(self, state: TrainState, batch: Batch) -> dict[str, Any]:
        """Return the accumulators of the logs (traced)."""
        self._protocol.prepare(self._protocol.model, state, batch)
        self._variables = self._protocol.metrics_variables()
        logs, after, _ = self._run(state, batch, map(jnp.asarray, self._reset_values()))
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
        self.changed = [place for place, (old, new) in enumerate(pairs) if old is not new]
        shapes = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in logs.items()}
        held = Accumulator(
            (), self._reset_values, lambda state: {}, is_reset_by_users=True
        )  # the step returns its logs
        return {VARIABLES: held, **{name: of_last_value(name, shape) for name, shape in shapes.items()}}

    def _reset_values(self) -> list[np.ndarray]:
        """Return the values of the metrics' variables after a reset."""
        with StatelessScope(), jax.ensure_compile_time_eval():  # also inside of a trace
            self._protocol.model.reset_metrics()
            values = [np.asarray(variable.value) for variable in self._variables]
            return values or [np.zeros(())]  # the loop waits for a result of each step

    def advance(
        self, state: TrainState, batch: Batch, logs: Mapping[str, Any], rows: int, draw: Draw | None
    ) -> tuple[TrainState, dict[str, Any]]:
        """Return state and logs after a batch (traced); random generators are part of the state."""
        found, after, metrics = self._run(state, batch, logs[VARIABLES])
        if set(found) != set(logs) - {VARIABLES}:
            summary = f"{self._mode}_step logs other names than before"
            fix = "return the same names from every step"
            raise ModelError(summary, given=f"{sorted(found)}", expected=f"{sorted(set(logs) - {VARIABLES})}", fix=fix)
        # in the order and the dtypes of before: loops carry them
        return after, {
            VARIABLES: metrics or logs[VARIABLES],
            **{name: jnp.asarray(found[name], logs[name].dtype) for name in logs if name != VARIABLES},
        }

    def hold(self, metrics: ModelMetrics, accumulators: Mapping[str, Any], logs: Mapping[str, Any]) -> None:
        """Load these logs into the metric objects of the model."""
        for variable, value in zip(self._variables, logs[VARIABLES], strict=False):
            variable.lend_to(MetricState(value))

    def predict(self, state: TrainState, x: PyTree, draw: Draw) -> tuple[TrainState, PyTree]:
        """Return the state afterwards, and the outputs for a batch of inputs (traced)."""
        places, _, leaves, tree = self._places(state)
        trained, others = ([leaves[place] for place in part] for part in places)
        with StatelessScope():
            returned = self._protocol.steps["predict"]((trained, others), pack_x_y_sample_weight(x))
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], list | tuple):
            raise self._wrong_return(returned, "(outputs, non_trainable_variables)")
        self._put(leaves, places[1], returned[1], "non_trainable_variables")
        return tree.unflatten(leaves), values_in(returned[0])

    def _run(
        self, state: TrainState, batch: Batch, metrics: Iterable[Any]
    ) -> tuple[dict[str, Any], TrainState, list[jax.Array]]:
        """Return the logs, and the state and the variables of metrics afterwards."""
        metrics = [*metrics] if self._variables else []
        places, slots, leaves, tree = self._places(state)
        indices = [*places, slots] if self._mode == "train" else [*places]
        given = [[leaves[place] for place in part] for part in indices]
        known = [variable for _, optimizer in self._optimizers for variable in optimizer.variables]
        own = self._protocol.metrics_variables()
        _check_count(own, metrics)
        scoped = [*zip(known, (leaves[place] for place in slots), strict=True), *zip(own, metrics, strict=True)]
        updating = [optimizer for _, optimizer in self._optimizers if self._mode == "train"]
        with StatelessScope(*zip(*scoped, strict=True)) if scoped else StatelessScope(), scaling_checked(updating):
            returned = self._protocol.steps[self._mode]((*given, metrics), pack_x_y_sample_weight(*batch))
        logs, after = self._checked(returned)
        *changed, metrics_after = after
        for part, values, name in zip(indices, changed, PARTS[self._mode], strict=False):
            self._put(leaves, part, values, name)
        self._check_length(metrics_after, len(metrics), "metrics_variables")
        metrics_after = [
            _like(value, before, f"metrics_variables[{index}]")
            for index, (value, before) in enumerate(zip(metrics_after, metrics, strict=True))
        ]
        new = tree.unflatten(leaves)
        check_state(f"{self._mode}_step", state, new)
        return {name: self._logged(name, value) for name, value in logs.items()}, new, metrics_after

    def _places(self, state: TrainState) -> tuple[tuple[list[int], list[int]], list[int], list[Any], Any]:
        """Return indices of trained variables, other variables and slots in the leaves of a state, leaves and tree."""
        leaves, tree = jax.tree.flatten(state)
        numbered = tree.unflatten(range(len(leaves)))
        model = self._protocol.model
        variables = model.trainable_variables, model.non_trainable_variables
        trained, others = ([self._cell.place_of(one) for one in part] for part in variables)
        if sorted(trained) != sorted(jax.tree.leaves(numbered.trainable)):
            summary = f"{self._mode}_step: other variables are trained than when the model was compiled"
            given = f"{len(trained)} trainable_variables, not {len(jax.tree.leaves(numbered.trainable))}"
            raise ModelError(summary, given=given, fix="call compile again after setting `trainable` of a layer")
        # as slots are flattened, and of each optimizer as its variables are
        slots = [optimizer.in_order(jax.tree.leaves(numbered.slots[name])) for name, optimizer in self._optimizers]
        return (trained, others), [place for part in slots for place in part], leaves, tree

    def _put(self, leaves: list[Any], places: Sequence[int], values: Any, name: str) -> None:
        self._check_length(values, len(places), name)
        for place, value in zip(places, values, strict=True):
            leaves[place] = jnp.asarray(value_of(value)) if not hasattr(value, "dtype") else value_of(value)

    def _check_length(self, values: Any, count: int, name: str) -> None:
        if not isinstance(values, list | tuple) or len(values) != count:
            given = f"{len(values)}" if isinstance(values, list | tuple) else shorten(values)
            fix = "return each list of the state with its new values, in the same order"
            raise ModelError(f"{self._mode}_step must return a list of {count} {name}", given=given, fix=fix)

    def _checked(self, returned: Any) -> tuple[Mapping[str, Any], tuple[Any, ...]]:
        """Return logs and state; raise unless the step returned both."""
        parts = PARTS[self._mode]
        expected = f"(logs, ({', '.join(parts)})) with a dict of numbers as logs"
        logs, after = returned if isinstance(returned, tuple) and len(returned) == 2 else (None, None)
        if not isinstance(logs, Mapping) or not isinstance(after, tuple | list) or len(after) != len(parts):
            raise self._wrong_return(returned, expected)
        in_order = {name: logs[name] for name in sorted(logs, key=str)}  # in which Keras lists them
        return flat_logs(f"{self._mode}_step", in_order), tuple(after)

    def _logged(self, name: Any, value: Any) -> jax.Array:
        try:
            if isinstance(name, str):
                return jnp.asarray(value_of(value))
        except (TypeError, ValueError):
            pass
        summary = f"{self._mode}_step must log numbers or arrays under names"
        fix = "log the parts of a list under separate names, and leave out what is None"
        raise ModelError(summary, given=f"logs[{name!r}] = {shorten(value)}", fix=fix)

    def _wrong_return(self, returned: Any, expected: str) -> ModelError:
        summary = f"{self._mode}_step did not return what Keras expects of it on JAX"
        given = f"{returned!r:.200} of type {type(returned).__name__}"
        return ModelError(summary, given=given, fix=f"return {expected}")


def _like(value: Any, before: Any, name: str) -> jax.Array:
    """Return the new value of a metric's variable in its dtype."""
    array = jnp.asarray(value_of(value), before.dtype)
    if array.shape != before.shape:
        given = f"shape {array.shape}, before {before.shape}"
        fix = "return what metric.stateless_update_state gives"
        raise ModelError(f"a step changed the shape of {name}", given=given, fix=fix)
    return array


def _check_count(variables: Sequence[Any], values: Sequence[Any]) -> None:
    if len(variables) != len(values):
        summary = "the metrics of the model have other variables than when its step was traced first"
        fix = "make metrics and their variables in __init__ or build of the model"
        raise ModelError(summary, given=f"{len(variables)} variables, before {len(values)}", fix=fix)
