"""Steps compiled for a plan: shardings, donation, accumulated logs, and exact partial batches.

Programs of an epoch are traced one after the other and compiled in threads meanwhile: compiling is most of a cold
start, and XLA works without Python's lock. Each shape of batch is compiled; added rows would give wrong numbers where
rows are mixed (BatchNorm), so only the user can want them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._support import integer_checks
from keras_dist._support.located_warnings import warn
from keras_dist._unstable import jaxprs, xla_workarounds
from keras_dist.data.batch import Batch
from keras_dist.data.conversion import noting
from keras_dist.distribution import lint
from keras_dist.distribution.consistency import Fingerprint, agreed_programs, is_shared
from keras_dist.distribution.layout import Axis, TensorLayout
from keras_dist.distribution.mesh import DeviceMesh
from keras_dist.distribution.pipelining import of_whole_batches
from keras_dist.distribution.placement import put
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.process_rows import sharding_of_rows
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import kernels_noted, traced_in
from keras_dist.distribution.variables import CHANGED_ALWAYS, PLANNED_BY_RULE
from keras_dist.errors import LayoutWarning, RecompileWarning
from keras_dist.jobs import heartbeat
from keras_dist.training.accumulators import Accumulator, PerBatch, check_names, is_per_batch
from keras_dist.training.compile_config import StepOptions
from keras_dist.training.executions import Execution, execution_of
from keras_dist.training.optimization import TrainState
from keras_dist.training.step import Draw, Logs, PureStep
from keras_dist.training.step_protocol import ProtocolStep
from keras_dist.training.uneven_rows import real_rows

LoggingStep = PureStep | ProtocolStep  # a train or test step that accumulates its logs
Flat = list[Any]  # the arrays of a `TrainState`: flattening one in each step would cost tens of microseconds

Expected = Callable[[], list[Execution]]
"""Returns other executions of a run, whose programs can be compiled at the same time."""

Streams = dict[int, Any]
"""Arrays that evaluation and prediction change, such as states of random generators, by index in a `TrainState`."""

_KINDS = {"train": "training", "test": "evaluation", "predict": "prediction"}

EXPECTED_SHAPES = 2  # batch shapes that one dataset normally has: full batches and one partial batch
MANY_SHAPES = 16  # batch shapes since `compile` that are hardly intended

FEWER_SHAPES = (
    "make batches with drop_remainder=True, or pad them to a few shapes with kd.data.pad_batch(batch, multiple_of=...)"
)


@dataclasses.dataclass(frozen=True, eq=False)
class LoggedStep:
    """A step, its accumulators by logged name, and their initial states, which no step consumes."""

    step: LoggingStep
    accumulators: dict[str, Accumulator]
    zeros: Logs

    def resumed(self, states: Logs) -> Logs:
        """Return the states of a resumed process; rates restart, since the earlier duration is unknown."""
        rates = [name for name in states if self.accumulators[name].is_rate]
        return {**states, **{name: self.zeros[name] for name in rates}}

    def reset(self, mesh: DeviceMesh) -> Logs:
        """Return the states at the start of an epoch or evaluation; call user-defined `reset_state`."""
        own = {name: one for name, one in self.accumulators.items() if one.is_reset_by_users}
        return {**self.zeros, **zero_logs(own, mesh)} if own else self.zeros


class CompiledSteps:
    """The compiled programs of a model: one for each kind of step and execution, number of real rows, and shape."""

    # a batch whose length the mesh does not divide is padded, placed evenly, and sliced back to its true length inside
    # the program, so that every module and loss sees exactly the rows that exist.

    def __init__(
        self,
        plan: LayoutPlan,
        distribution: Distribution,
        options: StepOptions | None = None,
        assignable: Collection[int] = (),
    ) -> None:
        self._options, self._assignable = options or StepOptions(), assignable
        self._distribution = distribution
        self._state_shardings, self._state_tree = jax.tree.flatten(plan.shardings)
        self._rows, self._warned_of_splits = plan.rows, False
        self._streams = [index for index, row in enumerate(plan.rows) if row.role in CHANGED_ALWAYS]
        self._states = [index for index in self._streams if plan.rows[index].role == "state"]
        self._mesh, self._replicated, self._is_shared = plan.mesh, _replicated(plan.mesh), is_shared(plan.mesh)
        several = plan.mesh.is_multi_process
        places = {False: self._replicated, True: sharding_of_rows(distribution)} if several else {}
        self._outputs_at = {local: jax.jit(lambda outputs: outputs, out_shardings=at) for local, at in places.items()}
        self._layouts_of = _layouts_of_tensors(distribution)
        self._unwindowed = _without_windows(plan)
        self._programs: dict[Any, Callable[..., Any]] = {}
        self.count = 0  # of programs
        self._shapes: dict[tuple[str, str], list[str]] = {}
        self._shapes_ever: collections.Counter[tuple[str, str]] = collections.Counter()

    def forget_shapes(self, mode: str) -> None:
        """Restart the count of shapes, at the begin or end of a run over a dataset."""
        for counted in [key for key in self._shapes if key[0] == mode]:
            del self._shapes[counted]

    def forget_programs(self) -> None:
        """Discard the programs, because something they depend on has changed."""
        self._programs.clear()
        self.count = 0

    def train(
        self, step: LoggingStep, state: Flat, logs: Logs, execution: Execution, expected: Expected = list
    ) -> Callable[[], tuple[Flat, Logs]]:
        """Compile what is needed, also for `expected`; return the dispatch of the steps, which consumes `state`."""
        return self._prepared("train", step, execution, expected, state, logs)

    def test(
        self, step: LoggingStep, state: Flat, logs: Logs, draw: Draw, execution: Execution, expected: Expected = list
    ) -> tuple[Streams, Logs]:
        """Return the changed arrays, and `logs` updated with the batches."""
        return self._prepared("test", step, execution, expected, state, logs, draw)()

    def predict(
        self,
        step: Callable[..., Any],
        state: Flat,
        draw: Draw,
        execution: Execution,
        expected: Expected = list,
        local: bool = False,
    ) -> tuple[Streams, Any]:
        """Return the changed arrays and the padded outputs: of all processes, or `local` of the rows held here."""
        (drawn, states, assigned), outputs = self._prepared(
            "predict", step, execution, expected, state, draw, needs_all=not local
        )()
        assigned = {index: jax.device_put(array, self._state_shardings[index]) for index, array in assigned.items()}
        # in the program that computes them, XLA would gather the last kernel instead
        return drawn | states | assigned, self._gathered(outputs, local) if self._outputs_at else outputs

    def _gathered(self, outputs: Any, local: bool) -> Any:
        leaves, tree = jax.tree.flatten(outputs, is_leaf=is_per_batch)
        found = self._outputs_at[local]([leaf for leaf in leaves if not is_per_batch(leaf)])
        whole = self._outputs_at[False]([leaf for leaf in leaves if is_per_batch(leaf)])
        with_rows, without = iter(found), iter(whole)
        return tree.unflatten([next(without if is_per_batch(leaf) else with_rows) for leaf in leaves])

    def accumulators(self, step: LoggingStep, state: TrainState, batch: Batch) -> dict[str, Accumulator]:
        """Return the accumulators of a step's logs. Traces the step, or runs it if it may read values."""
        accumulators: dict[str, Accumulator] = {}

        def trace(state: TrainState, arrays: Any) -> None:
            accumulators.update(step.accumulators(state, real_rows(arrays, batch.rows, self._distribution)))

        with _noting(batch), of_whole_batches(), kernels_noted():  # notes are of the programs, not of these
            # steps of the user that are not compiled may read values
            reads = step.may_read_values and not self._options.jit
            given = jax.tree.leaves((state, batch.arrays))
            reads = reads and not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in given)
            run = trace if reads else functools.partial(jax.eval_shape, trace)
            self._traced(batch.rows, lambda: run(state, batch.arrays))
        check_names(accumulators)
        return accumulators

    def lower(self, mode: str, step: LoggingStep, state: Flat, logs: Any, batch: Batch) -> Any:
        """Lower a program, for reports on its memory and collectives."""
        execution, draw = execution_of(batch), (Draw.begun(0, 0),) * (mode == "test")
        program = (self._test_program if draw else self._train_program)(step, execution)
        program = program if self._options.jit else jax.jit(program)
        return self._traced(batch.rows, lambda: self._lowered(program, (state, logs, *draw, batch.arrays)))

    def _prepared(
        self, mode: str, step: Any, execution: Execution, expected: Expected, *before: Any, needs_all: bool = True
    ) -> Callable[[], Any]:
        """Compile the program if necessary, and bind its arguments; `needs_all`: it waits for other processes."""
        key = mode, step, execution.kind, execution.form
        if key not in self._programs:
            self._compile(mode, step, [execution, *expected()], before)
        program = self._programs[key]
        arguments = _arguments(mode, before, execution)

        def run() -> Any:
            if needs_all and self._is_shared:
                heartbeat.current().note_shared_steps(_KINDS[mode], execution.steps)
            try:  # `_noting` would take a tenth of the main thread's time for a small step
                if not self._options.jit:
                    return self._traced(execution.rows, lambda: program(*arguments))
                result = program(*arguments)
                if self._options.check:
                    error, result = result
                    integer_checks.raise_found(error)
                return result
            except Exception as error:
                error.add_note(f"in {_step_on(execution)}")
                raise

        return run

    def _compile(self, mode: str, step: Any, executions: list[Execution], before: tuple[Any, ...]) -> None:
        """Trace executions one after the other, compile meanwhile; errors are raised only for the first, needed now."""
        new: dict[Any, Execution] = {}

        def made() -> Iterator[Any]:
            for execution in executions:
                key = mode, step, execution.kind, execution.form
                if key in self._programs or key in new:
                    continue
                try:
                    program = self._made(mode, step, execution, before)
                except Exception:
                    if not new:
                        raise
                    continue
                new[key] = execution
                self._warn_of_shapes(mode, execution)
                yield program

        try:
            if self._options.jit:
                facts = functools.partial(self._facts, executions[0])
                programs = jaxprs.compile_together(
                    agreed_programs(f"the compilation of the {mode} step", self._mesh, made(), facts)
                )
            else:
                programs = list(made())
        except jax.errors.JaxRuntimeError:
            with _noting(executions[0]):
                raise
        self._programs |= zip(new, programs, strict=True)
        self.count = len(self._programs)

    def _facts(self, execution: Execution) -> Fingerprint:
        auto_shard = self._distribution.auto_shard_dataset
        return {"auto_shard_dataset": auto_shard, "batch": execution.describe(), "batches at once": execution.steps}

    def _made(self, mode: str, step: Any, execution: Execution, before: tuple[Any, ...]) -> Any:
        makers = {"train": self._train_program, "test": self._test_program, "predict": self._predict_program}
        with _noting(execution):
            program = makers[mode](step, execution)
            if not self._options.jit:
                return program
            arguments = _arguments(mode, before, execution)
            return self._traced(execution.rows, lambda: self._lowered(program, arguments))

    def _traced(self, rows: int, trace: Callable[[], Any]) -> Any:
        return traced_in(self._distribution, rows, trace, pads=self._options.pads)

    def _lowered(self, program: Any, arguments: tuple[Any, ...]) -> jax.stages.Lowered:
        platform = self._mesh.platform if self._mesh.is_abstract else None
        rules = functools.partial(
            xla_workarounds.lowering_rules, self._mesh.backend_mesh, self._mesh.platform, self._layouts_of
        )
        return jaxprs.lower_with(program, arguments, rules, platform, self._warn_of_splits, self._unwindowed)

    def _warn_of_splits(self, jaxpr: Any) -> None:
        """Warn once of weights that a `shard_map` of the module splits and that no rule shards."""
        if self._warned_of_splits:
            return
        lines: list[str] = []
        for index, splits in sorted(jaxprs.splits_of_inputs(jaxpr).items()):
            row = self._rows[index] if index < len(self._rows) else None
            if row is None or row.role not in PLANNED_BY_RULE or row.rule is not None or any(row.axes):
                continue
            if any(self._mesh.axis_size(axes) > 1 for axes in splits.values()):
                axes = TensorLayout([splits.get(dim) for dim in range(len(row.shape))]).axes
                lines.append(f"layout_map[{row.path!r}] = {axes}  # shape {row.shape}, {row.nbytes} bytes a device")
        if lines:
            self._warned_of_splits = True
            warn(
                f"a shard_map of the module splits {len(lines)} weight(s) that no layout rule shards: each device "
                f"holds all of them\n"
                f"  mesh:     {self._mesh.describe()}\n"
                f"  fix:      add to the LayoutMap of a ModelParallel, before the model is made:\n"
                + "\n".join(f"            {line}" for line in lines),
                LayoutWarning,
            )

    def _warn_of_shapes(self, mode: str, execution: Execution) -> None:
        key = mode, execution.kind
        shapes = self._shapes.setdefault(key, [])
        shapes.append(execution.describe())
        self._shapes_ever[key] += 1
        if self._shapes_ever[key] == MANY_SHAPES:
            what = (
                f"the {mode} step was compiled for {MANY_SHAPES} shapes of batches since compile(), the last one: "
                f"{shapes[-1]}\n"
                f"  expected: batches of a few shapes; each compilation takes longer than many steps\n"
                f"  fix:      {FEWER_SHAPES}; this warning is shown once"
            )
        elif len(shapes) > EXPECTED_SHAPES:
            what = (
                f"the {mode} step was compiled for {len(shapes)} shapes of batch so far, the last one: {shapes[-1]}\n"
                f"  before:   {shapes[-2]}\n"
                f"  expected: batches of one shape, and perhaps one partial batch; each shape is compiled\n"
                f"  fix:      {FEWER_SHAPES}"
            )
        else:
            return
        warn(what, RecompileWarning)

    def _train_program(self, step: LoggingStep, execution: Execution) -> Any:
        # the programs outlive the execution, and must not keep its arrays
        run, rows, distribution = execution.run, execution.rows, self._distribution

        def one(carry: tuple[Flat, Logs], arrays: Any) -> tuple[Flat, Logs]:
            state, logs = self._state_tree.unflatten(carry[0]), carry[1]
            new, logs = step.advance(state, real_rows(arrays, rows, distribution), logs, rows, None)
            arrays = jax.tree.leaves(new.replace(step=state.step + 1))
            return _constrained(arrays, self._state_shardings), logs

        def train(state: Flat, logs: Logs, operands: Any) -> tuple[Flat, Logs]:
            return run(one, (state, logs), operands, distribution)

        return self._jit(
            train,
            (self._state_shardings, self._replicated, execution.shardings(distribution)),
            (self._state_shardings, self._replicated),
            consumes_state=True,
        )

    def _test_program(self, step: LoggingStep, execution: Execution) -> Any:
        run, rows, distribution = execution.run, execution.rows, self._distribution
        kept = sorted({*self._streams, *step.changed})

        def test(state: Flat, logs: Logs, draw: Draw, operands: Any) -> tuple[Streams, Logs]:
            def one(carry: tuple[Streams, Logs, Draw], arrays: Any) -> tuple[Streams, Logs, Draw]:
                streams, logs, draw = carry
                before = self._state_tree.unflatten([streams.get(index, leaf) for index, leaf in enumerate(state)])
                batch = real_rows(arrays, rows, distribution)
                after, logs = step.advance(before, batch, logs, rows, draw)
                leaves = jax.tree.leaves(after)
                return {index: leaves[index] for index in kept}, logs, draw.after(1)

            return run(one, ({index: state[index] for index in kept}, logs, draw), operands, distribution)[:2]

        shardings = self._state_shardings, self._replicated, self._replicated, execution.shardings(distribution)
        return self._jit(test, shardings, ({index: self._state_shardings[index] for index in kept}, self._replicated))

    def _predict_program(self, step: Callable[..., Any], execution: Execution) -> Any:
        rows, padded = execution.rows, len(jax.tree.leaves(execution.operands[0])[0])

        def predict(arrays: Flat, draw: Draw, x: Any) -> tuple[tuple[Streams, Streams, Streams], Any]:
            state, outputs = step(self._state_tree.unflatten(arrays), real_rows(x, rows, self._distribution), draw)
            leaves = jax.tree.leaves(state)
            changed = {index: leaf for index, leaf in enumerate(leaves) if leaf is not arrays[index]}
            states = {index: changed.get(index, arrays[index]) for index in self._states}
            drawn = {index: changed[index] for index in self._streams if index in changed.keys() - states.keys()}
            assigned = {index: changed[index] for index in self._assignable if index in changed}
            return (drawn, states, assigned), _pad_rows(outputs, rows, padded)

        # outputs stay where XLA computes them: to replicate them, it would gather the last kernel
        shardings = self._state_shardings, self._replicated, execution.shardings(self._distribution)[0]
        states = {index: self._state_shardings[index] for index in self._states}
        return self._jit(predict, shardings, ((self._replicated, states, None), None))

    def _jit(self, function: Callable[..., Any], given: Any, returned: Any, consumes_state: bool = False) -> Any:
        """Jit the function with these shardings; without `jit`, only place its arguments and results."""
        if self._options.jit:
            donated = (0,) if consumes_state and self._options.donate else ()
            if self._options.check:
                function, returned = integer_checks.checked(function), (self._replicated, returned)
            return jax.jit(function, in_shardings=given, out_shardings=returned, donate_argnums=donated)

        def run(*arguments: Any) -> Any:
            results = function(*(jax.device_put(value, place) for value, place in zip(arguments, given, strict=True)))
            return jax.tree.map(
                lambda place, part: part if place is None else jax.device_put(part, place),
                returned,
                results,
                is_leaf=lambda place: place is None,
            )

        return run


def _arguments(mode: str, before: tuple[Any, ...], execution: Execution) -> tuple[Any, ...]:
    return (*before, execution.operands[0] if mode == "predict" else execution.operands)


def _noting(batch: Batch | Execution) -> contextlib.AbstractContextManager[None]:
    """Add the batch to errors of the module, the loss or JAX."""
    return noting(lambda: _step_on(batch))


def _step_on(batch: Batch | Execution) -> str:
    return f"a step on {batch.describe()}"


def zero_logs(accumulators: Mapping[str, Accumulator], mesh: DeviceMesh) -> Logs:
    """Return the initial states of accumulators, replicated."""
    start = {name: accumulator.start() for name, accumulator in accumulators.items()}
    return put(start, _replicated(mesh))


def _layouts_of_tensors(distribution: Distribution) -> Callable[[tuple[int, ...]], list[tuple[Axis, ...]]]:
    """Return a function of a shape: the layouts that a distribution gives inputs and activations."""
    rules = distribution.layout_map
    ruled = [] if rules is None else [rules.rule_layout(rule).axes for rule in rules if lint.names_tensor(rule)]
    return lambda shape: [*ruled, distribution.get_data_layout(shape).axes]


def _without_windows(plan: LayoutPlan) -> set[tuple[tuple[int, ...], tuple[Axis, ...]]]:
    """Return shapes and layouts of weights that shard no dim of a window: they do not split images."""
    rows = ((row, axes) for row in plan.rows for axes in (row.axes, row.compute_axes, row.slot_axes))
    found = {(row.shape, axes) for row, axes in rows if not any(axes[:-2])}
    turned = {((*shape[:-2], *shape[:-3:-1]), (*axes[:-2], *axes[:-3:-1])) for shape, axes in found}
    return found | turned  # of transposed convolutions


def _constrained(arrays: Flat, shardings: Sequence[jax.sharding.NamedSharding]) -> Flat:
    """Constrain arrays to shardings (traced), and place them in their kinds of memory."""
    pairs = zip(arrays, shardings, strict=True)
    placed = [array if to.memory_kind is None else jax.device_put(array, to) for array, to in pairs]
    return jax.lax.with_sharding_constraint(placed, list(shardings))


def _replicated(mesh: DeviceMesh) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(mesh.backend_mesh, jax.sharding.PartitionSpec())


def _pad_rows(outputs: Any, rows: int, padded: int) -> Any:
    def pad(output: Any) -> Any:
        if jnp.ndim(output) == 0 or output.shape[0] != rows:
            return PerBatch(output)
        return jnp.concatenate([output, jnp.repeat(output[-1:], padded - rows, axis=0)]) if padded != rows else output

    return jax.tree.map(pad, outputs)
