"""Steps compiled for a plan: shardings, donation, accumulated logs, and the exact treatment of short batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.data.arrays import Batch
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ModelError
from keras_dist.training.activations import input_layout, input_names
from keras_dist.training.state import TrainState
from keras_dist.training.step import Forward, TrainStep, check_train_step
from keras_dist.training.tallies import Tally, add, tally_of

Logs = dict[str, Any]
"""The states of tallies by name, on the device."""


def rows_multiple(x: Any, distribution: Distribution) -> int:
    """The number that the rows of a batch of inputs like `x` must be a multiple of to be placed evenly."""
    mesh = distribution.device_mesh
    leaves = jax.tree.leaves(x)
    layouts = [input_layout(name, leaf.shape, distribution) for name, leaf in zip(input_names(x), leaves, strict=True)]
    return math.lcm(*(mesh.axis_size(layout.axes[0]) for layout in layouts), _batch_shards(distribution))


class CompiledSteps:
    """The compiled programs of a model: one for each kind of step, number of real rows, and shape of batch.

    A batch whose length the mesh does not divide is padded, placed evenly, and sliced back to its true length inside
    the program, so that every module and loss sees exactly the rows that exist.

    Args:
        plan: plan of the whole `TrainState`.
        forward: the module and its seed.
        distribution: gives the layouts of data.
    """

    def __init__(self, plan: LayoutPlan, forward: Forward, distribution: Distribution) -> None:
        self._forward = forward
        self._distribution = distribution
        self._state_shardings = plan.shardings
        self._replicated = _replicated(plan.mesh)
        self._programs: dict[Any, Callable[..., Any]] = {}

    def train(self, step: TrainStep, state: TrainState, logs: Logs, batch: Batch) -> tuple[TrainState, Logs]:
        """`state` after `step`, and `logs` with the batch added. Consumes `state`."""
        program = self._program("train", step, batch, lambda: self._compile_train(step, batch))
        with _noting(batch):
            return program(state, logs, batch.arrays)

    def test(self, step: Callable[..., Any], state: TrainState, logs: Logs, batch: Batch) -> Logs:
        """`logs` with the batch added."""
        program = self._program("test", step, batch, lambda: self._compile_test(step, batch))
        with _noting(batch):
            return program(state, logs, batch.arrays)

    def predict(self, step: Callable[..., Any], state: TrainState, batch: Batch) -> Any:
        """The outputs for the batch, with the padding of the batch."""
        program = self._program("predict", step, batch, lambda: self._compile_predict(step, batch))
        with _noting(batch):
            return program(state, batch.arrays[0])

    def train_tallies(self, step: TrainStep, state: TrainState, batch: Batch) -> dict[str, Tally]:
        """How to accumulate what a train step logs. Traces the step, and runs nothing."""
        return _traced_tallies(lambda state, arrays: self._stepped(step, state, arrays, batch.rows)[1], state, batch)

    def test_tallies(self, step: Callable[..., Any], state: TrainState, batch: Batch) -> dict[str, Tally]:
        """How to accumulate what a test step logs. Traces the step, and runs nothing."""
        return _traced_tallies(
            lambda state, arrays: step(state, real_rows(arrays, batch.rows, self._distribution)), state, batch
        )

    def lower_train(self, step: TrainStep, state: Any, logs: Any, batch: Batch) -> Any:
        """The lowered train program, for reports on its memory and collectives."""
        return self._compile_train(step, batch).lower(state, logs, batch.arrays)

    def _program(self, kind: str, step: Any, batch: Batch, compile_: Callable[[], Any]) -> Callable[..., Any]:
        leaves, treedef = jax.tree.flatten(batch.arrays)
        key = (kind, step, batch.rows, treedef, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = compile_()
        return program

    def _stepped(self, step: TrainStep, state: TrainState, arrays: Any, rows: int) -> tuple[TrainState, Any]:
        return check_train_step(
            state, step(state, real_rows(arrays, rows, self._distribution), self._forward.rngs(state.step))
        )

    def _compile_train(self, step: TrainStep, batch: Batch) -> Any:
        rows = batch.rows  # the programs outlive the batch, and must not keep its arrays

        def train(state: TrainState, logs: Logs, arrays: Any) -> tuple[TrainState, Logs]:
            new, found = self._stepped(step, state, arrays, rows)
            return new.replace(step=state.step + 1), _accumulate(logs, found, rows)

        return jax.jit(
            train,
            in_shardings=(self._state_shardings, self._replicated, self._batch_shardings(batch)),
            out_shardings=(self._state_shardings, self._replicated),
            donate_argnums=0,
        )

    def _compile_test(self, step: Callable[..., Any], batch: Batch) -> Any:
        rows = batch.rows

        def test(state: TrainState, logs: Logs, arrays: Any) -> Logs:
            return _accumulate(logs, step(state, real_rows(arrays, rows, self._distribution)), rows)

        return jax.jit(
            test,
            in_shardings=(self._state_shardings, self._replicated, self._batch_shardings(batch)),
            out_shardings=self._replicated,
        )

    def _compile_predict(self, step: Callable[..., Any], batch: Batch) -> Any:
        rows, padded = batch.rows, len(jax.tree.leaves(batch.arrays[0])[0])

        def predict(state: TrainState, x: Any) -> Any:
            return _pad_rows(step(state, real_rows(x, rows, self._distribution)), rows, padded, self._distribution)

        return jax.jit(predict, in_shardings=(self._state_shardings, self._batch_shardings(batch)[0]))

    def _batch_shardings(self, batch: Batch) -> Any:
        x, *others = batch.arrays
        leaves, treedef = jax.tree.flatten(x)
        names = input_names(x)
        inputs = [
            input_layout(name, leaf.shape, self._distribution).backend_layout
            for name, leaf in zip(names, leaves, strict=True)
        ]
        rest = jax.tree.map(lambda leaf: self._distribution.get_data_layout(leaf.shape).backend_layout, others)
        return (treedef.unflatten(inputs), *rest)


@contextlib.contextmanager
def _noting(batch: Batch) -> Iterator[None]:
    """Errors of the module, the loss or JAX say which batch they arose on."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in a step on {batch.describe()}")
        raise


def zero_logs(tallies: Mapping[str, Tally], mesh: DeviceMesh) -> Logs:
    """The states of tallies before the first batch, on every device."""
    return jax.device_put({name: tally.start() for name, tally in tallies.items()}, _replicated(mesh))


def _traced_tallies(found_in: Callable[..., Any], state: TrainState, batch: Batch) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}

    def trace(state: TrainState, arrays: Any) -> None:
        for name, found in found_in(state, arrays).items():  # in the user's order: JAX would sort them
            tallies[name] = tally_of(name, found)

    with _noting(batch):
        jax.eval_shape(trace, state, batch.arrays)
    return tallies


def _replicated(mesh: DeviceMesh) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(mesh.backend_mesh, jax.sharding.PartitionSpec())


def _batch_shards(distribution: Distribution) -> int:
    return distribution.device_mesh.axis_size(distribution.get_data_layout((1,)).axes[0])


def real_rows(arrays: Any, rows: int, distribution: Distribution) -> Any:
    """The first rows of each array, without the padding (traced).

    Where the batch is split over some axes of the mesh and repeated over others, rows that do not divide evenly are
    put on every device: XLA's partitioner counts padding in scatters of such arrays, as in the gradient of an
    embedding.
    """
    mesh = distribution.device_mesh
    repeated = _batch_shards(distribution) != mesh.backend_mesh.size

    def cut(array: Any) -> Any:
        if len(array) == rows:
            return array
        real = array[:rows]
        return jax.lax.with_sharding_constraint(real, _replicated(mesh)) if repeated else real

    return jax.tree.map(cut, arrays)


def _accumulate(logs: Logs, found: dict[str, Any], rows: int) -> Logs:
    """The states of the tallies with a batch added."""
    if set(found) != set(logs):
        raise ModelError(
            "train_step logs other names than before",
            given=f"{sorted(found)}",
            expected=f"{sorted(logs)}",
            fix="return the same names from every step",
        )
    return {name: add(state, found[name], rows) for name, state in logs.items()}


def _pad_rows(outputs: Any, rows: int, padded: int, distribution: Distribution) -> Any:
    def pad(path: Any, output: Any) -> Any:
        if jnp.ndim(output) == 0 or output.shape[0] != rows:
            raise ModelError(
                f"predict: output {jax.tree_util.keystr(path) or 'of the model'} has no row for each example",
                given=f"shape {jnp.shape(output)} for {rows} rows",
                expected=f"shape ({rows}, ...)",
                fix="return outputs with the batch along the first dim, or leave the others out with `call=`",
            )
        output = jnp.concatenate([output, jnp.repeat(output[-1:], padded - rows, axis=0)]) if padded != rows else output
        return jax.lax.with_sharding_constraint(output, distribution.get_data_layout(output.shape).backend_layout)

    return jax.tree_util.tree_map_with_path(pad, outputs)
