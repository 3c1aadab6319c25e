"""`Trainer`: how a model is trained, evaluated and asked for predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import jax

from keras_dist._support.arguments import check_callable, check_option
from keras_dist._support.types import PyTree
from keras_dist.callbacks import Callback, History
from keras_dist.data.arrays import ArraySource
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import ModelError
from keras_dist.models import fitting
from keras_dist.models.functional import Graph
from keras_dist.models.initialization import create_weights, created, forward_of
from keras_dist.models.runtime import ModelRuntime
from keras_dist.models.step_methods import StepMethods
from keras_dist.training.built_model import BuiltModel, not_compiled
from keras_dist.training.compile_config import CompileConfig
from keras_dist.training.loop import Mode
from keras_dist.training.optimization import DEFAULT
from keras_dist.training.step import Forward, ModuleCall, TrainStep


def _stop_flag(mode: Mode, method: str) -> Any:
    """An attribute that tells whether the running `method` ends after the current step."""

    def get(self: Any) -> bool:
        return mode in stops_of(self)

    def put(self: Any, value: Any) -> None:
        stops = stops_of(self)
        (stops.add if value else stops.discard)(mode)

    def stops_of(model: Any) -> set[Mode]:
        """Those of its runs; before it has weights, what callbacks that are driven by hand have set."""
        return model._runtime.stops if model._session is None else model._session.trainer.stops

    return property(get, put, doc=f"Whether `{method}` ends after the current step. Callbacks set it for this run.")


class Trainer(StepMethods):
    """The methods of `Model` that train, evaluate and predict."""

    _runtime_type = ModelRuntime
    _graph: Graph | None = None

    stop_training = _stop_flag("train", "fit")
    stop_evaluating = _stop_flag("test", "evaluate")
    stop_predicting = _stop_flag("predict", "predict")

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: PyTree = None,
        loss_weights: PyTree = None,
        metrics: PyTree = None,
        weighted_metrics: PyTree = None,
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
        uneven: Literal["pad"] | None = None,
        report: Sequence[str] | str | None = None,
        batch_keys: Mapping[str, PyTree] | None = None,
    ) -> None:
        """Configure the model for training. Optimizer slots are created here, sharded like their parameters.

        Args:
            optimizer: a name (`"sgd" "adam" "adamw" "rmsprop"`), any optax transformation, or a dict of these by name:
                each then updates the variables below the attribute of its name, or, as `(optimizer, rule)`, those
                whose whole path the regular expression matches. An optax transformation accumulates gradients as
                `optimizers.OptaxOptimizer(transformation, gradient_accumulation_steps=4)`.
            loss: a name (`"mse"`, `"sparse_categorical_crossentropy"`), a `Loss`, or a callable `(y_true, y_pred)` that
                returns a value for each example, or a scalar; or one of these and a dict of scalars,
                `(loss, {"name": scalar})`, which are logged as means over batches, weighted by rows as `"loss"` is. As
                in Keras, targets (batch,) become (batch, 1) for such predictions. For several outputs a list or dict by
                output of these, with None for outputs without a loss, or one for all. A callable gets targets and
                outputs whole where they are shaped differently. None where `compute_loss`, layers or regularizers say
                what is minimised.
            loss_weights: factors of the losses in their sum, a list or dict by output.
            metrics: names (`"accuracy"`, `"mse"`), `Metric`s, or callables `(y_true, y_pred)` that return values for
                each example; a list of them, or one. For several outputs a list of lists, or a dict by output. All
                examples count alike.
            weighted_metrics: metrics in which examples are weighted by their `sample_weight`.
            run_eagerly: whether steps run operation by operation, so that a debugger and `print` see every value.
            steps_per_execution: how many steps of fit and evaluate are one program on the devices; callbacks are
                called between these. By default as many as take about a tenth of a second, but one if a
                callback looks at single batches. Unless it is 1, small arrays are kept on the devices while fit runs,
                and must not change meanwhile. The results are the same: bit for bit, but where XLA compiles the body of
                a loop otherwise than a single step, which it was seen to do on CPUs with grouped convolutions, and with
                convolutions and BatchNormalization on batches that the mesh does not divide; there to rounding.
            jit_compile: False means the same as `run_eagerly=True`.
            auto_scale_loss: whether the optimizer of a model under the policy "mixed_float16" is put into a
                `LossScaleOptimizer`.
            train_step: a pure function `(state, batch, rngs) -> (state, logs)` in place of gradient descent on the
                loss; `batch` is `(x, y, sample_weight)`, `logs` a dict of scalars. See `merge`, `split` and
                `apply_gradients`; draw random numbers from `rngs` outside of `jax.grad`. By default the method of this
                name, if a subclass defines one, in this form or in that of Keras, `train_step(self, state, data)`.
            donate: whether a step may reuse the memory of the state before it. Otherwise twice the memory is needed.
            check: whether compiled steps check that the indices of layers and losses are in range: inputs of an
                `Embedding`, and sparse labels. Otherwise an index out of range gives NaN, or counts from the
                end. The error names the layer or loss and the value, and the model is as it was before the step. It is
                for debugging: memory is not donated, and each step is waited for. Steps that run eagerly check always.
            prefetch: how many executions the loop is ahead of the devices: while one runs, the batches of the next ones
                are already being put there.
            remat: what the backward pass computes again instead of storing: "full" for everything; the name of a policy
                in `jax.checkpoint_policies`, which says what is kept; or a regular expression for the whole paths of
                layers that keep only their inputs. The numbers are the same. In a `train_step` of one's own it is what
                `stateless_call(..., training=True)` computes.
            uneven: "pad" for modules that split the rows of a batch themselves, as with `jax.shard_map`, which others
                than a multiple of the devices do not allow. The last, shorter batch is padded for the module: added
                rows repeat the last one, and are cut off its outputs before any loss, metric or weight sees them.
                Everything that the module computes row by row is exact. What mixes rows inside of it sees the added
                ones: statistics of BatchNormalization, losses that layers add, and outputs without rows. Outputs whose
                shape is the same for any number of rows stay as they are; the first step refuses a loss or a metric of
                one, and outputs with rows elsewhere than in the first dim. By default the module is called with the
                real rows.
            report: values of the training itself that `fit` and `train_on_batch` log beside loss and metrics:

                - `"gradient_norm"`: global norm of the gradient of an update, unscaled, of accumulated ones their mean,
                  before it is clipped; of an epoch the mean over updates, nan without one.
                - `"learning_rate"`: rate of the last step; of several optimizers one each, `"<name>_learning_rate"`. A
                  plain optax transformation must be an alias with a schedule, such as
                  `optax.adam(optax.constant_schedule(1e-3))`, or of `optax.inject_hyperparams`.
                - `"tokens_per_second"`: tokens of the epoch by its wall time without compilation. Tokens are the values
                  of the loss with a sample weight other than 0 that no mask leaves out, over all devices.
                - `"examples_per_second"`: rows of the epoch by the same time.
            batch_keys: keys of inputs, targets and weights in batches that are dicts, such as
                `dict(x="input_ids", y="labels", sample_weight="attention_mask")`; for several inputs a tuple, list or
                dict of keys. They hold for the batches and examples of all data sets that the model is given, and for
                dicts of arrays without `y`; `predict` needs those of `x` alone. What is not a dict is taken as without
                them.

        Raises:
            UnknownNameError: a name is not known.
            ModelError: neither `loss` nor `train_step` is given, an argument cannot be used, or fit is running.
        """
        fitting.compile(self, {name: value for name, value in locals().items() if name != "self"})

    def fit(
        self,
        x: Any = None,
        y: PyTree = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Iterable[Callback] | Callback | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: PyTree = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
        *,
        seed: int | None = None,
    ) -> History:
        """Train the model on the examples in `x` and `y`.

        In a job of several processes all call it, with the same examples: each gathers the rows that its devices hold,
        after a comparison that `check_data` of `initialize` chooses.
        Under a distribution with `auto_shard_dataset=False` each gives its own instead: as many batches as the others,
        of as many rows, which `batch_size` counts.

        Args:
            x: inputs: an array (examples, ...) of any library, a table or sparse matrix, lists of numbers, or a pytree
                of them. Or a data set that gives batches `(x, y)` or `(x, y, sample_weight)`: a `PyDataset`, a
                `tf.data.Dataset`, a torch or grain loader, a generator or another iterable. Or one with `__len__` and
                `__getitem__` that gives examples like that.
            y: targets for inputs that are arrays: arrays or a pytree of arrays.
            batch_size: rows of one step on all devices together; 32 by default, or what divides
                the examples into `steps_per_epoch` batches. The last batch may be shorter. Not for what gives batches.
            epochs: the epoch to stop at.
            verbose: 0 for silence, 1 or "auto" for a progress bar, 2 for a line for each epoch.
            callbacks: called in order; see `keras_dist.callbacks.Callback`.
            validation_split: the part of the examples that is not trained on, but evaluated: the last ones, before any
                are shuffled. Not used beside `validation_data`. For arrays.
            validation_data: `(x, y)`, `(x, y, sample_weight)` or a data set, evaluated after every epoch, each time on
                the same batches: those of a generator are kept in memory, unless it is evaluated only once.
            shuffle: whether the rows of arrays and examples, and the batches of a `PyDataset`, come in another order
                each time. Iterables keep their own order.
            class_weight: for targets that are class indices or one-hot a weight of the examples of each class; 1 for
                classes that are not in it. It counts in training alone.
            sample_weight: a weight for each example; for several outputs also a list or dict of them.
            initial_epoch: the epoch to start at.
            steps_per_epoch: how many batches make an epoch. The next epoch continues where it stopped; it ends
                early, with a warning, if the data ends. Needed for endless data. Without it all batches of a generator
                are one epoch, after which training ends, with a warning if there were to be more.
            validation_steps: how many batches are evaluated; by default all. Needed for a generator that is evaluated
                more than once. When there are fewer, a warning says so.
            validation_batch_size: by default `batch_size`; not for validation data that comes in batches.
            validation_freq: number of epochs from one evaluation to the next; or a list of the epochs, from 1.
            seed: fixes the order of rows, and nothing else; by default it follows from the model's seed.

        Returns:
            A `History` with the loss and metrics of each epoch, which is `model.history`, too. The loss is the mean of
            the losses of the batches, weighted by their rows; where losses divide by weights of tokens, a weighted
            metric has the mean over all of them.

        Raises:
            ModelError: the model is not compiled, or an argument cannot be used.
            DistributionError: the current distribution is another than the model's.
            DataError: the data cannot be batched, split or weighted.

        Source: `keras.Model.fit`.
        """
        self._check_compiled("fit")
        numbers = fitting.epoch_range(initial_epoch, epochs)
        source, held_out = fitting.training_sources(
            self, (x, y, sample_weight), class_weight, validation_split, validation_data
        )
        examples = fitting.batching(source, batch_size, steps_per_epoch, steps_argument="steps_per_epoch")
        validated = fitting.validation(held_out, batch_size, validation_batch_size, validation_steps, validation_freq)
        return fitting.fit(self, examples, numbers, validated, shuffle, seed, callbacks, verbose, class_weight)

    @property
    def history(self) -> History | None:
        """The `History` of the last `fit`, even if that was interrupted; None before the first.

        Source: `keras.Model.history`.
        """
        return self._runtime.history

    def evaluate(
        self,
        x: Any = None,
        y: PyTree = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: PyTree = None,
        steps: int | None = None,
        callbacks: Iterable[Callback] | Callback | None = None,
        return_dict: bool = False,
        *,
        seed: int | None = None,
    ) -> Any:
        """Compute the loss and the metrics over the examples.

        Args:
            x: inputs, or a data set, as of `fit`.
            y: targets of arrays.
            batch_size: rows of one step; by default 32, or what makes `steps` batches of all.
            verbose: 0 for silence, 1 or "auto" for a progress bar.
            sample_weight: a weight for each example.
            steps: how many batches to look at; by default all.
            callbacks: called in order.
            return_dict: whether to return a dict by name.
            seed: fixes the `rngs` that the `call` of a `from_nnx` model is given; by default they follow from the
                model's seed, and each call of `evaluate` has others. See `predict`.

        Returns:
            The loss; with metrics the list `[loss, *metrics]`; with `return_dict` a dict. The loss is the mean of the
            losses of the batches, weighted by their rows.

        Raises:
            ModelError: the model is not compiled with a loss, or an argument cannot be used.
            DataError: the data cannot be batched.

        Differs from Keras: `seed`.

        Source: `keras.Model.evaluate`.
        """
        self._check_compiled("evaluate")
        examples = fitting.batching(fitting.source(self, x, y, sample_weight), batch_size, steps)
        return fitting.evaluate(self, examples, callbacks, verbose, return_dict, seed)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Iterable[Callback] | Callback | None = None,
        *,
        call: ModuleCall | None = None,
        local: bool = False,
        seed: int | None = None,
    ) -> PyTree:
        """Return the outputs for all examples, in order, as numpy arrays: in a job the same in all processes.

        Where each process gives examples of its own (`auto_shard_dataset=False`), there is a row for those of all, in
        the order in which batches have them: `data.process_rows` tells which rows of each batch are whose.

        An output whose first dim is not the rows of the batch, such as a scalar or a table, has an entry for each
        batch: `(batches, ...)`, also where there is one batch. `predict_on_batch` returns it as it is. A table that is
        as long as every batch is taken for rows; another `batch_size` tells them apart.

        Args:
            x: inputs, or a data set, as of `fit`, whose targets are not looked at.
            batch_size: rows of one step; by default 32, or what makes `steps` batches of all.
            verbose: 0 for silence, 1 or "auto" for a progress bar.
            steps: how many batches to look at; by default all.
            callbacks: called in order.
            call: `call(module, x, training, rngs) -> y_pred` in place of the model's own, as of `from_nnx`: another
                method of the same weights. Compiled once for each function: define it outside of loops.
            local: whether a process of a job returns only the outputs for its own rows, which then stay where they
                are: the examples that it gives, or of examples that all give, those of `data.process_rows`.
            seed: fixes the `rngs` that `call` is given; by default they follow from the model's seed, and each call of
                `predict` has others. Each batch has `rngs` of its own, equal on every mesh: what is drawn depends on
                the seed and on `batch_size`. Layers with generators of their own do not draw from them.

        Raises:
            ModelError: an output has neither rows nor one shape in all batches, or an argument cannot be used.
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

        Differs from Keras: `call`, `local` and `seed`; outputs without rows are stacked, where Keras raises an error or
        concatenates them.

        Source: `keras.Model.predict`.
        """
        if call is not None:
            check_callable("call", call, "module, x, training, rngs")
        examples = fitting.batching(fitting.source(self, x, only_inputs=True), batch_size, steps)
        return fitting.predict(self, examples, callbacks, verbose, call, local, seed)

    def train_on_batch(
        self,
        x: Any,
        y: PyTree = None,
        sample_weight: PyTree = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Run one training step on a batch; see `fit`.

        Returns:
            The loss of this batch before the step; with metrics the list `[loss, *metrics]`; or a dict.

        Raises:
            ModelError: the model is not compiled.
            DistributionError: the current distribution is another than the model's.
            DataError: the rows cannot be batched.

        Differs from Keras: the values are those of this batch, not means since the last `reset_metrics`.
        """
        x, y, sample_weight = fitting.arrays_of_batch(self, x, y, sample_weight)
        session = fitting.ready_to_train(self, "train_on_batch", x)
        source = fitting.weighted_by_class(ArraySource(x, y, sample_weight), class_weight)
        with session.cell.training():
            return fitting.keras_result(session.trainer.train_batch(source), return_dict)

    def test_on_batch(self, x: Any, y: PyTree = None, sample_weight: PyTree = None, return_dict: bool = False) -> Any:
        """Compute the loss and the metrics of a batch; see `evaluate`."""
        x, y, sample_weight = fitting.arrays_of_batch(self, x, y, sample_weight)
        session = self._compiled("test_on_batch", x)
        fitting.check_measures(session, "test_on_batch")
        values = session.trainer.test_batch(ArraySource(x, y, sample_weight), session.next_draw())
        return fitting.keras_result(values, return_dict)

    def predict_on_batch(self, x: Any, *, local: bool = False) -> PyTree:
        """Return the outputs for a batch; see `predict`."""
        check_option("local", local, (False, True))
        x, _, _ = fitting.arrays_of_batch(self, x, only_inputs=True)
        session = self._with_weights(x)
        return session.trainer.predict_batch(ArraySource(x), session.next_draw(), local)

    def lower_train_step(self, x: Any, y: PyTree = None, sample_weight: PyTree = None) -> jax.stages.Lowered:
        """Lower the train step for a batch without running it; `.compile()` shows its memory and collectives.

        Raises:
            ModelError: the model is not compiled.
        """
        x, y, sample_weight = fitting.arrays_of_batch(self, x, y, sample_weight)
        return self._compiled("lower_train_step", x).trainer.lower_train(ArraySource(x, y, sample_weight))

    @property
    def optimizers(self) -> dict[str, Any]:
        """The optimizers by name.

        Raises:
            ModelError: the model is not compiled; or it has several, and its weights do not exist yet.
        """
        if self._choices is None:
            raise not_compiled("optimizers")
        given = self._choices.optimizer
        if not isinstance(given, Mapping):
            return {DEFAULT: given}
        named = self._compiled("optimizers").optimizers
        return {name: optimizer.transformation for name, optimizer in named.items()}

    @property
    def optimizer(self) -> Any:
        """The optimizer that `compile` was given or made from a name, if it is the only one.

        It reads and writes the state of this model; no other model can use it at the same time.

        Raises:
            ModelError: the model is not compiled, or has several optimizers.
        """
        found = self.optimizers
        if len(found) != 1:
            fix = f"model.optimizers[{next(iter(found))!r}]"
            raise ModelError("the model has several optimizers", given=f"optimizers {list(found)}", fix=fix)
        return next(iter(found.values()))

    # From the model to its session

    @property
    def _has_host_part(self) -> bool:
        """Whether it begins with layers that run on the host."""
        return False

    def _prepared(self, x: PyTree) -> PyTree:
        """Inputs of the compiled part of the model."""
        return x

    @property
    def _session(self) -> BuiltModel | None:
        return self._runtime.session

    @property
    def _awaits_layout(self) -> Distribution | None:
        """The `AutoParallel` that finds its layout in `fit`, which has not been called; None else."""
        asked = self._runtime.made_under
        return asked if self._session is None and asked is not None and asked.is_searched else None

    @property
    def _takes_rngs(self) -> bool:
        """Whether it is called by a function of the user's that is given random streams."""
        source = self._runtime.source
        return source is not None and source.call is not None and not self._runtime.keras_model

    @property
    def _choices(self) -> CompileConfig | None:
        return self._runtime.choices

    def _forward_on(self, x: PyTree, distribution: Distribution | None) -> Forward:
        return forward_of(self, x, distribution)

    def _chosen(self) -> CompileConfig:
        return self._choices or CompileConfig()

    @property
    def _symbols(self) -> tuple[PyTree, PyTree] | None:
        return None if self._graph is None else (self._graph.inputs, self._graph.outputs)

    @property
    def _casts_inputs(self) -> bool:
        # a functional model casts them to what its symbolic inputs are
        return self.autocast and self._graph is None

    @property
    def _may_add_losses(self) -> bool:
        """Whether its layers, regularizers and `compute_loss` count: not for foreign modules."""
        return self._runtime.source is None

    def _with_weights(self, *args: Any, **kwargs: Any) -> BuiltModel:
        """The session of the model; its weights are created now, if need be, for inputs like these."""
        return created(self, args, kwargs)

    def _build_for(self, tensors: PyTree) -> None:
        """Create the weights, for inputs like these symbolic tensors."""
        if self._session is None:
            self._create_weights((tensors,), {})

    def _create_weights(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BuiltModel:
        return create_weights(self, args, kwargs)

    def _check_compiled(self, method: str) -> None:
        """Check that the model is compiled."""
        if self._choices is None:
            raise not_compiled(method)

    def _compiled(self, method: str, x: Any = None) -> BuiltModel:
        """The session of the model, which is compiled."""
        self._check_compiled(method)
        return self._with_weights(x)
