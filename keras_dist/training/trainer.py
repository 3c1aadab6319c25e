"""`Trainer`: fit, evaluate and predict for one model, from sources of batches to logs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import Batch
from keras_dist.data.batching import Batching, Streaming, Validation
from keras_dist.data.recognition import Source
from keras_dist.distribution import cluster
from keras_dist.distribution.process_rows import Share
from keras_dist.distribution.strategy import Distribution
from keras_dist.training import step as steps
from keras_dist.training.accumulators import Accumulator
from keras_dist.training.activations import check_tensor_rules
from keras_dist.training.compiled import CompiledSteps, Expected, Logs, StepOptions, rows_multiple, zero_logs
from keras_dist.training.executions import (
    Execution,
    ResidentFeed,
    Single,
    StreamFeed,
    fits_on_devices,
    is_earned,
    placed,
    share_of,
    stack_of,
)
from keras_dist.training.interrupt import interrupt_between_steps, shield
from keras_dist.training.logs import LazyLogs, LazyOutputs, real_outputs
from keras_dist.training.loop import MAX_IN_FLIGHT, Hooks, Mode, run_steps
from keras_dist.training.optimization import finalize, has_final_values
from keras_dist.training.progress import Progress, nothing_to_continue, of_another_thread, restored
from keras_dist.training.recipe import Recipe
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import Forward
from keras_dist.training.throughput import FixedSteps, StepsTuner, StepTimer, Timing

Examples = Batching | Streaming

WORTH_COMPILING = 1000
MOST_LENGTHS = 8
"""A data set of another length than the first one is kept on the devices for so many batches, and up to so many lengths
are: each compiles programs of its own, which takes about as long as a thousand dispatches."""


class Trainer:
    """The compiled steps of one model on one distribution, and the loop over them.

    Args:
        cell: owns the arrays.
        forward: calls the module.
        distribution: where data lives.
        recipe: None while the model is not compiled: only prediction works then.

    Attributes:
        stops: the modes whose run is to end after the current step; it is taken out of there when a run begins.
    """

    def __init__(self, cell: StateCell, forward: Forward, distribution: Distribution, recipe: Recipe | None) -> None:
        self._cell = cell
        self._forward = forward
        self._distribution = distribution
        self._options = recipe.options if recipe is not None else StepOptions()
        self._compiled = CompiledSteps(cell.state_plan, forward, distribution, self._options)
        self._predict_step = steps.make_predict_step(forward)
        self._predict_steps: dict[Callable[..., Any], Any] = {}
        self._train_accumulators: dict[str, Accumulator] | None = None
        self._test_accumulators: dict[str, Accumulator] | None = None
        self._zero_logs: dict[int, Logs] = {}
        self._paces: dict[Mode, StepsTuner] = {"train": StepsTuner(), "test": StepsTuner()}
        self._residents: dict[Mode, set[tuple[int, int]]] = {}
        self._tensor_rules_checked = False
        self.stops: set[Mode] = set()
        self._run: tuple[Examples, Hooks] | None = None
        self._progress: Progress | None = None
        self._begun = False
        self._begun_with: Logs = {}
        self._thread = threading.current_thread()
        self._train_step: Any = None
        self._test_step: Any = None
        self._recipe = recipe
        if recipe is not None:
            self._use(recipe)

    def fit(
        self,
        examples: Examples,
        epochs: range,
        shuffle_key: tuple[int, ...] | None,
        validation: Validation | None,
        hooks: Hooks,
    ) -> Timing:
        """Train for the epochs, and tell how fast it went.

        Args:
            examples: in batches.
            epochs: their numbers.
            shuffle_key: with the number of an epoch fixes the order of the rows from there on, until all had their
                turn; None for their own order.
            validation: what is evaluated after which epochs.
            hooks: the callbacks.
        """
        self._check_targets(examples.source)
        feed = self._feed("train", examples, hooks, len(epochs), shuffle_key)
        accumulators = self._accumulators_of_train(lambda: self._example(examples))
        evaluate = self._evaluation(validation.examples, hooks, len(epochs)) if validation is not None else None
        timer = StepTimer(feed.tuner)
        logs: Mapping[str, float] = {}
        should_stop = self._stopper("train")
        leave = hooks.on_train_interrupt if hooks.handles_interrupts else None
        begun, zeros = Progress.begun(examples, epochs, shuffle_key), self._zeros(accumulators)
        with self._running(begun, zeros, examples, hooks), interrupt_between_steps(leave) as check_interrupt:
            hooks.begin("train")
            start = self._begin(begun, zeros, hooks)
            for epoch, executions in feed.epochs(start.epochs(epochs.stop), start.shuffle_key, start.cursor):
                if start.is_stopping:
                    break
                self._progress = start if epoch == start.cursor.epoch else start.at_epoch(epoch)
                hooks.on_epoch_begin(epoch)
                states = run_steps(
                    "train",
                    executions,
                    self._train_dispatch(accumulators, feed.expected, is_noted=True),
                    hooks,
                    check_interrupt,
                    timer,
                    as_logs=functools.partial(self._watched, accumulators),
                    should_stop=should_stop,
                    in_flight=self._options.prefetch,
                    batch=self._progress.cursor.batch,
                )
                states = dict(self._progress.tallies) if states is None else states  # no step was left
                self._hold(accumulators, states)
                known: dict[str, float] = {}
                if validation is not None and evaluate is not None and validation.is_due(epoch):
                    found = evaluate(check_interrupt) if validation.has_batches() else {}
                    known = {f"val_{name}": value for name, value in found.items()}
                logs = LazyLogs(states, accumulators, known)
                self._progress = start.at_epoch(epoch + 1)
                hooks.on_epoch_end(epoch, logs)
                if should_stop():
                    break
            self._finalize()
            hooks.end("train", logs)
        self._compiled.forget_shapes("train")
        return timer.timing(self._cell.mesh.backend_mesh.local_devices)

    @property
    def progress(self) -> Progress | None:
        """How far the training has come that is running now; None if there is none.

        Raises:
            ModelError: it runs in another thread: its callbacks may not have seen yet what its arrays have.
        """
        if self._progress is None or self._run is None:
            return None
        if self._thread is not threading.current_thread():
            raise of_another_thread(self._thread)
        examples, hooks = self._run
        cursor = self._progress.cursor
        if isinstance(examples, Streaming) and self._options.steps_per_execution in (None, 1) and cursor.batch:
            # batches that are made before they are trained on are ahead; and each process has an iterator of its own
            is_exact = self._options.prefetch <= MAX_IN_FLIGHT and cluster.num_processes() == 1
            cursor = dataclasses.replace(cursor, source=examples.state() if is_exact else None)
        return dataclasses.replace(
            self._progress, cursor=cursor, is_stopping="train" in self.stops, callbacks=hooks.get_state()
        )

    def use_seed(self, seed: int) -> None:
        """Draw the random numbers of steps from another seed."""
        self._forward.seed = seed
        self._predict_steps.clear()
        self._compiled.forget_programs()

    def check_continues(self, progress: Progress) -> None:
        """Nothing, if `continue_from` may be called.

        Raises:
            ModelError: there is no training that is about to begin, or it has other batches, loss or metrics.
        """
        if self._progress is None or self._begun:
            raise nothing_to_continue()
        self._progress.check_continues(progress, self._begun_with)

    def continue_from(self, progress: Progress) -> None:
        """Go on with a training that was interrupted, instead of from the begin; asked for in `on_train_begin`.

        Raises:
            ModelError: see `check_continues`.
        """
        self.check_continues(progress)
        self._progress = progress

    @contextlib.contextmanager
    def _running(self, progress: Progress, zeros: Logs, examples: Examples, hooks: Hooks) -> Iterator[None]:
        """Keep account of a training, and tell the callbacks how it ended."""
        outer = self._run, self._progress, self._begun, self._begun_with
        thread, self._thread = self._thread, threading.current_thread()
        self._run, self._progress, self._begun, self._begun_with = (examples, hooks), progress, False, zeros
        try:
            yield
        except BaseException as error:
            hooks.on_train_exit(error)
            raise
        else:
            hooks.on_train_exit(None)
        finally:
            self._run, self._progress, self._begun, self._begun_with = outer
            self._thread = thread

    def _begin(self, start: Progress, zeros: Logs, hooks: Hooks) -> Progress:
        """Where the training begins: `start`, or where a callback has said."""
        self._begun = True
        progress = self._progress
        if progress is None or progress is start:
            return start
        accumulators = restored(progress.tallies, zeros) if progress.tallies else {}
        hooks.set_state(progress.callbacks)
        return dataclasses.replace(progress, tallies=accumulators)

    def evaluate(self, examples: Examples, hooks: Hooks) -> dict[str, float]:
        """Loss and metrics over the examples."""
        with interrupt_between_steps() as check_interrupt:
            return dict(self._evaluation(examples, hooks, 1)(check_interrupt))

    def predict(self, examples: Examples, hooks: Hooks, call: Callable[..., Any] | None = None) -> Any:
        """The outputs for the examples, in order, on the host.

        Args:
            examples: in batches.
            hooks: the callbacks.
            call: how the module is called; by default as ever.
        """
        step = self._predict_step
        if call is not None:
            if call not in self._predict_steps:
                self._predict_steps[call] = steps.make_predict_step(
                    dataclasses.replace(self._forward, call=call, compute_loss=None)
                )
            step = self._predict_steps[call]
        outputs: list[Any] = []
        self._compiled.forget_shapes("predict")
        should_stop = self._stopper("predict")
        feed, own = self._stream(examples), self._own_rows(examples.source)
        with interrupt_between_steps() as check_interrupt:
            hooks.begin("predict")
            run_steps(
                "predict",
                _only(feed.epochs(range(1))),
                functools.partial(self._predict_dispatch, step),
                hooks,
                check_interrupt,
                StepTimer(),
                as_logs=lambda rows, result: LazyOutputs(rows, result, own(rows)),
                collect=lambda rows, result: outputs.append(real_outputs(rows, result, own(rows))),
                should_stop=should_stop,
                in_flight=self._options.prefetch,
            )
            hooks.end("predict")
        self._compiled.forget_shapes("predict")
        return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)

    def train_batch(self, source: ArraySource) -> dict[str, float]:
        """One step on all rows of `source`; its logs."""
        self._check_targets(source)
        batch = self._whole(source)
        accumulators = self._accumulators_of_train(lambda: batch)
        with interrupt_between_steps():
            states = self._train_dispatch(accumulators)(Single(batch))[0]
        self._hold(accumulators, states)
        return dict(LazyLogs(states, accumulators))

    def test_batch(self, source: ArraySource) -> dict[str, float]:
        """Loss and metrics of all rows of `source` as one batch."""
        self._check_measurable(source)
        batch = self._whole(source)
        accumulators = self._accumulators_of_test(lambda: batch)
        states = self._test_dispatch(accumulators)(Single(batch))[0]
        self._hold(accumulators, states)
        return dict(LazyLogs(states, accumulators))

    def predict_batch(self, source: ArraySource) -> Any:
        """The outputs for all rows of `source` as one batch, on the host."""
        batch = self._whole(source)
        outputs = self._predict_dispatch(self._predict_step, Single(batch))[0]
        return real_outputs(batch.rows, outputs, self._own_rows(source)(batch.rows))

    def lower_train(self, source: ArraySource) -> Any:
        """The train program for all rows of `source` as one batch, lowered: `.compile()` tells what XLA made of it."""
        batch = self._whole(source)
        logs = zero_logs(self._accumulators_of_train(lambda: batch), self._cell.mesh)
        return self._compiled.lower_train(self._train_step, self._cell.arrays, logs, batch)

    def _use(self, recipe: Recipe) -> None:
        if recipe.objective is not None:
            self._test_step = steps.make_test_step(self._forward, recipe.objective)
        if recipe.train_step is not None:
            self._train_step = recipe.train_step
        elif recipe.objective is not None:
            self._train_step = steps.make_train_step(self._forward, recipe.objective, recipe.optimizers)

    def _check_targets(self, source: Source) -> None:
        if self._recipe is not None and self._recipe.train_step is None:
            self._cell.graph.check_trains()
            self._check_measurable(source)

    def _check_measurable(self, source: Source) -> None:
        objective = self._recipe.objective if self._recipe is not None else None
        if objective is not None and objective.needs_targets:
            source.check_targets()

    def _prepare(self, source: Source) -> int:
        """Check rules for activations and inputs, once; the number that batches are padded to a multiple of."""
        if not self._tensor_rules_checked:
            graph = self._cell.graph
            check_tensor_rules(graph.specs, graph.module_paths, source.x, self._distribution)
            self._tensor_rules_checked = True
        return rows_multiple(source.x, self._distribution)

    def _share(self, source: Source) -> Share | None:
        """What this process gathers of each batch; None where all devices of the mesh are its own."""
        if not self._distribution.device_mesh.backend_mesh.is_multi_process:
            return None
        return share_of(source.like, self._prepare(source), self._distribution)

    def _own_rows(self, source: Source) -> Callable[[int], np.ndarray | None]:
        """What tells which of the rows of a global batch this process gave, where the others gave others."""
        share = self._share(source)
        return lambda rows: share.owned(rows) if share is not None and share.is_own else None

    def _whole(self, source: ArraySource) -> Batch:
        """All rows as one batch; of several processes, on the devices."""
        return self._global(source.whole(self._prepare(source), self._share(source)))

    def _global(self, batch: Batch) -> Batch:
        """The global batch, of which several processes have each a portion."""
        return batch if batch.portion is None else placed(Single(batch), self._distribution).batch

    def _accumulators_of_train(self, some_batch: Callable[[], Batch]) -> dict[str, Accumulator]:
        """How to accumulate what the train step logs; a user's step is traced for it once."""
        if self._recipe is not None and self._recipe.train_step is None:
            return self._accumulators_of_test(some_batch)
        if self._train_accumulators is None:
            self._train_accumulators = self._compiled.train_accumulators(
                self._train_step, self._cell.state, some_batch()
            )
        return self._train_accumulators

    def _accumulators_of_test(self, some_batch: Callable[[], Batch]) -> dict[str, Accumulator]:
        """How to accumulate what the test step logs; it is traced once, which gives metrics their shapes."""
        if self._test_accumulators is None:
            self._test_accumulators = self._compiled.test_accumulators(self._test_step, self._cell.state, some_batch())
        return self._test_accumulators

    def _example(self, examples: Examples) -> Batch:
        return self._global(examples.example(self._prepare(examples.source), self._share(examples.source)))

    def _feed(
        self, mode: Mode, examples: Examples, hooks: Hooks, epochs: int, key: tuple[int, ...] | None = None
    ) -> StreamFeed | ResidentFeed:
        """How batches come to the steps, in an order that the key fixes."""
        self._compiled.forget_shapes(mode)
        stack = self._options.steps_per_execution
        if not self._options.jit or stack == 1 or (stack is None and hooks.sees_every_batch(mode)):
            return self._stream(examples, key=key)
        if isinstance(examples, Streaming):
            return self._stream(examples, stack or 1, key)
        source, batch_size = examples.source, examples.batch_size
        sizes = source.length, batch_size
        # programs that gather rows know how many there are: further lengths must be worth another compilation
        known = self._residents.setdefault(mode, {sizes})
        if sizes in known or (len(known) < MOST_LENGTHS and epochs * source.length >= WORTH_COMPILING * batch_size):
            known.add(sizes)
        is_worth = stack is not None or (isinstance(source, ArraySource) and is_earned(source, batch_size, epochs))
        if sizes in known and is_worth and fits_on_devices(source, self._distribution):
            tuner = self._paces[mode] if stack is None else FixedSteps(stack)
            return ResidentFeed(examples, self._prepare(source), self._distribution, tuner)
        return self._stream(examples, stack_of(source, batch_size, epochs) if stack is None else stack, key)

    def _stream(self, examples: Examples, stack: int = 1, key: tuple[int, ...] | None = None) -> StreamFeed:
        ahead, share = max(0, self._options.prefetch - MAX_IN_FLIGHT), self._share(examples.source)
        if share is not None:
            share.check_agreement(examples.sizes, key)
        return StreamFeed(examples, self._prepare(examples.source), self._distribution, stack, ahead, share)

    def _zeros(self, accumulators: dict[str, Accumulator]) -> Logs:
        """The states of the accumulators before the first batch; steps do not consume them, so one copy will do."""
        if id(accumulators) not in self._zero_logs:
            self._zero_logs[id(accumulators)] = zero_logs(accumulators, self._cell.mesh)
        return self._zero_logs[id(accumulators)]

    def _reset(self, accumulators: dict[str, Accumulator]) -> Logs:
        """The states of the accumulators at the begin of an epoch or evaluation: `reset_state` of users is called."""
        own = {
            name: accumulator
            for name, accumulator in accumulators.items()
            if getattr(accumulator, "has_own_start", False)
        }
        return {**self._zeros(accumulators), **zero_logs(own, self._cell.mesh)} if own else self._zeros(accumulators)

    def _stopper(self, mode: Mode) -> Callable[[], bool]:
        """What tells whether the run that begins now is to end after the current step."""
        self.stops.discard(mode)
        return lambda: mode in self.stops

    def _train_dispatch(
        self, accumulators: dict[str, Accumulator], expected: Expected = list, is_noted: bool = False
    ) -> Callable[[Execution], tuple[Logs, int]]:
        """What runs an execution, and compiles what is `expected` with it.

        `is_noted` if it is one of the training whose progress is noted.
        """
        progress = self._progress if is_noted else None
        is_resumed = progress is not None and bool(progress.tallies)
        logs = dict(progress.tallies) if progress is not None and is_resumed else self._reset(accumulators)
        shielded = shield()

        def dispatch(execution: Execution) -> tuple[Logs, int]:
            nonlocal logs, progress
            known = self._compiled.count
            with self._cell.lock:
                run = self._compiled.train(self._train_step, self._cell.arrays, logs, execution, expected)
                with shielded:  # the state is consumed: whatever happens, the cell must have the new one
                    self._cell.arrays, logs = run()
                    if progress is not None:
                        self._progress = progress = progress.after(execution.steps, execution.rows, logs)
            return logs, self._compiled.count - known

        return dispatch

    def _finalize(self) -> None:
        """Put what the optimizers end with in the place of the trained variables."""
        optimizers = self._recipe.optimizers if self._recipe is not None else {}
        if has_final_values(optimizers):
            program = jax.jit(
                lambda state: finalize(state, optimizers), out_shardings=self._cell.state_plan.shardings.trainable
            )
            with self._cell.lock:
                self._cell.state = self._cell.state.replace(trainable=program(self._cell.state))

    def _test_dispatch(
        self, accumulators: dict[str, Accumulator], expected: Expected = list
    ) -> Callable[[Execution], tuple[Logs, int]]:
        logs = self._reset(accumulators)

        def dispatch(execution: Execution) -> tuple[Logs, int]:
            nonlocal logs
            known = self._compiled.count
            with self._cell.lock:
                streams, logs = self._compiled.test(self._test_step, self._cell.arrays, logs, execution, expected)
                self._cell.put(streams)
            return logs, self._compiled.count - known

        return dispatch

    def _predict_dispatch(self, step: Any, execution: Execution) -> tuple[Any, int]:
        known = self._compiled.count
        with self._cell.lock:
            streams, outputs = self._compiled.predict(step, self._cell.arrays, execution)
            self._cell.put(streams)
        return outputs, self._compiled.count - known

    def _evaluation(self, examples: Examples, hooks: Hooks, epochs: int) -> Callable[[Callable[[], None]], LazyLogs]:
        """What evaluates these examples once an epoch: its data is put in place once."""
        self._check_measurable(examples.source)
        feed = self._feed("test", examples, hooks, epochs)
        accumulators = self._accumulators_of_test(lambda: self._example(examples))

        def evaluate(check_interrupt: Callable[[], None]) -> LazyLogs:
            should_stop = self._stopper("test")
            hooks.begin("test")
            states = run_steps(
                "test",
                _only(feed.epochs(range(1))),
                self._test_dispatch(accumulators, feed.expected),
                hooks,
                check_interrupt,
                StepTimer(feed.tuner),
                as_logs=functools.partial(self._watched, accumulators),
                should_stop=should_stop,
                in_flight=self._options.prefetch,
            )
            self._hold(accumulators, states)
            self._compiled.forget_shapes("test")
            logs = LazyLogs(states, accumulators)
            hooks.end("test", logs)
            return logs

        return evaluate

    def _watched(self, accumulators: dict[str, Accumulator], rows: int, states: Logs) -> LazyLogs:
        """What callbacks get to see between batches; the metric objects of the model tell the same."""
        del rows
        self._hold(accumulators, states)
        return LazyLogs(states, accumulators)

    def _hold(self, accumulators: Mapping[str, Accumulator], states: Logs) -> None:
        """Let the metric objects of the model tell what is in these states."""
        if self._recipe is not None:
            self._recipe.measures.hold(accumulators, states)


def _only(epochs: Iterator[tuple[int, Iterable[Execution]]]) -> Iterator[Execution]:
    """The executions of the only epoch, which is over when they are."""
    for _, executions in epochs:
        yield from executions
