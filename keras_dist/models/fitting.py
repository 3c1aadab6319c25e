"""`Fitting`: compile, fit, evaluate and predict of a model. It delegates to the rooms below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import jax

from keras_dist import optimizers, random
from keras_dist._arguments import check_callable, check_option
from keras_dist.callbacks import Callback, CallbackList, History
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batching import Batching, Streaming
from keras_dist.data.recognition import source_of
from keras_dist.data.streams import StreamSource
from keras_dist.errors import ModelError
from keras_dist.metrics import Metric
from keras_dist.mixed_precision import DTypePolicy, with_loss_scale
from keras_dist.models.arguments import (
    batching,
    epoch_range,
    step_options,
    training_sources,
    validation,
    weighted_arrays,
)
from keras_dist.models.functional import Graph
from keras_dist.models.record import ModelRecord
from keras_dist.models.session import Choices, ModuleCall, Session
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.loop import Mode
from keras_dist.training.objective import resolve_objective
from keras_dist.training.optimization import DEFAULT, as_optimizer
from keras_dist.training.outputs import Outputs
from keras_dist.training.rematerialisation import resolve_remat
from keras_dist.training.step import TrainStep


def _stop_flag(mode: Mode, method: str) -> Any:
    """An attribute that tells whether the running `method` ends after the current step."""

    def get(self: Any) -> bool:
        return self._session is not None and mode in self._session.trainer.stops

    def put(self: Any, value: Any) -> None:
        if self._session is not None:
            stops = self._session.trainer.stops
            (stops.add if value else stops.discard)(mode)

    return property(get, put, doc=f"Whether `{method}` ends after the current step. Callbacks set it for this run.")


class Fitting:
    """Compile, fit, evaluate and predict. Subclasses say when the weights are born."""

    output: Any
    output_names: list[str] | None
    _graph: Graph | None
    _session: Session | None
    _choices: Choices | None
    _outside: ModelRecord
    _may_add_losses: bool
    dtype_policy: DTypePolicy

    stop_training = _stop_flag("train", "fit")
    stop_evaluating = _stop_flag("test", "evaluate")
    stop_predicting = _stop_flag("predict", "predict")

    def _born(self, x: Any = None) -> Session:
        """The session of the model; its weights are born now, if need be, for inputs like `x`."""
        raise NotImplementedError

    def _choose(self, choices: Choices) -> None:
        """Train as `compile` says."""
        raise NotImplementedError

    def _check_compiled(self, method: str) -> None:
        """Check that the model is compiled.

        Raises:
            ModelError: it is not.
        """
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
        run_eagerly: bool = False,
        steps_per_execution: int | Literal["auto"] = "auto",
        jit_compile: bool | Literal["auto"] = "auto",
        auto_scale_loss: bool = True,
        *,
        train_step: TrainStep | None = None,
        donate: bool = True,
        check: bool = False,
        prefetch: int = 2,
        remat: str | None = None,
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
            run_eagerly: whether steps run operation by operation, so that a debugger and `print` see every value.
            steps_per_execution: how many steps of fit and evaluate are one program on the devices; callbacks are
                called between these. By default so many as take about a tenth of a second, and only one where a
                callback looks at single batches. Unless it is 1, small arrays are kept on the devices while fit runs,
                and must not change meanwhile. The results are the same: bit for bit, but where XLA compiles the body of
                a loop otherwise than a single step, which it was seen to do on CPUs with grouped convolutions, and with
                convolutions and BatchNormalization on batches that the mesh does not divide; there to rounding.
            jit_compile: False means the same as `run_eagerly=True`.
            auto_scale_loss: whether the optimizer of a model under the policy "mixed_float16" is put into a
                `LossScaleOptimizer`.
            train_step: a pure function `(state, batch, rngs) -> (state, logs)` in place of gradient descent on the
                loss; `batch` is `(x, y, sample_weight)`, `logs` a dict of scalars. See `merge`, `split` and
                `apply_gradients`; draw random numbers from `rngs` outside of `jax.grad`.
            donate: whether a step may reuse the memory of the state before it. Without, twice the memory is needed.
            check: whether compiled steps check that the integers which layers and losses look up are there: those of an
                `Embedding`, and sparse labels. Of what is out of range an index gives NaN otherwise, or counts from the
                end. The error names the layer or loss and the value, and the model is as it was before the step. It is
                for debugging: memory is not donated, and each step is waited for. Steps that run eagerly check always.
            prefetch: how many executions the loop is ahead of the devices: while one runs, the batches of the next ones
                are already being put there.
            remat: what the way back computes again instead of keeping it: "full" for everything; the name of a policy
                in `jax.checkpoint_policies`, which says what is kept; or a regular expression for the whole paths of
                layers that keep only their inputs. The numbers are the same. A `train_step` of your own decides itself
                by `jax.checkpoint`.

        Raises:
            UnknownNameError: a name is not known.
            ModelError: neither `loss` nor `train_step` is given, an argument cannot be used, or fit is running.
        """
        self._check_idle("compile")
        arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
            "auto_scale_loss": auto_scale_loss,
            "train_step": train_step,
            "donate": donate,
            "check": check,
            "prefetch": prefetch,
            "remat": remat,
        }
        options = step_options(run_eagerly, steps_per_execution, jit_compile, donate, check, prefetch)
        train_step = train_step or getattr(self, "train_step", None)
        if loss is None and train_step is None and not self._may_add_losses:
            raise ModelError(
                "compile: `loss` is missing",
                given="loss=None, train_step=None",
                expected="a loss, or a train_step of your own",
                fix='for example model.compile("adam", loss="mse")',
            )
        if loss is None and train_step is not None and (metrics or weighted_metrics):
            raise ModelError(
                "compile: nothing would update the metrics",
                given="metrics, and a train_step without a loss",
                expected="a loss, which evaluate measures, too; or a train_step that logs what it measures",
                fix='compile(..., loss="mse"), or leave out metrics and return them in the logs of train_step',
            )
        if train_step is not None:
            check_callable("train_step", train_step, "state, batch, rngs")
        objective = None
        if loss is not None or train_step is None:
            names, is_known = self.output_names, self._graph is not None
            is_list = is_known and isinstance(self.output, list | tuple)
            if is_known:
                names = Outputs(self.output, names).names
            objective = resolve_objective(loss, loss_weights, metrics, weighted_metrics, names, is_known, is_list)
        check_option("auto_scale_loss", auto_scale_loss, (False, True))
        if not isinstance(optimizer, Mapping) or optimizers.is_config(optimizer):
            optimizer = optimizers.get(optimizer)
        if auto_scale_loss:
            optimizer = with_loss_scale(optimizer, self.dtype_policy)
        if not isinstance(optimizer, Mapping):
            optimizer = as_optimizer(optimizer, DEFAULT)
        measured = None
        if objective is not None and (metrics is not None or weighted_metrics is not None):
            measured = objective.all_metrics
        measures, rematerialised = ModelMetrics(measured), resolve_remat(remat)
        self._choose(Choices(optimizer, objective, train_step, arguments, measures, options, rematerialised))

    @property
    def metrics(self) -> list[Metric]:
        """The metric objects: the mean of the loss, what `compile` chose as one, the means of each output's loss.

        They tell of the last epoch of training, or of the evaluation if that came later; none before `compile`.
        Reading a value waits for the last step.

        Source: `keras.Model.metrics`.
        """
        return [] if self._choices is None else self._choices.measures.all

    @property
    def metrics_names(self) -> list[str]:
        """The names of `metrics`.

        Source: `keras.Model.metrics_names`.
        """
        return [metric.name for metric in self.metrics]

    def reset_metrics(self) -> None:
        """Let all `metrics` forget what they have seen. Runs of fit and evaluate begin anew without it.

        Source: `keras.Model.reset_metrics`.
        """
        for metric in self.metrics:
            metric.reset_state()

    def get_metrics_result(self) -> dict[str, Any]:
        """The values of all `metrics`, by the names they are logged as.

        Raises:
            ModelError: the model has metrics and was neither trained nor evaluated.

        Source: `keras.Model.get_metrics_result`.
        """
        found: dict[str, Any] = {}
        for metric in self.metrics:
            result = metric.result()
            found |= result if isinstance(result, Mapping) else {metric.name: result}
        return found

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Iterable[Callback] | Callback | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
        *,
        seed: int | None = None,
    ) -> History:
        """Train on the examples in `x` and `y`.

        In a job of several processes all call it, with the same examples: each gathers the rows that its devices hold.
        Under a distribution with `auto_shard_dataset=False` each gives its own instead: as many batches as the others,
        of as many rows, which `batch_size` counts.

        Args:
            x: inputs: an array (examples, ...) of any library, a table or sparse matrix, lists of numbers, or a pytree
                of them. Or a data set that gives batches `(x, y)` or `(x, y, sample_weight)`: a `PyDataset`, a
                `tf.data.Dataset`, a torch or grain loader, a generator or another iterable. Or one with `__len__` and
                `__getitem__` that gives examples like that.
            y: targets of arrays, likewise.
            batch_size: rows of one step on all devices together; 32 by default, or so many that `steps_per_epoch` of
                them are all. The last batch may be shorter. Not for what gives batches.
            epochs: the epoch to stop at.
            verbose: 0 for silence, 1 or "auto" for a progress bar, 2 for a line for each epoch.
            callbacks: called in order; see `keras_dist.callbacks.Callback`.
            validation_split: the part of the examples that is not trained on, but evaluated: the last ones, before any
                are shuffled. Not used beside `validation_data`. For arrays.
            validation_data: `(x, y)`, `(x, y, sample_weight)` or a data set, evaluated after every epoch.
            shuffle: whether the rows of arrays and examples, and the batches of a `PyDataset`, come in another order
                each time. What is iterated has its own order.
            class_weight: for targets that are class indices or one-hot a weight of the examples of each class; 1 for
                classes that are not in it. It counts in training alone.
            sample_weight: a weight for each example; for several outputs also a list or dict of them.
            initial_epoch: the epoch to start at.
            steps_per_epoch: how many batches make an epoch. The next one goes on where it has stopped; where the
                examples end it ends early, with a warning. Needed for what never ends, and for several epochs of a
                generator.
            validation_steps: how many batches are evaluated; by default all. When a generator has none left, a warning
                says so, and there are no validation logs.
            validation_batch_size: by default `batch_size`; not for validation data that comes in batches.
            validation_freq: evaluate after every so many epochs; or a list of these epochs, counted from 1.
            seed: fixes the order of rows, and nothing else; by default it follows from the model's seed.

        Returns:
            A `History` with the loss and metrics of each epoch, which is `model.history`, too.

        Raises:
            ModelError: the model is not compiled, or an argument cannot be used.
            DistributionError: the current distribution is another than the model's.
            DataError: the data cannot be batched, split or weighted.

        Source: `keras.Model.fit`.
        """
        self._check_compiled("fit")
        epoch_numbers = epoch_range(initial_epoch, epochs)
        check_option("shuffle", shuffle, (False, True))
        source, held_out = training_sources((x, y, sample_weight), class_weight, validation_split, validation_data)
        examples = batching(source, batch_size, steps_per_epoch, steps_argument="steps_per_epoch")
        examples.check_passes(len(epoch_numbers))
        is_for_both = validation_batch_size is None and not isinstance(held_out, StreamSource)
        size = batch_size if is_for_both else validation_batch_size
        validated = validation(held_out, size, validation_steps, validation_freq)
        if validated is not None:
            validated.check_passes(epoch_numbers)
        session = self._compiled("fit", source.x)
        session.check_current_distribution("fit")
        session.warn_of_trainable()
        if validated is not None:
            session.objective("fit with validation")
        if seed is None:
            shuffle_key = (session.seed, session.fits)
            session.fits += 1
        else:
            shuffle_key = (random.check_seed(seed),)
        hooks = self._hooks(callbacks, verbose, examples, epochs, add_history=True)
        self._outside.history = hooks.history
        with session.cell.training():
            hooks.history.timing = session.trainer.fit(
                examples,
                epoch_numbers,
                shuffle_key if shuffle else None,
                validated,
                hooks,
            )
        session.warn_of_trainable()
        return hooks.history

    @property
    def history(self) -> History | None:
        """The `History` of the last `fit`, also of one that was interrupted; None before.

        Source: `keras.Model.history`.
        """
        return self._outside.history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Iterable[Callback] | Callback | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Loss and metrics over the examples.

        Args:
            x: inputs, or a data set, as of `fit`.
            y: targets of arrays.
            batch_size: rows of one step; 32 by default, or so many that `steps` of them are all.
            verbose: 0 for silence, 1 or "auto" for a progress bar.
            sample_weight: a weight for each example.
            steps: how many batches to look at; by default all.
            callbacks: called in order.
            return_dict: whether to return a dict by name.

        Returns:
            The loss; with metrics the list `[loss, *metrics]`; with `return_dict` a dict.

        Raises:
            ModelError: the model is not compiled with a loss, or an argument cannot be used.
            DataError: the data cannot be batched.

        Source: `keras.Model.evaluate`.
        """
        self._check_compiled("evaluate")
        source = source_of(x, y, sample_weight)
        session = self._compiled("evaluate", source.x)
        session.objective("evaluate")
        examples = batching(source, batch_size, steps)
        hooks = self._hooks(callbacks, verbose, examples)
        return _keras_result(session.trainer.evaluate(examples, hooks), return_dict)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Iterable[Callback] | Callback | None = None,
        *,
        call: ModuleCall | None = None,
    ) -> Any:
        """The outputs for every example that this process gave, in order, as numpy arrays.

        Args:
            x: inputs, or a data set, as of `fit`, whose targets are not looked at.
            batch_size: rows of one step; 32 by default, or so many that `steps` of them are all.
            verbose: 0 for silence, 1 or "auto" for a progress bar.
            steps: how many batches to look at; by default all.
            callbacks: called in order.
            call: `call(module, x, training, rngs) -> y_pred` in place of the model's own, as of `from_nnx`: another
                method of the same weights. Compiled once for each function: define it outside of loops.

        Raises:
            ModelError: an output has no row for each example, or an argument cannot be used.
            DataError: the data cannot be batched.

        Example:
            >>> import keras_dist as kd
            >>> import numpy as np
            >>> from flax import nnx
            >>> class Autoencoder(nnx.Module):
            ...     def __init__(self, rngs):
            ...         self.encoder = nnx.Linear(8, 2, rngs=rngs)
            ...         self.decoder = nnx.Linear(2, 8, rngs=rngs)
            ...
            ...     def encode(self, x):
            ...         return self.encoder(x)
            ...
            ...     def __call__(self, x):
            ...         return self.decoder(self.encode(x))
            >>> def encode(module, x, training, rngs):
            ...     return module.encode(x)
            >>> model = kd.Model.from_nnx(Autoencoder)
            >>> x = np.ones((5, 8))
            >>> model.predict(x, verbose=0).shape, model.predict(x, verbose=0, call=encode).shape
            ((5, 8), (5, 2))

        Differs from Keras: `call`.

        Source: `keras.Model.predict`.
        """
        if call is not None:
            check_callable("call", call, "module, x, training, rngs")
        source = source_of(x)
        session = self._born(source.x)
        examples = batching(source, batch_size, steps)
        return session.trainer.predict(examples, self._hooks(callbacks, verbose, examples), call)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """One step of training on these rows; see `fit`.

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
        session.warn_of_trainable()
        source = weighted_arrays(ArraySource(x, y, sample_weight), class_weight)
        with session.cell.training():
            return _keras_result(session.trainer.train_batch(source), return_dict)

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
        examples: Batching | Streaming,
        epochs: int = 1,
        add_history: bool = False,
    ) -> CallbackList:
        check_option("verbose", verbose, (0, 1, 2, "auto"))
        params = {"verbose": verbose, "epochs": epochs, "steps": examples.steps_of_epoch}
        if not isinstance(callbacks, CallbackList):
            return CallbackList(callbacks, add_history, bool(verbose), self, **params)
        if add_history and callbacks.history is None:
            callbacks.append(History())
        callbacks.set_params(params)
        callbacks.set_model(self)
        return callbacks


def _keras_result(values: dict[str, float], return_dict: bool) -> Any:
    if return_dict:
        return values
    return next(iter(values.values())) if len(values) == 1 else list(values.values())
