"""`Trainer`: fit, evaluate and predict for one model, from sources of batches to logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from keras_dist.data.arrays import ArraySource, Batch
from keras_dist.distribution.strategy import Distribution
from keras_dist.training import step as steps
from keras_dist.training.activations import check_tensor_rules
from keras_dist.training.cell import StateCell
from keras_dist.training.compiled import CompiledSteps, Logs, rows_multiple, zero_logs
from keras_dist.training.interrupt import interrupt_between_steps
from keras_dist.training.logs import LazyLogs
from keras_dist.training.loop import Hooks, run_steps
from keras_dist.training.objective import Objective
from keras_dist.training.optimization import Optimizer, finalize, has_final_values
from keras_dist.training.step import Forward, TrainStep
from keras_dist.training.tallies import Tally


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """How a model is trained: what `compile` was given, resolved.

    Attributes:
        objective: loss and metrics; None when the train step needs none.
        optimizers: by name.
        train_step: the user's own step, or None for gradient descent on the loss.
    """

    objective: Objective | None
    optimizers: dict[str, Optimizer]
    train_step: TrainStep | None


class Trainer:
    """The compiled steps of one model on one distribution, and the loop over them.

    Args:
        cell: owns the arrays.
        forward: calls the module.
        distribution: where data lives.
        recipe: None while the model is not compiled: only prediction works then.
    """

    def __init__(self, cell: StateCell, forward: Forward, distribution: Distribution, recipe: Recipe | None) -> None:
        self._cell = cell
        self._forward = forward
        self._distribution = distribution
        self._compiled = CompiledSteps(cell.state_plan, forward, distribution)
        self._predict_step = steps.make_predict_step(forward)
        self._train_tallies: dict[str, Tally] | None = None
        self._test_tallies: dict[str, Tally] | None = None
        self._tensor_rules_checked = False
        self._train_step: Any = None
        self._test_step: Any = None
        self._recipe = recipe
        if recipe is not None:
            self._use(recipe)

    def fit(
        self,
        source: ArraySource,
        batch_size: int,
        epochs: range,
        shuffle_key: tuple[int, ...] | None,
        validation: tuple[ArraySource, int] | None,
        hooks: Hooks,
        should_stop: Callable[[], bool],
    ) -> None:
        """Train for the epochs.

        Args:
            source: the examples.
            batch_size: rows of one step.
            epochs: their numbers.
            shuffle_key: with the epoch's number fixes the order of its rows; None for their own order.
            validation: examples and batch size for the evaluation after each epoch.
            hooks: the callbacks.
            should_stop: asked after each step; ends the epoch and the training.
        """
        self._check_targets(source)
        multiple = self._prepare(source)
        tallies = self._tallies_of_train(source.batches(batch_size, multiple))
        logs: Mapping[str, float] = {}
        with interrupt_between_steps() as check_interrupt:
            hooks.begin("train")
            for epoch in epochs:
                hooks.on_epoch_begin(epoch)
                key = None if shuffle_key is None else (*shuffle_key, epoch)
                batches = source.batches(batch_size, multiple, key)
                states = run_steps(
                    "train",
                    batches,
                    self._train_dispatch(tallies),
                    hooks,
                    check_interrupt,
                    as_logs=lambda states: LazyLogs(states, tallies),
                    should_stop=should_stop,
                )
                known: dict[str, float] = {}
                if validation is not None:
                    found = self._evaluate(*validation, hooks, check_interrupt)
                    known = {f"val_{name}": value for name, value in found.items()}
                logs = LazyLogs(states, tallies, known)
                hooks.on_epoch_end(epoch, logs)
                if should_stop():
                    break
            self._finalize()
            hooks.end("train", logs)

    def evaluate(self, source: ArraySource, batch_size: int, hooks: Hooks) -> dict[str, float]:
        """Loss and metrics over the examples."""
        with interrupt_between_steps() as check_interrupt:
            return dict(self._evaluate(source, batch_size, hooks, check_interrupt))

    def predict(self, source: ArraySource, batch_size: int, hooks: Hooks) -> Any:
        """The outputs for the examples, in order, on the host."""
        multiple = self._prepare(source)
        outputs: list[Any] = []
        with interrupt_between_steps() as check_interrupt:
            hooks.begin("predict")
            run_steps(
                "predict",
                source.batches(batch_size, multiple),
                self._predict,
                hooks,
                check_interrupt,
                collect=lambda batch, result: outputs.append(_real_outputs(batch, result)),
            )
            hooks.end("predict")
        return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)

    def train_batch(self, source: ArraySource) -> dict[str, float]:
        """One step on all rows of `source`; its logs."""
        self._check_targets(source)
        batch = source.whole(self._prepare(source))
        tallies = self._tallies_of_train(iter([batch]))
        with interrupt_between_steps():
            return dict(LazyLogs(self._train_dispatch(tallies)(batch), tallies))

    def test_batch(self, source: ArraySource) -> dict[str, float]:
        """Loss and metrics of all rows of `source` as one batch."""
        self._check_measurable(source)
        batch = source.whole(self._prepare(source))
        tallies = self._tallies_of_test(iter([batch]))
        return dict(LazyLogs(self._test_dispatch(tallies)(batch), tallies))

    def predict_batch(self, source: ArraySource) -> Any:
        """The outputs for all rows of `source` as one batch, on the host."""
        batch = source.whole(self._prepare(source))
        return _real_outputs(batch, self._predict(batch))

    def lower_train(self, source: ArraySource) -> Any:
        """The train program for all rows of `source` as one batch, lowered: `.compile()` tells what XLA made of it."""
        batch = source.whole(self._prepare(source))
        logs = zero_logs(self._tallies_of_train(iter([batch])), self._cell.mesh)
        return self._compiled.lower_train(self._train_step, self._cell.state, logs, batch)

    def _use(self, recipe: Recipe) -> None:
        if recipe.objective is not None:
            self._test_step = steps.make_test_step(self._forward, recipe.objective)
        if recipe.train_step is not None:
            self._train_step = recipe.train_step
        elif recipe.objective is not None:
            self._train_step = steps.make_train_step(self._forward, recipe.objective, recipe.optimizers)

    def _check_targets(self, source: ArraySource) -> None:
        if self._recipe is not None and self._recipe.train_step is None:
            self._check_measurable(source)

    def _check_measurable(self, source: ArraySource) -> None:
        objective = self._recipe.objective if self._recipe is not None else None
        if objective is not None and objective.needs_targets:
            source.check_targets()

    def _prepare(self, source: ArraySource) -> int:
        """Check rules for activations and inputs, once; the number that batches are padded to a multiple of."""
        if not self._tensor_rules_checked:
            graph = self._cell.graph
            check_tensor_rules(graph.specs, graph.module_paths, source.x, self._distribution)
            self._tensor_rules_checked = True
        return rows_multiple(source.x, self._distribution)

    def _tallies_of_train(self, batches: Iterator[Batch]) -> dict[str, Tally]:
        """How to accumulate what the train step logs; a user's step is traced for it once."""
        if self._recipe is not None and self._recipe.train_step is None:
            return self._tallies_of_test(batches)
        if self._train_tallies is None:
            self._train_tallies = self._compiled.train_tallies(self._train_step, self._cell.state, next(batches))
        return self._train_tallies

    def _tallies_of_test(self, batches: Iterator[Batch]) -> dict[str, Tally]:
        """How to accumulate what the test step logs; it is traced once, which gives metrics their shapes."""
        if self._test_tallies is None:
            self._test_tallies = self._compiled.test_tallies(self._test_step, self._cell.state, next(batches))
        return self._test_tallies

    def _train_dispatch(self, tallies: dict[str, Tally]) -> Callable[[Batch], Logs]:
        logs = zero_logs(tallies, self._cell.mesh)

        def dispatch(batch: Batch) -> Logs:
            nonlocal logs
            # the state is consumed: whatever happens next, the cell must have the new one
            with self._cell.lock:
                self._cell.state, logs = self._compiled.train(self._train_step, self._cell.state, logs, batch)
            return logs

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

    def _test_dispatch(self, tallies: dict[str, Tally]) -> Callable[[Batch], Logs]:
        logs = zero_logs(tallies, self._cell.mesh)

        def dispatch(batch: Batch) -> Logs:
            nonlocal logs
            with self._cell.lock:
                logs = self._compiled.test(self._test_step, self._cell.state, logs, batch)
            return logs

        return dispatch

    def _predict(self, batch: Batch) -> Any:
        with self._cell.lock:
            return self._compiled.predict(self._predict_step, self._cell.state, batch)

    def _evaluate(
        self, source: ArraySource, batch_size: int, hooks: Hooks, check_interrupt: Callable[[], None]
    ) -> LazyLogs:
        self._check_measurable(source)
        multiple = self._prepare(source)
        tallies = self._tallies_of_test(source.batches(batch_size, multiple))
        hooks.begin("test")
        states = run_steps(
            "test",
            source.batches(batch_size, multiple),
            self._test_dispatch(tallies),
            hooks,
            check_interrupt,
            as_logs=lambda states: LazyLogs(states, tallies),
        )
        logs = LazyLogs(states, tallies)
        hooks.end("test", logs)
        return logs


def _real_outputs(batch: Batch, outputs: Any) -> Any:
    return jax.tree.map(lambda output: np.asarray(output)[: batch.rows].copy(), outputs)
