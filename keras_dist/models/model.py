"""`Model`: layers that are trained together, on the mesh of a distribution."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import jax
import numpy as np
from flax import nnx
from rich.console import Console

from keras_dist._arguments import check_callable, check_int
from keras_dist.callbacks import Callback, History
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.data.recognition import source_of
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.render import TABLE_WIDTH, render_text
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import DistributionError, ModelError, shorten, type_name
from keras_dist.layers import Layer, call_context
from keras_dist.layers.call_arguments import call_parameters, check_numbers
from keras_dist.layers.other_frameworks import check_is_ours
from keras_dist.layers.symbolic import KerasTensor, is_any_symbolic
from keras_dist.metrics import Metric
from keras_dist.models import fitting
from keras_dist.models.birth import born, give_birth, session_of_module
from keras_dist.models.config import (
    build_config,
    build_from_config,
    check_described,
    compile_config,
    graph_config,
    one_config,
    takes_graph,
    with_graph,
)
from keras_dist.models.exporting import FORMAT, export
from keras_dist.models.functional import Graph, connect, find_layer, input_layers, symbols_of
from keras_dist.models.naming import layers_in
from keras_dist.models.record import ModelRecord
from keras_dist.models.saving import copied, reduced, restore, save, snapshot
from keras_dist.models.session import Session, not_compiled
from keras_dist.models.summary import summary_table
from keras_dist.models.weight_names import NameMap, Transforms, WeightNames
from keras_dist.models.weights_files import LoadReport, load_weights, save_weights
from keras_dist.saving import custom_object_scope, deserialize_keras_object, serialize_keras_object
from keras_dist.training.choices import Choices
from keras_dist.training.loop import Mode
from keras_dist.training.optimization import DEFAULT, apply_gradients
from keras_dist.training.step import ModuleCall, TrainStep
from keras_dist.training.train_state import TrainState


def _then_born(init: Callable[..., None]) -> Callable[..., None]:
    """`__init__`, after which the weights are born, if the inputs are known: not before all attributes are set.

    The model remembers the distribution that is current before it.
    """

    @functools.wraps(init)
    def outermost(self: Any, *args: Any, **kwargs: Any) -> None:
        record = self._outside
        if record.is_constructing:
            init(self, *args, **kwargs)
            return
        record.is_constructing, record.made_under = True, current_distribution()
        try:
            init(self, *args, **kwargs)
            self._check_initialised()
        finally:
            record.is_constructing = False
        if self._graph is not None:
            self._born()

    return outermost


def _stop_flag(mode: Mode, method: str) -> Any:
    """An attribute that tells whether the running `method` ends after the current step."""

    def get(self: Any) -> bool:
        return self._session is not None and mode in self._session.trainer.stops

    def put(self: Any, value: Any) -> None:
        if self._session is not None:
            stops = self._session.trainer.stops
            (stops.add if value else stops.discard)(mode)

    return property(get, put, doc=f"Whether `{method}` ends after the current step. Callbacks set it for this run.")


class Model(Layer):
    """Layers that are trained together, on the mesh of the distribution that was current when the model was made.

    One that was made without a distribution takes that which is current when its weights are born, and without any the
    first device. Models among the layers live where the outermost one does.

    Made in one of four ways: of symbolic tensors, `Model(inputs, outputs)`; by a subclass with `call(self, inputs)`; as
    a `Sequential`; or of any `flax.nnx` module, `Model.from_nnx(factory)`.

    Args:
        inputs: what `Input` gave: one symbolic tensor, a list or a dict of them.
        outputs: what layers gave for them, likewise.
        name: its name; paths leave it out, except as an alias.
        trainable: whether its weights are trained.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: the graph is disconnected, or two layers have the same name.
        LayoutError: the layout rules cannot be applied.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import layers
        >>> inputs = kd.Input((8,))
        >>> hidden = layers.Dense(16, activation="relu", name="d1")(inputs)
        >>> model = kd.Model(inputs, layers.Dense(3, name="d2")(hidden))
        >>> [weight.path for weight in model.weights]
        ['d1/kernel', 'd1/bias', 'd2/kernel', 'd2/bias']

    Differs from Keras: models that share a layer share its values, but each has arrays of its own, on its own mesh.
    Functional models have no class of their own: `type(model)` is `Model`, and `model.inputs` are its inputs.

    Source: `keras.Model`.
    """

    _outside: ModelRecord  # type: ignore[reportIncompatibleVariableOverride]
    _record_type = ModelRecord
    _graph: Graph | None = None

    stop_training = _stop_flag("train", "fit")
    stop_evaluating = _stop_flag("test", "evaluate")
    stop_predicting = _stop_flag("predict", "predict")

    @_then_born
    def __init__(
        self, inputs: Any = None, outputs: Any = None, name: str | None = None, *, trainable: bool = True, **kwargs: Any
    ) -> None:
        if isinstance(inputs, nnx.Module):
            raise ModelError(
                "Model is not made of a flax.nnx module by calling it",
                given=f"Model({shorten(inputs)})",
                expected="symbolic inputs and outputs",
                fix="kd.Model.from_nnx(lambda rngs: MyNet(rngs=rngs))",
            )
        if (inputs is None) != (outputs is None):
            check_is_ours("Model: `inputs`: it", inputs)
            raise ModelError(
                "Model needs `inputs` and `outputs`",
                given=f"inputs={shorten(inputs)}, outputs={shorten(outputs)}",
                expected="both, or neither in a subclass",
                fix="Model(inputs, outputs)",
            )
        super().__init__(name=name, trainable=trainable, **kwargs)
        if name is None and inputs is not None and type(self) is Model:
            self._base_name = self._name = "functional"
        if inputs is not None:
            connect(self, inputs, outputs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """See that the weights are born when the constructor is through, whoever wrote it."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _then_born(vars(cls)["__init__"])  # type: ignore[method-assign]

    @classmethod
    def from_nnx(
        cls,
        factory_or_module: Any,
        call: ModuleCall | None = None,
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
        model = cls()
        model._outside.session = session_of_module(factory_or_module, call, trainable, seed)
        return model

    # Layers

    @property
    def layers(self) -> list[Layer]:
        """Its layers: those of its graph, in order; of a subclass those that its attributes hold."""
        if self._graph is not None:
            return [*input_layers(self.input), *layers_in(self._members)]
        return layers_in(self)

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """The layer with this name, or at this place in `layers`.

        Raises:
            ModelError: there is none, or not exactly one argument is given.
        """
        return find_layer(self, name, index)

    @property
    def inputs(self) -> list[KerasTensor]:
        """The symbolic inputs of a functional model, as a list."""
        return jax.tree.leaves(self.input)

    @property
    def outputs(self) -> list[KerasTensor]:
        """The symbolic outputs of a functional model, as a list."""
        return jax.tree.leaves(self.output)

    @property
    def input(self) -> Any:
        """The symbolic inputs of a functional model, as they were given."""
        return symbols_of(self)[0]

    @property
    def output(self) -> Any:
        """The symbolic outputs of a functional model, as they were given."""
        return symbols_of(self)[1]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs of a functional model."""
        return [tensor.name for tensor in self.inputs]

    @property
    def output_names(self) -> list[str] | None:
        """The layers that the outputs of a functional model are of, numbered where one has several; None for others.

        Losses and metrics of outputs that are a dict go by its keys.
        """
        return list(self._graph.output_names) if self._graph is not None else None

    @property
    def input_shape(self) -> Any:
        """The shape of the input of a functional model; a list of them where there are several."""
        return _one_or_all([tensor.shape for tensor in self.inputs])

    @property
    def output_shape(self) -> Any:
        """The shape of the output of a functional model; a list of them where there are several."""
        return _one_or_all([tensor.shape for tensor in self.outputs])

    # Calls

    def build(self, input_shape: Any = None) -> None:
        """Give birth to the weights, for inputs of this shape, the batch included.

        Args:
            input_shape: one shape, or a list or dict of them; None where the model knows its inputs.

        Raises:
            ModelError: the model takes no such input.
        """
        if call_context.current() is not None or self._session is not None:
            return  # inside of a call each layer builds itself
        if input_shape is None:
            self._born()
            return
        self._build_for(jax.tree.map(lambda shape: KerasTensor(shape, self.dtype), input_shape, is_leaf=_is_shape))

    build.gives_birth = True  # type: ignore[attr-defined]  # to the weights of its layers; it has none to note

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """The outputs of a functional model. Subclasses define their own."""
        if self._graph is None:
            raise NotImplementedError(f"{type(self).__name__} does not define call(self, inputs)")
        return self._graph.run(vars(self._members), inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for arrays, on the model's mesh; for symbolic inputs symbolic outputs.

        Raises:
            ModelError: the inputs do not fit.
        """
        is_symbolic = is_any_symbolic((args, kwargs))
        if is_symbolic and self._graph is not None:
            return self._graph.structured(super().__call__(*args, **kwargs))
        is_part = self._session is None and self._outside.binding is not None
        if is_symbolic or is_part or call_context.current() is not None or "_is_built" not in vars(self):
            return super().__call__(*args, **kwargs)
        check_numbers(call_parameters(type(self)), args, kwargs, self.name)
        return self._born(*args, **kwargs).call(args, kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shapes of the outputs for inputs of this shape, the batch included, in the structure of the outputs."""
        shapes = super().compute_output_shape(input_shape)
        return shapes if self._graph is None else self._graph.structured(shapes)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """The loss of a batch, a scalar: what `compile` chose, and what layers and regularizers add.

        A subclass may define its own. It runs inside the compiled step, on the model whose values the step trains: use
        arguments and weights, return a scalar, change nothing. In a `train_step` of one's own it gives what `compile`
        chose; `stateless_call(..., return_losses=True)` gives the rest.

        Args:
            x: inputs.
            y: targets.
            y_pred: what the model gave for `x`.
            sample_weight: a weight for each example, or None.
            training: whether the model is being trained.

        Source: `keras.Model.compute_loss`.
        """
        context = call_context.current()
        if context is None or context.compiled_loss is None:
            objective = self._compiled("compute_loss").objective("compute_loss")
            return objective.losses((x, y, sample_weight), y_pred)["loss"]
        chosen = context.compiled_loss((x, y, sample_weight), y_pred)
        losses = [*([] if chosen is None else [chosen]), *self.losses]
        if not losses:
            raise ModelError(
                f"there is nothing to minimise in model {self.name!r}",
                given="compile without a loss, and no layer or regularizer that adds one",
                expected="a loss",
                fix='for example model.compile("adam", loss="mse"), or add_loss in a layer',
            )
        return sum(losses[1:], losses[0])

    # Training

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
        fitting.compile(self, {name: value for name, value in locals().items() if name != "self"})

    @property
    def metrics(self) -> list[Metric]:
        """The metric objects: the mean of the loss, what `compile` chose as one, the means of each output's loss.

        They tell of the last epoch of training, or of the evaluation if that came later; none before `compile`.
        Reading a value waits for the last step.

        Source: `keras.Model.metrics`.
        """
        return [] if self._choices is None else self._choices.metrics.all

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
        numbers = fitting.epoch_range(initial_epoch, epochs)
        source, held_out = fitting.training_sources(
            (x, y, sample_weight), class_weight, validation_split, validation_data
        )
        examples = fitting.batching(source, batch_size, steps_per_epoch, steps_argument="steps_per_epoch")
        validated = fitting.validation(held_out, batch_size, validation_batch_size, validation_steps, validation_freq)
        return fitting.fit(self, examples, numbers, validated, shuffle, seed, callbacks, verbose)

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
        examples = fitting.batching(source_of(x, y, sample_weight), batch_size, steps)
        return fitting.evaluate(self, examples, callbacks, verbose, return_dict)

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
        return fitting.predict(self, fitting.batching(source_of(x), batch_size, steps), callbacks, verbose, call)

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
        return fitting.train_on_batch(self, (x, y, sample_weight), class_weight, return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Loss and metrics of these rows; see `evaluate`."""
        return fitting.test_on_batch(self, (x, y, sample_weight), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs for these rows, run as one batch; see `predict`."""
        return fitting.predict_on_batch(self, x)

    def lower_train_step(self, x: Any, y: Any = None, sample_weight: Any = None) -> jax.stages.Lowered:
        """The train step for these rows, lowered and not run: `.compile()` tells its memory and collectives.

        Raises:
            ModelError: the model is not compiled.
        """
        return fitting.lower_train_step(self, (x, y, sample_weight))

    # Weights

    @property
    def variables(self) -> list[Any]:
        """Handles on all variables; of models of layers, `weights` and the states of random generators."""
        binding = self._outside.binding
        return self._born().variables() if binding is None else [*binding.weights(), *binding.generators()]

    @property
    def weights(self) -> list[Any]:
        """Handles on the weights, in Keras's order; the keys of random streams are none.

        Raises:
            ModelError: the weights are not born yet.
        """
        return [variable for variable in self.variables if not variable.is_key]

    def count_params(self) -> int:
        """The number of elements of all weights."""
        return sum(int(np.prod(weight.shape)) for weight in self.weights)

    def save_weights(
        self,
        filepath: str | os.PathLike[str],
        overwrite: bool = True,
        max_shard_size: float | None = None,
    ) -> None:
        """Write the weights to a safetensors file, whole, under their paths; to several if they are large.

        What is there stays whole until the new weights are; an interrupted save leaves it as it was. Where there are
        several processes, all must call; the first one writes, and the others wait for it and raise what it does.
        Neither the keys of random streams nor the state of
        the optimizer are in it. Each weight has a checksum in the header of its file, which `load_weights` compares.

        Args:
            filepath: a file that ends in `.safetensors`, in a folder that exists. Or a path that ends in `.orbax`: a
                folder, to which each process writes what its devices hold, so that no weight is ever whole.
            overwrite: whether a file that exists is replaced.
            max_shard_size: in GB of 1024**3 bytes, as in Keras. More weights than that go to several files in Hugging
                Face's form, `model-00001-of-00003.safetensors` and so on, and `model.safetensors.index.json`, which
                names them; files of a save that is replaced make others take numbered names, `model.2-00001-of-...`.
                A weight that is larger has a file of its own. The host holds the weights of one file at a time.
                None for a single file; orbax has files of its own.

        Raises:
            ModelError: the path ends in anything else, the file exists and is not to be replaced, a weight has an
                element type that the format does not know, `max_shard_size` is no size, or the weights are not born
                yet.
            CheckpointError: the path is to be a folder, and is a file or a folder of other things.
            OSError: a file cannot be written.

        Example:
            >>> import pathlib, tempfile
            >>> import keras_dist as kd
            >>> from safetensors.numpy import load_file
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1")])
            >>> model.save_weights(folder / "model.safetensors")
            >>> {name: value.shape for name, value in sorted(load_file(folder / "model.safetensors").items())}
            {'d1/bias': (2,), 'd1/kernel': (3, 2)}
            >>> print(model.load_weights(folder / "model.safetensors"))
            2 loaded: d1/kernel, d1/bias
            >>> model.save_weights(folder / "large.safetensors", max_shard_size=20 / 1024**3)
            >>> for path in sorted(folder.glob("large*")):
            ...     print(path.name)
            large-00001-of-00002.safetensors
            large-00002-of-00002.safetensors
            large.safetensors.index.json

        Differs from Keras: `filepath` is the same with and without `max_shard_size`, and a weight may be larger.

        Source: `keras.Model.save_weights`.
        """
        save_weights(self._born(), self.weights, filepath, overwrite, max_shard_size)

    def load_weights(
        self,
        filepath: str | os.PathLike[str],
        skip_mismatch: bool = False,
        *,
        strict: bool = True,
        name_map: NameMap | None = None,
        transform: Transforms | None = None,
    ) -> LoadReport:
        r"""Set the weights to those that `save_weights`, or another program, wrote, from the next step on.

        Layouts and element types stay those of the model; so the file may come from another mesh. Of each array only
        what the devices of this process hold is copied, after its checksum was compared; files of other programs have
        none, which a warning tells. In a job of several processes all must call.

        Args:
            filepath: a file that ends in `.safetensors`, or an index that ends in `.safetensors.index.json`. Where
                there is no such file the index beside it is read. Or a folder of orbax, also one of `model.save` or of
                a `CheckpointManager`, whose weights alone are taken then; each device reads its part.
            skip_mismatch: Keras's word for `strict=False`.
            strict: whether names and shapes must be those of the model, and every rule of `name_map` and `transform` be
                used. Else what fits is set, and a warning tells what was left out.
            name_map: what weights are called in the file: a dict from regular expressions for whole paths of weights to
                names, in which `\1` stands for the first group. A list of names is joined along the dim which gives
                the weight's shape, or stacked along a new first one. Other weights go by their paths.
            transform: a dict from such regular expressions to functions, called with each array of the file that the
                weight is made of, before they are joined. What a function gives as a view of the array (transposed,
                reshaped, split, sliced) is read in part; a function that computes has the whole array on the host, is
                called twice, and one array after the other.

        Returns:
            What was set, and what was not.

        Raises:
            ModelError: the file is none of safetensors, is damaged, or its names or shapes are not those of the model;
                of an index, a file is missing, elsewhere, of another save, or lacks a weight; `name_map` or `transform`
                cannot be used. No weight is set then.
            CheckpointError: the folder is damaged, or holds no weights.
            FileNotFoundError: there is no such file.

        Example:
            >>> import pathlib, tempfile, warnings
            >>> import keras_dist as kd
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
            >>> kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1")]).save_weights(path)
            >>> other = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1"), kd.layers.Dense(5, name="d2")])
            >>> with warnings.catch_warnings(action="ignore"):
            ...     print(other.load_weights(path, strict=False))
            2 loaded: d1/kernel, d1/bias; 2 missing in the file: d2/kernel, d2/bias

            Hugging Face's names: here each kernel is the other way round, and query, key and value are one kernel.

            >>> import numpy as np
            >>> from safetensors.numpy import save_file
            >>> names = [f"layers.0.self_attn.{kind}_proj.weight" for kind in "qkv"]
            >>> save_file({name: np.ones((2, 3), np.float32) for name in names}, path)
            >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(6, use_bias=False, name="qkv_0")])
            >>> with warnings.catch_warnings(action="ignore"):  # it has no checksums
            ...     report = model.load_weights(
            ...         path,
            ...         name_map={r"qkv_(\d+)/kernel": [rf"layers.\1.self_attn.{kind}_proj.weight" for kind in "qkv"]},
            ...         transform={r".*/kernel": lambda kernel: kernel.T},
            ...     )
            >>> print(report)
            1 loaded: qkv_0/kernel

            The other way round, one array for three kernels, each takes its part:
            `transform={"q/kernel": lambda qkv: qkv[:256].T, "k/kernel": lambda qkv: qkv[256:512].T, ...}`.

        Differs from Keras: `name_map` and `transform`.

        Source: `keras.Model.load_weights`.
        """
        strict = strict and not skip_mismatch
        names = WeightNames(name_map, transform)
        return load_weights(self.name, self._born(), self.weights, filepath, strict, names)

    # State, for steps and loops of one's own

    @property
    def state(self) -> TrainState:
        """A copy of the training state, which later training does not change or delete."""
        return self._born().cell.copy_of_state()

    @property
    def module(self) -> Any:
        """The NNX module with copies of the current values. Assign a module to set them, from the next step on."""
        return self._born().cell.module()

    @module.setter
    def module(self, module: Any) -> None:
        self._born().take_values(module)

    def merge(self, trainable: Any, rest: Any) -> Any:
        """The NNX module with values shaped as `state.trainable` and `state.rest`, for use in a `train_step`."""
        return self._born().cell.graph.merge(trainable, rest)

    def split(self, module: Any) -> tuple[Any, Any]:
        """`(trainable, rest)` with the values in a module that `merge` made."""
        return self._born().cell.graph.split(module)

    def stateless_call(
        self, trainable: Any, rest: Any, *args: Any, return_losses: bool = False, **kwargs: Any
    ) -> tuple[Any, ...]:
        """What the model gives with these values, for use in a `train_step` or in loops of your own.

        Args:
            trainable: values shaped as `state.trainable`, or a list of values for `trainable_variables`.
            rest: values shaped as `state.rest`, or, with that, a list of values for `non_trainable_variables`.
            *args: arguments of the call.
            return_losses: whether what layers and regularizers add to the loss is returned, too.
            **kwargs: further arguments of the call, such as `training`.

        Returns:
            `(outputs, rest)` with `rest` after the call, or `(outputs, rest, losses)`.

        Raises:
            ModelError: there are more or fewer values in a list than variables.

        Source: `keras.Model.stateless_call`.
        """
        session = self._born(*args, **kwargs)
        if isinstance(trainable, list | tuple):
            listed = (self.trainable_variables, self.non_trainable_variables)
            outputs, rest, losses = session.listed_call(self.name, listed, (trainable, rest), args, kwargs)
        else:
            outputs, rest, losses = session.stateless_call(trainable, rest, args, kwargs)
        return (outputs, rest, losses) if return_losses else (outputs, rest)

    def apply_gradients(self, state: TrainState, grads: Any, optimizer: str | None = None) -> TrainState:
        """`state` after one update, for use in a `train_step`.

        Args:
            state: values and slots before.
            grads: gradients shaped as `state.trainable`, or as the part of it that the optimizer updates.
            optimizer: the name of one optimizer; by default all are applied.

        Raises:
            ModelError: there is no such optimizer, or gradients are missing.
        """
        choices = self._compiled("apply_gradients").compiled("apply_gradients")
        return apply_gradients(state, choices.optimizers, grads, optimizer)

    @property
    def optimizers(self) -> dict[str, Any]:
        """The optimizers by name.

        Raises:
            ModelError: the model is not compiled; or it has several, and its weights are not born yet.
        """
        self._check_compiled("optimizers")
        given = self._choices.optimizer
        if not isinstance(given, Mapping):
            return {DEFAULT: given}
        choices = self._compiled("optimizers").compiled("optimizers")
        return {name: optimizer.transformation for name, optimizer in choices.optimizers.items()}

    @property
    def optimizer(self) -> Any:
        """The only optimizer: the object that `compile` was given, or made of a name.

        It reads and writes the state of this model, which trains with it alone.

        Raises:
            ModelError: the model is not compiled, or has several optimizers.
        """
        found = self.optimizers
        if len(found) != 1:
            raise ModelError(
                "the model has several optimizers",
                given=f"optimizers {list(found)}",
                expected="one optimizer",
                fix=f"model.optimizers[{next(iter(found))!r}]",
            )
        return next(iter(found.values()))

    # Where it lives

    @property
    def distribution(self) -> Distribution:
        """The distribution of the model, as it was when its weights were born or moved."""
        return self._born().distribution

    @property
    def layout_plan(self) -> LayoutPlan:
        """Where every variable lives; print it for the table."""
        return self._born().cell.plan

    @property
    def state_plan(self) -> LayoutPlan:
        """Where everything in the training state lives: variables, optimizer slots, the step."""
        return self._born().cell.state_plan

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
                given=f"{shorten(distribution)} of type {type_name(distribution)}",
                expected="a DataParallel, ModelParallel, FullySharded or your own Distribution",
                fix="for example model.redistribute(DataParallel())",
            )
        self._born().redistribute(distribution)
        self._outside.made_under = distribution

    def summary(
        self,
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Print every layer with the shape of its output, its variables with layout and bytes per device, and totals.

        Models of `from_nnx` list their variables alone.

        Args:
            line_length: width of the table in characters; by default that of the terminal.
            positions: as in Keras; not used, since columns are as wide as what is in them.
            print_fn: called with the text instead of printing it.
            expand_nested: whether the layers of models among the layers have lines of their own.
            show_trainable: whether a column tells what is trained.
            layer_range: names of the first and last layer to be shown, or regular expressions for them.

        Raises:
            ModelError: an argument cannot be used.

        Source: `keras.Model.summary`.
        """
        del positions
        if line_length is not None:
            check_int(
                "line_length", line_length, 40, wrong="is not the width of a table", alternative="None", example=120
            )
        table = summary_table(self, expand_nested, show_trainable, layer_range)
        if print_fn is not None:
            print_fn(render_text(table, line_length or TABLE_WIDTH))
            return
        terminal = Console(width=line_length)
        (terminal if terminal.is_terminal or line_length else Console(width=TABLE_WIDTH)).print(table)

    # As a config, in files, as a program

    def get_config(self) -> dict[str, Any]:
        """The model without its weights, as plain values that JSON can hold.

        A model between symbolic tensors gives its layers and calls, as in Keras; others give the arguments of their
        constructor. Explicit layouts are lists of axes. Subclasses must be registered to be read again; one whose
        constructor takes more than plain values overrides `get_config` and `from_config`.

        Raises:
            ConfigError: a layer or an argument cannot be written down.

        Example:
            >>> import keras_dist as kd
            >>> from keras_dist import layers
            >>> inputs = kd.Input((8,), name="x")
            >>> model = kd.Model(inputs, layers.Dense(3, name="d1")(inputs))
            >>> again = kd.Model.from_config(model.get_config())
            >>> [weight.path for weight in again.weights]
            ['d1/kernel', 'd1/bias']

        Source: `keras.Model.get_config`.
        """
        if self._graph is None or not takes_graph(type(self)):
            check_described(self)
            return super().get_config()
        return graph_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """A model as `get_config` has described it, with new weights on the current distribution.

        Args:
            config: plain values.
            custom_objects: classes and functions by name, beside the registered ones.

        Raises:
            ConfigError: the config is damaged, or mentions what is not known.

        Source: `keras.Model.from_config`.
        """
        with custom_object_scope(custom_objects), one_config():
            return super().from_config(with_graph(cls, config))

    def to_json(self, **kwargs: Any) -> str:
        """The model without its weights, as JSON; `models.model_from_json` reads it.

        Args:
            **kwargs: as of `json.dumps`.

        Raises:
            ConfigError: a layer or an argument cannot be written down.

        Source: `keras.Model.to_json`.
        """
        return json.dumps(serialize_keras_object(self), **kwargs)

    def get_build_config(self) -> dict[str, Any] | None:
        """What `build_from_config` needs to give birth to the weights; None when they are not born, or need nothing.

        Source: `keras.Layer.get_build_config`.
        """
        return build_config(self)

    def build_from_config(self, config: Mapping[str, Any]) -> None:
        """Give birth to the weights, for inputs as `get_build_config` has described them.

        Source: `keras.Layer.build_from_config`.
        """
        build_from_config(self, config)

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile` as plain values; empty when the model is not compiled.

        Raises:
            ConfigError: one of them is no name, no object of keras_dist, and not registered.

        Differs from Keras: what cannot be read again is an error here, and not only when it is read.

        Source: `keras.Model.get_compile_config`.
        """
        return {} if self._choices is None else compile_config(self._choices)

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compile the model as `get_compile_config` has described it.

        Raises:
            ConfigError: the config mentions what is not known.

        Source: `keras.Model.compile_from_config`.
        """
        if config:
            self.compile(**deserialize_keras_object(config))

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True) -> None:
        """Write the model to a folder: config, weights, optimizer state, arguments of `compile`, layouts and versions.

        The folder is there whole or not at all; one that exists stays until the new one is. `load_model` reads it, on
        any mesh. Where there are several processes, all must call. A model of `from_nnx` has no config: its factory is
        given to `load_model` again.

        Args:
            filepath: a folder, which is made.
            overwrite: whether a model that is there is replaced.

        Raises:
            ConfigError: a layer or an argument of a constructor cannot be written down.
            CheckpointError: the path cannot hold it, or it exists and is not to be replaced.
            ModelError: the weights are not born yet.
            OSError: it cannot be written.

        Differs from Keras: a folder instead of a zip file, and a file of arrays for each device instead of HDF5. What
        `compile` was given and cannot be written down is left out, with a warning.

        Example:
            >>> import pathlib, tempfile
            >>> import keras_dist as kd
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "digits"
            >>> model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(10, name="d1")])
            >>> model.save(path)
            >>> [weight.path for weight in kd.models.load_model(path).weights]
            ['d1/kernel', 'd1/bias']

        Source: `keras.Model.save`.
        """
        save(self, filepath, overwrite)

    def snapshot(self) -> Snapshot:
        """All that a training needs to go on: weights, statistics, slots, random streams; and how far `fit` has come.

        While `fit` runs, that is the batch, the states of loss and metrics, and what the callbacks need; a
        `CheckpointManager` writes it. The next step consumes its arrays.

        Raises:
            ModelError: the weights are not born yet; or `fit` runs in another thread, where only its callbacks know
                between which two batches it is.
        """
        session = self._born()
        return snapshot(session, session.trainer.progress, {})

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """A context in which steps of other threads wait, so that none consumes the arrays of a `snapshot`.

        Raises:
            ModelError: the weights are not born yet.
        """
        with self._born().cell.lock:
            yield

    def restore(self, stored: Stored, continue_training: bool = False) -> None:
        """Take over a state that `snapshot` gave, on the mesh of this model.

        Args:
            stored: a checkpoint, as `CheckpointManager.newest` finds it. It may come from another mesh.
            continue_training: whether the `fit` that is about to begin goes on where that one was; callbacks ask for it
                in `on_train_begin`.

        Raises:
            CheckpointError: the variables or slots are not those of the model; all that are wrong are listed, and the
                model stays as it is. Or arrays cannot be read, though all files are as they were written: where that
                is found late, arrays of a large model are gone then, and it is to be restored again.
            ModelError: there is no `fit` to be continued, or it has other batches, loss or metrics; the model stays as
                it is.
        """
        restore(self.name, self._born(), stored, continue_training)

    def export(
        self,
        filepath: str | os.PathLike[str],
        format: str = FORMAT,
        verbose: bool | None = None,
        input_signature: Any = None,
        *,
        batch_size: int | None = None,
        platforms: str | Sequence[str] | None = None,
    ) -> None:
        """Write what `predict` computes as a program that runs without this model's code, and the weights beside it.

        It is for one device, wherever the model lives: weights are gathered, whole, on the host. Where there are
        several processes, all must call; the first one writes, and the others wait for it and raise what it does.
        Batches may be of any size, as may other dims that the model knows no size of. `kd.export` tells what is in the
        folder, and `kd.export.load` calls it.

        Args:
            filepath: a folder; nothing may be there yet, and the folder around it must exist.
            format: `"jax_export"`, a program of StableHLO.
            verbose: whether to print where it was written.
            input_signature: shapes and dtypes of the inputs, None for dims of any size: an `InputSpec`, or anything
                else with `shape` and `dtype`, in the structure of the inputs; one in a list stands for itself. By
                default those that the model was born for; models of `from_nnx` need it.
            batch_size: the size of all batches; None for any.
            platforms: of `cpu`, `cuda`, `rocm` and `tpu`. By default cpu, cuda and tpu; where that fails this one
                alone, with a warning.

        Raises:
            ModelError: something is at the path, the weights are not born yet, it is not known what the model takes, an
                argument cannot be used, or the model cannot be lowered so: for batches of any size, the error asks for
                `batch_size`.
            OSError: a file cannot be written.

        Differs from Keras: the format, and that nothing is replaced.

        Source: `keras.Model.export`; `jax.export`.
        """
        export(self, filepath, format, verbose, input_signature, batch_size, platforms)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """How the model is made again, on the distribution that is current then, with the state of its optimizer.

        Raises:
            ConfigError: it cannot be written down.
            ModelError: there are several processes.

        Source: `keras.src.saving.keras_saveable.KerasSaveable.__reduce__`.
        """
        del protocol
        return reduced(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A model of its own, on the same distribution."""
        del memo
        return copied(self)

    def __copy__(self) -> Any:
        return copied(self)

    # How it comes to be

    @property
    def _session(self) -> Session | None:
        return self._outside.session

    @property
    def _choices(self) -> Choices | None:
        return self._outside.choices

    @property
    def _symbols(self) -> tuple[Any, Any] | None:
        return None if self._graph is None else (self._graph.inputs, self._graph.outputs)

    @property
    def _casts_inputs(self) -> bool:
        # a functional model casts them to what its symbolic inputs are
        return self.autocast and self._graph is None

    @property
    def _may_add_losses(self) -> bool:
        """Whether its layers, regularizers and `compute_loss` count: not for foreign modules."""
        return self._session is None or self._outside.binding is not None

    def _born(self, *args: Any, **kwargs: Any) -> Session:
        """The session of the model; its weights are born now, if need be, for inputs like these."""
        return born(self, args, kwargs)

    def _build_for(self, tensors: Any) -> None:
        """Give birth to the weights, for inputs like these symbolic tensors."""
        if self._session is None:
            self._give_birth((tensors,), {})

    def _give_birth(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Session:
        return give_birth(self, args, kwargs)

    def _choose(self, choices: Choices) -> None:
        """Train as `compile` says."""
        self._outside.choices = choices
        if self._session is not None:
            self._session.compile(choices)

    def _check_compiled(self, method: str) -> None:
        """Check that the model is compiled.

        Raises:
            ModelError: it is not.
        """
        if self._choices is None:
            raise not_compiled(method)

    def _compiled(self, method: str, x: Any = None) -> Session:
        """The session of the model, which is compiled.

        Raises:
            ModelError: it is not.
        """
        self._check_compiled(method)
        return self._born(x)

    def _check_idle(self, method: str) -> None:
        if self._session is not None:
            self._session.check_idle(method)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(size is None or isinstance(size, int | np.integer) for size in value)


def _one_or_all(shapes: list[Any]) -> Any:
    return shapes[0] if len(shapes) == 1 else shapes
