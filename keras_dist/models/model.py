"""`Model`: compile, fit, evaluate, predict. It delegates to the rooms below."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
from flax import nnx
from rich.console import Console

from keras_dist import random
from keras_dist.callbacks import Callback, CallbackList, History, ProgbarLogger
from keras_dist.data.arrays import ArraySource, check_batch_size
from keras_dist.distribution import devices, scope
from keras_dist.distribution.data_parallel import DataParallel
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.render import TABLE_WIDTH, render_text
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import DistributionError, ModelError, shorten
from keras_dist.models.arguments import check_callable, check_option, epoch_range, validation_source
from keras_dist.models.optimizer_handle import OptimizerHandle
from keras_dist.models.summary import summary_table
from keras_dist.models.variable import ModelVariable, checked_value
from keras_dist.training.cell import StateCell
from keras_dist.training.graph import split_module, trace_factory
from keras_dist.training.objective import resolve_objective
from keras_dist.training.optimization import apply_gradients, resolve_optimizers
from keras_dist.training.state import TrainState
from keras_dist.training.step import Forward, TrainStep, default_call
from keras_dist.training.trainer import Recipe, Trainer


class Model:
    """A model that lives on the mesh of the distribution it was built under. Made by `Model.from_nnx`.

    Attributes:
        stop_training: set it in a callback to end `fit` after the current step.

    Source: `keras.Model`.
    """

    stop_training: bool
    _seed: int
    _call: Callable[[Any, Any, bool, nnx.Rngs], Any]
    _fits: int
    _cell: StateCell
    _recipe: Recipe | None
    _distribution: Distribution
    _trainer: Trainer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ModelError(
            "Model cannot be called directly",
            given=f"Model(*{args!r:.60}, **{list(kwargs)})",
            expected="a flax.nnx module",
            fix="kd.Model.from_nnx(lambda rngs: MyNet(rngs=rngs))",
        )

    @classmethod
    def from_nnx(
        cls,
        factory_or_module: Any,
        call: Callable[[Any, Any, bool, nnx.Rngs], Any] | None = None,
        *,
        trainable: Any = None,
        seed: int | None = None,
    ) -> Model:
        """A model made of any `flax.nnx.Module`, on the current distribution; without any, on the first device.

        Args:
            factory_or_module: `factory(rngs=rngs)` that makes the module: its arrays are born sharded, never whole on
                one device. Or a ready module: its arrays are copied, the module is never changed.
            call: `call(module, x, training, rngs) -> y_pred` for modules that are not called as `module(x)`; by default
                `module.train()` or `module.eval()`, then `module(x)`.
            trainable: which variables are trained: an NNX filter, or a regular expression for whole paths of
                parameters; by default every `nnx.Param`.
            seed: fixes initial values and Dropout; by default that of `kd.set_random_seed`, else a fresh one.

        Raises:
            ModelError: the factory does not make an NNX module, or `trainable` selects nothing.
            LayoutError: the layout rules cannot be applied to it.

        Example:
            >>> import keras_dist as kd
            >>> from flax import nnx
            >>> model = kd.Model.from_nnx(lambda rngs: nnx.Linear(8, 2, rngs=rngs), seed=0)
            >>> [variable.path for variable in model.variables]
            ['bias', 'kernel']
        """
        if call is not None:
            check_callable("call", call, "module, x, training, rngs")
        self = cls.__new__(cls)
        self.stop_training = False
        self._seed = random.current_seed() if seed is None else random.check_seed(seed)
        self._call = call or default_call
        self._fits = 0
        self._recipe = None
        distribution = (scope.distribution() or DataParallel(devices=devices.list_devices()[:1])).snapshot()
        if isinstance(factory_or_module, nnx.Module):
            graph, state = split_module(factory_or_module, trainable)
            plan = distribution.plan_variables(graph.specs, graph.treedef)
            self._cell = StateCell(graph, plan, plan.place(state))
        elif callable(factory_or_module):
            graph, init = trace_factory(factory_or_module, self._seed, trainable)
            plan = distribution.plan_variables(graph.specs, graph.treedef)
            self._cell = StateCell(graph, plan, plan.init(init))
        else:
            raise ModelError(
                "from_nnx: neither a module nor a factory",
                given=f"{shorten(factory_or_module)} of type {type(factory_or_module).__name__}",
                expected="a flax.nnx.Module, or a callable factory(rngs=rngs) that returns one",
                fix="Model.from_nnx(lambda rngs: MyNet(rngs=rngs))",
            )
        self._settle(distribution)
        return self

    @property
    def distribution(self) -> Distribution:
        """The distribution the model was built under, or was moved to, as it was then."""
        return self._distribution

    @property
    def layout_plan(self) -> LayoutPlan:
        """Where every variable lives; print it for the table."""
        return self._cell.plan

    @property
    def state_plan(self) -> LayoutPlan:
        """Where everything in the training state lives: variables, optimizer slots, the step."""
        return self._cell.state_plan

    @property
    def state(self) -> TrainState:
        """A copy of the training state, which later training does not change or delete."""
        return self._cell.copy_of_state()

    @property
    def variables(self) -> list[ModelVariable]:
        """Handles on all variables."""
        return [ModelVariable(row, self._cell) for row in self._cell.plan.rows]

    @property
    def trainable_variables(self) -> list[ModelVariable]:
        """Handles on the trained variables."""
        return [variable for variable in self.variables if variable.trainable]

    @property
    def module(self) -> Any:
        """The NNX module with copies of the current values. Assign a module to set them, from the next step on."""
        return self._cell.module()

    @module.setter
    def module(self, module: Any) -> None:
        if not isinstance(module, nnx.Module):
            raise ModelError(
                "`model.module` is not a flax.nnx.Module",
                given=f"{shorten(module)} of type {type(module).__name__}",
                expected="a module with the variables of this model",
                fix="change the one that `model.module` gives, and assign it",
            )
        values = zip(self._cell.graph.flatten(*self.split(module)), self._cell.plan.rows, strict=True)
        self._cell.write_all({index: checked_value(value, row) for index, (value, row) in enumerate(values)})

    @property
    def optimizers(self) -> dict[str, OptimizerHandle]:
        """Handles on the optimizers by name, for their learning rates."""
        return {name: OptimizerHandle(name, self._cell) for name in self._compiled("optimizers").optimizers}

    @property
    def optimizer(self) -> OptimizerHandle:
        """The handle on the only optimizer.

        Raises:
            ModelError: the model is not compiled, or has several optimizers.
        """
        handles = self.optimizers
        if len(handles) != 1:
            raise ModelError(
                "the model has several optimizers",
                given=f"optimizers {list(handles)}",
                expected="one optimizer",
                fix=f"model.optimizers[{next(iter(handles))!r}]",
            )
        return next(iter(handles.values()))

    def summary(self, print_fn: Callable[[str], Any] | None = None) -> None:
        """Print every variable with its layout and bytes per device, and the totals.

        Args:
            print_fn: called with the text instead of printing it.
        """
        table = summary_table(self._cell.plan, self._cell.state_plan)
        if print_fn is None:
            terminal = Console()
            (terminal if terminal.is_terminal else Console(width=TABLE_WIDTH)).print(table)
        else:
            print_fn(render_text(table))

    def merge(self, trainable: Any, rest: Any) -> Any:
        """The NNX module with values shaped as `state.trainable` and `state.rest`, for use in a `train_step`."""
        return self._cell.graph.merge(trainable, rest)

    def split(self, module: Any) -> tuple[Any, Any]:
        """`(trainable, rest)` with the values in a module that `merge` made."""
        return self._cell.graph.split(module)

    def apply_gradients(self, state: TrainState, grads: Any, optimizer: str | None = None) -> TrainState:
        """`state` after one update, for use in a `train_step`.

        Args:
            state: values and slots before.
            grads: gradients shaped as `state.trainable`, or as the part of it that the optimizer updates.
            optimizer: the name of one optimizer; by default all are applied.

        Raises:
            ModelError: there is no such optimizer, or gradients are missing.
        """
        return apply_gradients(state, self._compiled("apply_gradients").optimizers, grads, optimizer)

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        *,
        train_step: TrainStep | None = None,
    ) -> None:
        """Choose how the model is trained. Optimizer slots are born here, sharded as their parameters.

        Args:
            optimizer: a name (`"sgd" "adam" "adamw" "rmsprop"`), any optax transformation, or a dict of these by name:
                each then updates the variables below the attribute of its name, or, as `(optimizer, rule)`, those
                whose whole path the regular expression matches.
            loss: a name (`"mse"`, `"sparse_categorical_crossentropy"`), a `Loss`, or a callable `(y_true, y_pred)` that
                returns a value for each example, or a scalar. As in Keras, targets (batch,) become (batch, 1) for such
                predictions. For several outputs a list or dict by output of these, with None for outputs without a
                loss, or one for all. A callable gets targets and outputs whole where they are shaped differently.
            loss_weights: factors of the losses in their sum, a list or dict by output.
            metrics: names (`"accuracy"`, `"mse"`), `Metric`s, or callables `(y_true, y_pred)` that return values for
                each example; a list of them, or one. For several outputs a list of lists, or a dict by output. All
                examples count alike.
            weighted_metrics: likewise, but examples count by their `sample_weight`.
            train_step: a pure function `(state, batch, rngs) -> (state, logs)` in place of gradient descent on the
                loss; `batch` is `(x, y, sample_weight)`, `logs` a dict of scalars. See `merge`, `split` and
                `apply_gradients`; draw random numbers from `rngs` outside of `jax.grad`.

        Raises:
            UnknownNameError: a name is not known.
            ModelError: neither `loss` nor `train_step` is given, an argument cannot be used, or fit is running.
        """
        self._check_idle("compile")
        if loss is None and train_step is None:
            raise ModelError(
                "compile: `loss` is missing",
                given="loss=None, train_step=None",
                expected="a loss, or a train_step of your own",
                fix='for example model.compile("adam", loss="mse")',
            )
        if train_step is not None:
            check_callable("train_step", train_step, "state, batch, rngs")
        objective = None if loss is None else resolve_objective(loss, loss_weights, metrics, weighted_metrics)
        optimizers = resolve_optimizers(optimizer, self._cell.state.trainable)
        self._cell.add_slots(optimizers)
        self._recipe = Recipe(objective, optimizers, train_step)
        self._settle(self._distribution)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Iterable[Callback] | Callback | None = None,
        *,
        validation_data: tuple[Any, ...] | None = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        validation_batch_size: int | None = None,
        seed: int | None = None,
    ) -> History:
        """Train on the examples in `x` and `y`.

        Args:
            x: inputs: an array (examples, ...) or a pytree of them.
            y: targets, likewise.
            batch_size: rows of one step on all devices together; 32 by default. The last batch may be shorter.
            epochs: the epoch to stop at.
            verbose: 0 for silence, 1 or "auto" for a progress bar.
            callbacks: called in order; see `keras_dist.callbacks.Callback`.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, evaluated after every epoch.
            shuffle: whether each epoch sees the rows in another order.
            sample_weight: a weight for each example.
            initial_epoch: the epoch to start at.
            validation_batch_size: by default `batch_size`.
            seed: fixes the order of rows, and nothing else; by default it follows from the model's seed.

        Returns:
            A `History` with the loss and metrics of each epoch.

        Raises:
            ModelError: the model is not compiled.
            DistributionError: the current distribution is another than the model's.
            DataError: the data cannot be batched.
        """
        recipe = self._compiled("fit")
        self._check_current_distribution("fit")
        batch_size, epoch_numbers = check_batch_size(batch_size), epoch_range(initial_epoch, epochs)
        source = ArraySource(x, y, sample_weight)
        validation = None
        if validation_data is not None:
            self._objective("fit(validation_data=...)", recipe)
            validation_size = batch_size if validation_batch_size is None else validation_batch_size
            validation = (
                validation_source(validation_data),
                check_batch_size(validation_size, "validation_batch_size"),
            )
        if seed is None:
            shuffle_key = (self._seed, self._fits)
            self._fits += 1
        else:
            shuffle_key = (random.check_seed(seed),)
        check_option("shuffle", shuffle, (False, True))
        history = History()
        hooks = self._hooks(callbacks, verbose, source, batch_size, epochs, history)
        with self._cell.training():
            self.stop_training = False
            self._trainer.fit(
                source,
                batch_size,
                epoch_numbers,
                shuffle_key if shuffle else None,
                validation,
                hooks,
                lambda: self.stop_training,
            )
        return history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        callbacks: Iterable[Callback] | Callback | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Loss and metrics over the examples.

        Args:
            x: inputs: an array (examples, ...) or a pytree of them.
            y: targets, likewise.
            batch_size: rows of one step; 32 by default.
            verbose: 0 for silence, 1 or "auto" for a progress bar.
            sample_weight: a weight for each example.
            callbacks: called in order.
            return_dict: whether to return a dict by name.

        Returns:
            The loss; with metrics the list `[loss, *metrics]`; with `return_dict` a dict.

        Raises:
            ModelError: the model is not compiled with a loss.
            DataError: the data cannot be batched.
        """
        self._objective("evaluate", self._compiled("evaluate"))
        source, batch_size = ArraySource(x, y, sample_weight), check_batch_size(batch_size)
        hooks = self._hooks(callbacks, verbose, source, batch_size)
        return _keras_result(self._trainer.evaluate(source, batch_size, hooks), return_dict)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        callbacks: Iterable[Callback] | Callback | None = None,
    ) -> Any:
        """The outputs for every example, in order, as numpy arrays.

        Args:
            x: inputs: an array (examples, ...) or a pytree of them.
            batch_size: rows of one step; 32 by default.
            verbose: 0 for silence, 1 or "auto" for a progress bar.
            callbacks: called in order.

        Raises:
            ModelError: an output has no row for each example.
            DataError: the data cannot be batched.
        """
        source, batch_size = ArraySource(x), check_batch_size(batch_size)
        return self._trainer.predict(source, batch_size, self._hooks(callbacks, verbose, source, batch_size))

    def train_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """One step of training on these rows.

        Returns:
            The loss of this batch before the step; with metrics the list `[loss, *metrics]`; or a dict.

        Raises:
            ModelError: the model is not compiled.
            DistributionError: the current distribution is another than the model's.
            DataError: the rows cannot be batched.

        Differs from Keras: the values are those of this batch, not means since the last `reset_metrics`.
        """
        self._compiled("train_on_batch")
        self._check_current_distribution("train_on_batch")
        with self._cell.training():
            return _keras_result(self._trainer.train_batch(ArraySource(x, y, sample_weight)), return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Loss and metrics of these rows; see `evaluate`."""
        self._objective("test_on_batch", self._compiled("test_on_batch"))
        return _keras_result(self._trainer.test_batch(ArraySource(x, y, sample_weight)), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs for these rows, run as one batch; see `predict`."""
        return self._trainer.predict_batch(ArraySource(x))

    def lower_train_step(self, x: Any, y: Any = None, sample_weight: Any = None) -> jax.stages.Lowered:
        """The train step for these rows, lowered and not run: `.compile()` tells its memory and collectives.

        Raises:
            ModelError: the model is not compiled.
        """
        self._compiled("lower_train_step")
        return self._trainer.lower_train(ArraySource(x, y, sample_weight))

    def redistribute(self, distribution: Distribution) -> None:
        """Move the model, with everything it has learned, to another distribution.

        Raises:
            DistributionError: `distribution` is not a distribution.
            LayoutError: its rules cannot be applied; the model stays where it was.
            ModelError: fit is running.
        """
        self._check_idle("redistribute")
        if not isinstance(distribution, Distribution):
            raise DistributionError(
                "redistribute: `distribution` is not a Distribution",
                given=f"{distribution!r} of type {type(distribution).__name__}",
                expected="a DataParallel, ModelParallel, FullySharded or your own Distribution",
                fix="for example model.redistribute(DataParallel())",
            )
        distribution = distribution.snapshot()
        self._cell.move(distribution, self._recipe.optimizers if self._recipe is not None else {})
        self._settle(distribution)

    def _settle(self, distribution: Distribution) -> None:
        """Make the steps anew, for this distribution and what `compile` was given last."""
        self._distribution = distribution
        forward = Forward(self._cell.graph, self._call, distribution, self._seed)
        self._trainer = Trainer(self._cell, forward, distribution, self._recipe)

    def _compiled(self, method: str) -> Recipe:
        if self._recipe is None:
            raise ModelError(
                f"You must call `compile()` before using the model: {method} needs it",
                given="a model that is not compiled",
                expected="an optimizer and a loss",
                fix='for example model.compile("adam", loss="mse")',
            )
        return self._recipe

    @staticmethod
    def _objective(method: str, recipe: Recipe) -> None:
        if recipe.objective is None:
            raise ModelError(
                f"{method} needs a loss",
                given="compile(train_step=...) without a loss",
                expected="a loss beside the train_step",
                fix='for example model.compile(optimizer, loss="mse", train_step=train_step)',
            )

    def _check_idle(self, method: str) -> None:
        if self._cell.is_training:
            raise ModelError(
                f"{method}: fit is running",
                given=f"{method} in a callback, or in another thread, while the model trains",
                expected="a model that is not training",
                fix=f"end the training with model.stop_training = True, and call {method} after it",
            )

    def _check_current_distribution(self, method: str) -> None:
        current = scope.distribution()
        if current is None:
            return
        if current != self._distribution:
            raise DistributionError(
                f"{method}: the current distribution is not the one this model was built under",
                given=f"current {_describe(current)}",
                expected=_describe(self._distribution),
                fix="model.redistribute(keras_dist.distribution.distribution()) moves the model; "
                "set_distribution(None) or model.distribution.scope() leaves it where it is",
            )

    def _hooks(
        self,
        callbacks: Iterable[Callback] | Callback | None,
        verbose: Any,
        source: ArraySource,
        batch_size: int,
        epochs: int = 1,
        *own: Callback,
    ) -> CallbackList:
        check_option("verbose", verbose, (0, 1, 2, "auto"))
        if callbacks is not None and not isinstance(callbacks, Iterable):
            callbacks = [callbacks]  # one callback; what is none `CallbackList` refuses
        given = [] if callbacks is None else list(callbacks)
        bar = [ProgbarLogger()] if verbose else []
        params = {"epochs": epochs, "steps": -(-source.length // batch_size), "verbose": verbose}
        return CallbackList([*bar, *given, *own], self, params)


def _describe(distribution: Distribution) -> str:
    rules = distribution.layout_map
    return f"{distribution}" if rules is None else f"{distribution} with rules {rules}"


def _keras_result(values: dict[str, float], return_dict: bool) -> Any:
    if return_dict:
        return values
    return next(iter(values.values())) if len(values) == 1 else list(values.values())
