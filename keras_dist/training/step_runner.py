"""`StepRunner`: fit, evaluate and predict for one model, from batches to logs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Literal

import jax

from keras_dist._support.types import PyTree
from keras_dist.data.adapters import Source
from keras_dist.data.arrays import ArraySource, ShapeSource
from keras_dist.data.batch import Batch
from keras_dist.data.batching import Validation
from keras_dist.distribution.consistency import Fingerprint, check_agreement, facts_of_form, is_shared
from keras_dist.distribution.process_rows import replica_groups
from keras_dist.jobs import heartbeat
from keras_dist.training import step as steps
from keras_dist.training.accumulators import LazyLogs, LazyOutputs, joined, of_one_batch, real_outputs
from keras_dist.training.batch_placement import BatchPlacement, Examples
from keras_dist.training.compile_config import CompileConfig
from keras_dist.training.compiled import CompiledSteps, Expected, LoggedStep, zero_logs
from keras_dist.training.executions import Execution, execution_of
from keras_dist.training.loop import Hooks, Mode, interrupt_between_steps, run_steps, shield
from keras_dist.training.optimization import finalize
from keras_dist.training.progress import Progress, TrainingRun, nothing_to_continue
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Draw, Forward, Logs, ModuleCall, PureStep
from keras_dist.training.step_protocol import ProtocolStep
from keras_dist.training.throughput import StepTimer, Timing

_VALIDATIONS = 2**31
"""The run of the first validation, to which the steps before are added. Other evaluations and predictions are below."""


class StepRunner:
    """The compiled steps of one model on one distribution, and the loop over them."""

    def __init__(self, cell: StateCell, forward: Forward, config: CompileConfig) -> None:
        self._cell, self._forward, self._compile_config = cell, forward, config
        self._options = self._compile_config.options
        self._compiled = CompiledSteps(cell.state_plan, forward.distribution, self._options, cell.assignable)
        self._placement = BatchPlacement(cell.graph, forward.distribution, self._options)
        self._steps = _steps(forward, self._compile_config, cell)
        self._logged_steps: dict[Mode, LoggedStep] = {}
        self._predict_steps: dict[ModuleCall | None, Callable[..., PyTree]] = {}
        self._run: TrainingRun | None = None
        self.stops: set[Mode] = set()  # modes whose run ends after the current step

    def fit(
        self,
        examples: Examples,
        epochs: range,
        shuffle_key: tuple[int, ...] | None,
        validation: Validation | None,
        hooks: Hooks,
        facts: Fingerprint | None = None,
    ) -> Timing:
        """Train for the epochs; `facts` are further values that must be equal in all processes of a job."""
        self._check_targets(examples.source)
        distribution = self._forward.distribution
        is_own = not distribution.auto_shard_dataset  # whether processes pass different rows
        order, parts = (None, len(replica_groups(distribution))) if is_own else (shuffle_key, None)
        further = {"epochs": epochs, "order of the rows": order, **(facts or {}), **hooks.facts()}
        self._check_agreement("fit", examples, {**further, **_facts_of_validation(validation)})
        self._compiled.forget_shapes("train")
        if validation is not None:
            self._check_measurable(validation.examples.source)
        program = self._logged_step("train", lambda: self._placement.example(examples))
        should_stop = self._stopper("train")
        logs: MutableMapping[str, Any] = {}
        leave = hooks.on_train_interrupt if hooks.handles_interrupts else None
        progress = Progress.begun(examples, epochs, shuffle_key, parts)
        run = TrainingRun(examples, hooks, progress, program.zeros, self._options)
        with (
            self._running(run, hooks),
            interrupt_between_steps(leave, is_shared=is_shared(self._cell.mesh)) as check_interrupt,
        ):
            hooks.begin("train")
            start = run.begin()
            start = run.progress = dataclasses.replace(start, metric_states=program.resumed(dict(start.metric_states)))
            left, one_by_one = range(start.cursor.epoch, epochs.stop), hooks.sees_every_batch("train")
            feed = self._placement.feed("train", examples, len(left), one_by_one)
            validate = self._validation(validation, hooks, left)
            timer = StepTimer(feed.tuner)
            for epoch, executions in feed.epochs(start.epochs(epochs.stop), start.shuffle_key, start.cursor):
                if start.is_stopping:
                    break
                run.progress = start if epoch == start.cursor.epoch else start.at_epoch(epoch)
                hooks.on_epoch_begin(epoch)
                states = run_steps(
                    "train",
                    executions,
                    self._train_dispatch(program, run, feed.expected),
                    hooks,
                    check_interrupt,
                    timer,
                    as_logs=lambda results: self._watched(program, results, timer),
                    should_stop=should_stop,
                    in_flight=self._options.prefetch,
                    batch=run.progress.cursor.batch,
                    group=self._options.steps_per_execution,
                )
                if states is None:  # the resumed epoch was complete
                    states = dict(run.progress.metric_states)
                self._cell.show()
                self._hold(program, states)
                seconds = timer.clock.seconds
                logs = LazyLogs(states, program.accumulators, validate(epoch, check_interrupt), seconds)
                run.progress = start.at_epoch(epoch + 1)
                hooks.note_timing(timer.timing(self._cell.mesh.backend_mesh.local_devices))
                hooks.on_epoch_end(epoch, logs)
                if should_stop():
                    break
            self._finalize()
            hooks.end("train", logs)
        self._compiled.forget_shapes("train")
        return timer.timing(self._cell.mesh.backend_mesh.local_devices)

    @property
    def progress(self) -> Progress | None:
        """The progress of the running training; None without one."""
        return None if self._run is None else self._run.current(is_stopping="train" in self.stops)

    def use_seed(self, seed: int) -> None:
        """Use another seed for the random numbers of steps."""
        self._forward.seed = seed
        self._predict_steps.clear()
        self._compiled.forget_programs()

    def check_continues(self, progress: Progress) -> None:
        """Check that the training about to begin can resume at `progress`."""
        self._awaited_run(progress)

    def continue_from(self, progress: Progress) -> None:
        """Resume an interrupted training; call it in `on_train_begin`."""
        self._awaited_run(progress).progress = progress

    def _awaited_run(self, progress: Progress) -> TrainingRun:
        if self._run is None:
            raise nothing_to_continue()
        self._run.check_continues(progress)
        return self._run

    @contextlib.contextmanager
    def _running(self, run: TrainingRun, hooks: Hooks) -> Iterator[None]:
        """Publish the run, and call `on_train_exit` at its end; a callback may start another run."""
        outer, self._run = self._run, run
        try:
            with heartbeat.current().steps("fit", is_shared=is_shared(self._cell.mesh)):
                yield
        except BaseException as error:
            hooks.on_train_exit(error)
            raise
        else:
            hooks.on_train_exit(None)
        finally:
            self._run = outer

    def evaluate(self, examples: Examples, hooks: Hooks, draw: Draw) -> dict[str, float]:
        """Return loss and metrics over the examples; `draw` is the position of random numbers."""
        self._check_agreement("evaluate", examples, _facts_of_draw(draw))
        shared = is_shared(self._cell.mesh)
        with (
            heartbeat.current().steps("evaluate", is_shared=shared),
            interrupt_between_steps(is_shared=shared) as check_interrupt,
        ):
            return dict(self._evaluation(examples, hooks)(check_interrupt, draw))

    def _validation(
        self, validation: Validation | None, hooks: Hooks, epochs: range
    ) -> Callable[[int, Callable[[], None]], dict[str, float]]:
        """Return the function that evaluates after an epoch and returns its logs."""
        if validation is None:
            return lambda epoch, check_interrupt: {}
        evaluate = self._evaluation(validation.examples, hooks, validation.times(epochs))

        def validate(epoch: int, check_interrupt: Callable[[], None]) -> dict[str, float]:
            if not validation.is_due(epoch):
                return {}
            # the position follows from the step count, so that a resumed training draws the same
            draw = Draw.begun(self._forward.seed, _VALIDATIONS + self._cell.steps_taken)
            return {f"val_{name}": value for name, value in evaluate(check_interrupt, draw).items()}

        return validate

    def _evaluation(
        self, examples: Examples, hooks: Hooks, epochs: int = 1
    ) -> Callable[[Callable[[], None], Draw], LazyLogs]:
        """Return the function that evaluates these examples; their data is placed once."""
        self._check_measurable(examples.source)
        self._compiled.forget_shapes("test")
        feed = self._placement.feed("test", examples, epochs, one_by_one=hooks.sees_every_batch("test"))
        program = self._logged_step("test", lambda: self._placement.example(examples))

        def evaluate(check_interrupt: Callable[[], None], draw: Draw) -> LazyLogs:
            should_stop = self._stopper("test")
            hooks.begin("test")
            states = run_steps(
                "test",
                _only(feed.epochs(range(1))),
                self._test_dispatch(program, draw, feed.expected),
                hooks,
                check_interrupt,
                StepTimer(feed.tuner),
                as_logs=functools.partial(self._watched, program),
                should_stop=should_stop,
                in_flight=self._options.prefetch,
                group=self._options.steps_per_execution,
            )
            self._hold(program, states)
            self._compiled.forget_shapes("test")
            logs = LazyLogs(states, program.accumulators)
            hooks.end("test", logs)
            return logs

        return evaluate

    def predict(
        self, examples: Examples, hooks: Hooks, draw: Draw, call: ModuleCall | None = None, local: bool = False
    ) -> PyTree:
        """Return the outputs for the examples, in order, on the host; with `local` only for rows of this process."""
        outputs: list[PyTree] = []
        self._check_agreement("predict", examples, {"local": local, **_facts_of_draw(draw)})
        self._compiled.forget_shapes("predict")
        feed = self._placement.stream("predict", examples)
        should_stop = self._stopper("predict")
        shared = is_shared(self._cell.mesh)
        with (
            heartbeat.current().steps("predict", is_shared=shared),
            interrupt_between_steps(is_shared=shared) as check_interrupt,
        ):
            hooks.begin("predict")
            run_steps(
                "predict",
                _only(feed.epochs(range(1))),
                self._predict_dispatch(self._predict_step(call), draw, feed.expected, local),
                hooks,
                check_interrupt,
                StepTimer(),
                as_logs=LazyOutputs,
                collect=lambda rows, result: outputs.append(real_outputs(rows, result)),
                should_stop=should_stop,
                in_flight=self._options.prefetch,
                group=self._options.steps_per_execution,
            )
            hooks.end("predict")
        self._compiled.forget_shapes("predict")
        return joined(outputs)

    def train_batch(self, source: ArraySource) -> dict[str, float]:
        """Take one step on all rows of `source`; return its logs."""
        self._check_targets(source)
        self._placement.compare_call("train_on_batch", source)
        batch = self._placement.whole(source)
        program = self._logged_step("train", lambda: batch)
        timer = StepTimer()
        with heartbeat.current().waiting():
            with interrupt_between_steps(is_shared=is_shared(self._cell.mesh)):
                began = timer.look()
                states, compiled = self._train_dispatch(program)(execution_of(batch))
                timer.dispatched(began, None, batch.rows, compiled)
            return dict(self._watched(program, [(batch.rows, states)], timer))

    def test_batch(self, source: ArraySource, draw: Draw) -> dict[str, float]:
        """Return loss and metrics of all rows of `source` as one batch."""
        self._check_measurable(source)
        self._placement.compare_call("test_on_batch", source)
        batch = self._placement.whole(source)
        program = self._logged_step("test", lambda: batch)
        with heartbeat.current().waiting():
            states, _ = self._test_dispatch(program, draw)(execution_of(batch))
            return dict(self._watched(program, [(batch.rows, states)]))

    def predict_batch(self, source: ArraySource, draw: Draw, local: bool = False) -> PyTree:
        """Return the outputs for all rows of `source` as one batch, on the host; see `predict`."""
        self._placement.compare_call("predict_on_batch", source)
        batch = self._placement.whole(source)
        with heartbeat.current().waiting():
            outputs, _ = self._predict_dispatch(self._predict_step(None), draw, local=local)(execution_of(batch))
            return of_one_batch(real_outputs(batch.rows, outputs))

    def lower(self, source: ArraySource | ShapeSource, mode: Literal["train", "test"] = "train") -> PyTree:
        """Lower the program of a mode for all rows of `source` as one batch."""
        (self._check_targets if mode == "train" else self._check_measurable)(source)
        batch = self._placement.whole(source)
        program = self._logged_step(mode, lambda: batch)
        return self._compiled.lower(mode, program.step, self._cell.arrays, program.zeros, batch)

    def _check_agreement(self, about: str, examples: Examples, further: Fingerprint | None = None) -> None:
        """Check that all processes of the job run the same steps on data of the same shapes."""

        def facts() -> Fingerprint:
            return {**self._compile_config.facts(), **_facts_of_data(examples), **(further or {})}

        check_agreement(about, self._cell.mesh, facts)

    def _check_targets(self, source: Source) -> None:
        if not self._compile_config.is_own("train"):
            self._cell.graph.check_trains()
            self._check_measurable(source)

    def _check_measurable(self, source: Source) -> None:
        objective = self._compile_config.objective
        if objective is not None and objective.needs_targets and not self._compile_config.is_own("test"):
            source.check_targets()

    def _logged_step(self, mode: Mode, some_batch: Callable[[], Batch]) -> LoggedStep:
        """Return the train or test step; trace it once for the shapes of its logs."""
        if mode not in self._logged_steps:
            step = self._steps[mode]
            is_own = self._compile_config.is_own("train") or self._compile_config.is_own("test")
            if mode == "train" and not is_own and not self._compile_config.report:  # both log the same
                logged = dataclasses.replace(self._logged_step("test", some_batch), step=step)
            else:
                accumulators = self._compiled.accumulators(step, self._cell.state, some_batch())
                logged = LoggedStep(step, accumulators, zero_logs(accumulators, self._cell.mesh))
            self._logged_steps[mode] = logged
        return self._logged_steps[mode]

    def _predict_step(self, call: ModuleCall | None) -> Callable[..., PyTree]:
        if call not in self._predict_steps:
            if call is None and "predict" in self._steps:
                return self._steps["predict"]
            forward = self._forward
            forward = forward if call is None else dataclasses.replace(forward, call=call, compute_loss=None)
            self._predict_steps[call] = steps.make_predict_step(forward)
        return self._predict_steps[call]

    def _stopper(self, mode: Mode) -> Callable[[], bool]:
        """Return a predicate that is true once this run should stop."""
        self.stops.discard(mode)
        return lambda: mode in self.stops

    def _train_dispatch(
        self, program: LoggedStep, run: TrainingRun | None = None, expected: Expected = list
    ) -> Callable[[Execution], tuple[Logs, int]]:
        """Return the function that dispatches an execution and updates the progress of the run."""
        is_resumed = run is not None and bool(run.progress.metric_states)
        logs = dict(run.progress.metric_states) if run is not None and is_resumed else program.reset(self._cell.mesh)
        shielded = shield()

        def dispatch(execution: Execution) -> tuple[Logs, int]:
            nonlocal logs
            known = self._compiled.count
            with self._cell.lock:
                prepared = self._compiled.train(program.step, self._cell.arrays, logs, execution, expected)
                with shielded:  # the state is consumed: whatever happens, the cell must have the new one
                    self._cell.arrays, logs = prepared()
                    if run is not None:
                        run.advance(execution.steps, execution.rows, logs)
            return logs, self._compiled.count - known

        return dispatch

    def _test_dispatch(
        self, program: LoggedStep, draw: Draw, expected: Expected = list
    ) -> Callable[[Execution], tuple[Logs, int]]:
        logs = program.reset(self._cell.mesh)

        def dispatch(execution: Execution) -> tuple[Logs, int]:
            nonlocal logs, draw
            known = self._compiled.count
            with self._cell.lock:
                streams, logs = self._compiled.test(program.step, self._cell.arrays, logs, draw, execution, expected)
                self._cell.put(streams)
            draw = draw.after(execution.steps)
            return logs, self._compiled.count - known

        return dispatch

    def _predict_dispatch(
        self, step: Callable[..., PyTree], draw: Draw, expected: Expected = list, local: bool = False
    ) -> Callable[[Execution], tuple[PyTree, int]]:
        def dispatch(execution: Execution) -> tuple[PyTree, int]:
            nonlocal draw
            known = self._compiled.count
            with self._cell.lock:
                streams, outputs = self._compiled.predict(step, self._cell.arrays, draw, execution, expected, local)
                self._cell.put(streams)
            draw = draw.after(execution.steps)
            return outputs, self._compiled.count - known

        return dispatch

    def _finalize(self) -> None:
        """Replace the trained variables by the final values of the optimizers."""
        optimizers = self._compile_config.optimizers
        if any(getattr(one.transformation, "use_ema", False) for one in optimizers.values()):
            program = jax.jit(
                lambda state: finalize(state, optimizers), out_shardings=self._cell.state_plan.shardings.trainable
            )
            with self._cell.lock:
                self._cell.state = self._cell.state.replace(trainable=program(self._cell.state))

    def _watched(
        self, program: LoggedStep, results: Sequence[tuple[int, Logs]], timer: StepTimer | None = None
    ) -> LazyLogs:
        """Return the logs for callbacks between batches; load them into the metric objects of the model."""
        _, states = results[-1]
        self._cell.show()
        self._hold(program, states)
        return LazyLogs(states, program.accumulators, None, (timer or StepTimer()).clock.seconds)

    def _hold(self, program: LoggedStep, states: Logs) -> None:
        """Load these states into the metric objects of the model."""
        program.step.hold(self._compile_config.metrics, program.accumulators, states)


def _steps(forward: Forward, config: CompileConfig, cell: StateCell) -> dict[Mode, Any]:
    """Return the steps of `compile` by mode; a predict step only if the user wrote it."""
    found: dict[Mode, Any] = {}
    if config.objective is not None:
        measured = steps.make_test_step(forward, config.objective)
        found["test"] = PureStep(measured, trains=False, assignable=cell.assignable)
    if config.train_step is not None:
        own = steps.own_train_step(forward, config.train_step, config.optimizers)
        found["train"] = PureStep(own, trains=True)
    elif config.objective is not None:
        ours = steps.make_train_step(forward, config.objective, config.optimizers, config.report)
        found["train"] = PureStep(ours, trains=True)
    if config.protocol is not None:
        for mode in config.protocol.steps:
            step: Any = ProtocolStep(mode, config.protocol, cell, config.optimizers)
            found[mode] = step.predict if mode == "predict" else step
    return found


def _facts_of_data(examples: Examples, name: str = "") -> Fingerprint:
    """Return the facts about data that must be equal in all processes."""
    parts = zip(("x", "y", "sample_weight"), examples.source.like, strict=True)
    facts: dict[str, object] = {f"{name}{size}": count for size, count in examples.sizes.items()}
    for part, arrays in parts:
        facts |= facts_of_form(f"an example of `{name}{part}`", arrays)
    return facts


def _facts_of_draw(draw: Draw) -> Fingerprint:
    seed, run, _ = draw.words.tolist()
    return {"seed": seed, "number of evaluations and predictions before": run}


def _facts_of_validation(validation: Validation | None) -> Fingerprint:
    if validation is None:
        return {"validation data": None}
    data = _facts_of_data(validation.examples, "validation ")
    return {"validation data": "given", "validation_freq": validation.freq, **data}


def _only(epochs: Iterator[tuple[int, Iterable[Execution]]]) -> Iterator[Execution]:
    """Yield the executions of the only epoch; it ends after them."""
    for _, executions in epochs:
        yield from executions
