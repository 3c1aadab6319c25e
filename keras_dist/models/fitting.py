"""`Fitting`: compile, fit, evaluate and predict of a model. It delegates to the rooms below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from keras_dist import optimizers, random
from keras_dist.callbacks import Callback, CallbackList, History, ProgbarLogger
from keras_dist.data.arrays import ArraySource, check_batch_size
from keras_dist.errors import ModelError
from keras_dist.metrics import Metric
from keras_dist.models.arguments import check_callable, check_option, epoch_range, validation_source
from keras_dist.models.optimizer_handle import OptimizerHandle
from keras_dist.models.session import Choices, Session
from keras_dist.training.objective import resolve_objective
from keras_dist.training.step import TrainStep


class Fitting:
    """Compile, fit, evaluate and predict. Subclasses say when the weights are born."""

    output_names: list[str] | None
    _may_add_losses: bool

    def _born(self, x: Any = None) -> Session:
        """The session of the model; its weights are born now, if need be, for inputs like `x`."""
        raise NotImplementedError

    def _choose(self, choices: Choices) -> None:
        """Train as `compile` says."""
        raise NotImplementedError

    def _compiled(self, method: str, x: Any = None) -> Session:
        """The session of the model, which is compiled.

        Raises:
            ModelError: it is not.
        """
        raise NotImplementedError

    def _check_idle(self, method: str) -> None:
        """Nothing, while no one trains."""
        raise NotImplementedError

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
                None where `compute_loss`, layers or regularizers say what is minimised.
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
        if isinstance(optimizer, OptimizerHandle):
            optimizer = optimizer.transformation
        arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "train_step": train_step,
        }
        for name in ("test_step", "predict_step", "compute_metrics", "make_train_function"):
            if hasattr(type(self), name):
                raise ModelError(
                    f"{type(self).__name__}.{name} would not be called",
                    given=f"a model that defines {name}",
                    expected="compute_loss, or a pure train_step(state, batch, rngs)",
                    fix="see Model.compute_loss and Model.stateless_call; metrics are arguments of compile",
                )
        train_step = train_step or getattr(self, "train_step", None)
        if loss is None and train_step is None and not self._may_add_losses:
            raise ModelError(
                "compile: `loss` is missing",
                given="loss=None, train_step=None",
                expected="a loss, or a train_step of your own",
                fix='for example model.compile("adam", loss="mse")',
            )
        if train_step is not None:
            check_callable("train_step", train_step, "state, batch, rngs")
        objective = None
        if loss is not None or train_step is None:
            objective = resolve_objective(loss, loss_weights, metrics, weighted_metrics, self.output_names)
        if not isinstance(optimizer, Mapping):
            optimizer = optimizers.get(optimizer)
        self._choose(Choices(optimizer, objective, train_step, arguments))

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that `compile` chose; their state is in the compiled steps.

        Raises:
            ModelError: the model is not compiled.
        """
        objective = self._compiled("metrics").compiled("metrics").objective
        return [] if objective is None else jax.tree.leaves([objective.metrics, objective.weighted_metrics])

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
        session = self._compiled("fit", x)
        session.check_current_distribution("fit")
        batch_size, epoch_numbers = check_batch_size(batch_size), epoch_range(initial_epoch, epochs)
        source = ArraySource(x, y, sample_weight)
        validation = None
        if validation_data is not None:
            session.objective("fit(validation_data=...)")
            validation_size = batch_size if validation_batch_size is None else validation_batch_size
            validation = (
                validation_source(validation_data),
                check_batch_size(validation_size, "validation_batch_size"),
            )
        if seed is None:
            shuffle_key = (session.seed, session.fits)
            session.fits += 1
        else:
            shuffle_key = (random.check_seed(seed),)
        check_option("shuffle", shuffle, (False, True))
        history = History()
        hooks = self._hooks(callbacks, verbose, source, batch_size, epochs, history)
        with session.cell.training():
            session.stop_training = False
            session.trainer.fit(
                source,
                batch_size,
                epoch_numbers,
                shuffle_key if shuffle else None,
                validation,
                hooks,
                lambda: session.stop_training,
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
        session = self._compiled("evaluate", x)
        session.objective("evaluate")
        source, batch_size = ArraySource(x, y, sample_weight), check_batch_size(batch_size)
        hooks = self._hooks(callbacks, verbose, source, batch_size)
        return _keras_result(session.trainer.evaluate(source, batch_size, hooks), return_dict)

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
        session = self._born(x)
        source, batch_size = ArraySource(x), check_batch_size(batch_size)
        return session.trainer.predict(source, batch_size, self._hooks(callbacks, verbose, source, batch_size))

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
        session = self._compiled("train_on_batch", x)
        session.check_current_distribution("train_on_batch")
        with session.cell.training():
            return _keras_result(session.trainer.train_batch(ArraySource(x, y, sample_weight)), return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Loss and metrics of these rows; see `evaluate`."""
        session = self._compiled("test_on_batch", x)
        session.objective("test_on_batch")
        return _keras_result(session.trainer.test_batch(ArraySource(x, y, sample_weight)), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs for these rows, run as one batch; see `predict`."""
        return self._born(x).trainer.predict_batch(ArraySource(x))

    def lower_train_step(self, x: Any, y: Any = None, sample_weight: Any = None) -> jax.stages.Lowered:
        """The train step for these rows, lowered and not run: `.compile()` tells its memory and collectives.

        Raises:
            ModelError: the model is not compiled.
        """
        return self._compiled("lower_train_step", x).trainer.lower_train(ArraySource(x, y, sample_weight))

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


def _keras_result(values: dict[str, float], return_dict: bool) -> Any:
    if return_dict:
        return values
    return next(iter(values.values())) if len(values) == 1 else list(values.values())
