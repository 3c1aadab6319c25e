"""`fit`, `evaluate` and `predict`, and the same for single batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from keras_dist import random
from keras_dist._support.arguments import check_callable, check_option
from keras_dist._support.located_warnings import each_warning_once, warn
from keras_dist._support.types import PyTree
from keras_dist.callbacks import Callback, History
from keras_dist.data.arrays import ArraySource
from keras_dist.jobs.job import process_count
from keras_dist.models import fit_arguments
from keras_dist.models.model_base import ModelBase
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.loop import Mode
from keras_dist.training.step import ModuleCall


def fit(
    model: ModelBase,
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

    In a job all processes call it with the same examples. Each process gathers the rows of its devices, after a
    comparison that `check_data` of `initialize` chooses. Under a distribution with `auto_shard_dataset=False` each
    process passes its own examples instead: the same number of batches, of the same `batch_size`, which then counts
    rows of one process.

    Args:
        x: inputs: an array (examples, ...) of any library, a table or sparse matrix, lists of numbers, or a pytree
            of these. Or a dataset of batches `(x, y)` or `(x, y, sample_weight)`: a `PyDataset`, a
            `tf.data.Dataset`, a torch or grain loader, a generator or another iterable. Or an object with `__len__`
            and `__getitem__` that returns such examples.
        y: targets for inputs that are arrays: an array or a pytree of arrays.
        batch_size: rows of one step on all devices together; by default 32, or the size that divides the examples
            into `steps_per_epoch` batches. The last batch may be partial. Not for datasets of batches.
        epochs: the epoch at which training ends.
        verbose: 0 for silence, 1 or "auto" for a progress bar, 2 for a line for each epoch.
        callbacks: called in order; see `keras_dist.callbacks.Callback`.
        validation_split: part of the examples that is evaluated instead of trained on: the last ones before
            shuffling. Ignored with `validation_data`. For arrays only.
        validation_data: `(x, y)`, `(x, y, sample_weight)` or a dataset, evaluated after each epoch on the same
            batches: batches of a generator are kept in memory, unless it is evaluated only once.
        shuffle: whether the rows of arrays and examples, and the batches of a `PyDataset`, are shuffled in each
            epoch. Iterables keep their order.
        class_weight: weights of examples by class, for targets that are class indices or one-hot; by default 1.
            Used in training only.
        sample_weight: a weight for each example; for several outputs also a list or dict of weights.
        initial_epoch: the epoch at which training starts.
        steps_per_epoch: number of batches in an epoch. The next epoch continues where it stopped; it ends early,
            with a warning, if the data ends. Needed for endless data. Without it one pass over a generator is an
            epoch, after which training ends, with a warning if epochs remain.
        validation_steps: number of batches that are evaluated; by default all. Needed for a generator that is
            evaluated more than once. If there are fewer batches, a warning is shown.
        validation_batch_size: by default `batch_size`; not for datasets of batches.
        validation_freq: number of epochs between two evaluations, or a list of epochs, counted from 1.
        seed: fixes only the order of rows; by default it follows from the seed of the model.

    Returns:
        A `History` with the loss and metrics of each epoch, also available as `model.history`. The loss is the mean
        of the losses of the batches, weighted by their rows; for `"causal_lm"`, by the weights of their tokens. If
        other losses divide by weights of tokens, a weighted metric gives the mean over all tokens.

    Raises:
        ModelError: the model is not compiled, or an argument cannot be used.
        DistributionError: the current distribution is not the distribution of the model.
        DataError: the data cannot be batched, split or weighted.
    """
    model._check_compiled("fit")
    check_option("shuffle", shuffle, (False, True))
    numbers = fit_arguments.epoch_range(initial_epoch, epochs)
    source, held_out = fit_arguments.training_sources(
        model, (x, y, sample_weight), class_weight, validation_split, validation_data
    )
    examples = fit_arguments.batching(source, batch_size, steps_per_epoch, steps_argument="steps_per_epoch")
    validation = fit_arguments.validation(
        held_out, batch_size, validation_batch_size, validation_steps, validation_freq
    )
    if validation is not None:
        validation = validation.repeatable(numbers)
    fit_arguments.find_layout(model, examples)
    built = model._ready_to_train("fit", examples.source.x)
    if validation is not None:
        built.check_measures("fit with validation")
    shuffle_key = built.next_shuffle_key() if seed is None else (random.check_seed(seed),)
    hooks = fit_arguments.callback_list(model, callbacks, verbose, examples, numbers.stop, add_history=True)
    model._record.history = hooks.history
    processes = 1 if built.distribution.auto_shard_dataset else process_count()
    model._record.batch = fit_arguments.shapes_of_batch(examples, processes)
    facts = {"class_weight": None if class_weight is None else sorted(class_weight.items())}
    with built.cell.training(), each_warning_once():
        hooks.history.timing = built.step_runner.fit(
            examples, numbers, shuffle_key if shuffle else None, validation, hooks, facts
        )
    built.warn_of_trainable()
    return hooks.history


def history(model: ModelBase) -> History | None:
    """The `History` of the last `fit`, complete or interrupted; None before the first."""
    return model._record.history


def evaluate(
    model: ModelBase,
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
        x: inputs, or a dataset; see `fit`.
        y: targets of arrays.
        batch_size: rows of one step; by default 32, or the size that divides the examples into `steps` batches.
        verbose: 0 for silence, 1 or "auto" for a progress bar.
        sample_weight: a weight for each example.
        steps: number of batches; by default all.
        callbacks: called in order.
        return_dict: whether to return a dict by name.
        seed: fixes the `rngs` of the `call` of a `from_nnx` model; by default they follow from the seed of the
            model and differ in each call of `evaluate`. See `predict`.

    Returns:
        The loss; with metrics the list `[loss, *metrics]`; with `return_dict` a dict. The loss is the mean of the
        losses of the batches, weighted by their rows; for `"causal_lm"`, by the weights of their tokens.

    Raises:
        ModelError: the model is not compiled with a loss, or an argument cannot be used.
        DistributionError: the model is on one device, and the current distribution is another one.
        DataError: the data cannot be batched.

    Differs from Keras: `seed`.
    """
    model._check_compiled("evaluate")
    examples = fit_arguments.batching(fit_arguments.source(model, x, y, sample_weight), batch_size, steps)
    built = _on_its_mesh(model, "evaluate", examples.source.x)
    built.check_measures("evaluate")
    draw = built.next_draw(fit_arguments.checked_seed(model, "test", seed))
    hooks = fit_arguments.callback_list(model, callbacks, verbose, examples)
    with each_warning_once():
        values = built.step_runner.evaluate(examples, hooks, draw)
    return fit_arguments.keras_result(model, "evaluate", values, return_dict)


def predict(
    model: ModelBase,
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
    """Return the outputs for all examples, in order, as NumPy arrays; equal in all processes of a job.

    If each process passes its own examples (`auto_shard_dataset=False`), the outputs contain the rows of all
    processes in the order of the batches; `data.process_rows` returns the rows of each process.

    An output whose first dim is not the rows of the batch, such as a scalar or a table, has an entry for each
    batch: `(batches, ...)`, also for one batch. `predict_on_batch` returns it unchanged. A table that is as long as
    every batch is taken for rows; use another `batch_size` to distinguish them.

    Args:
        x: inputs, or a dataset whose targets are ignored; see `fit`.
        batch_size, verbose, steps, callbacks: as in `evaluate`.
        call: `call(module, x, training, rngs) -> y_pred`, used instead of the call of the model: another method of
            the same weights; see `from_nnx`. Each function is compiled once: define it outside of loops.
        local: whether a process of a job returns only the outputs for its own rows (`data.process_rows`), which are
            then not transferred.
        seed: fixes the `rngs` of `call`; by default they follow from the seed of the model and differ in each call
            of `predict`. Each batch has its own `rngs`, equal on every mesh: random numbers depend on the seed and
            on `batch_size`. Layers with seed generators do not draw from `rngs`.

    Raises:
        ModelError: an output has neither rows nor one shape in all batches, or an argument cannot be used.
        DistributionError: the model is on one device, and the current distribution is another one.
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
    """
    if call is not None:
        check_callable("call", call, "module, x, training, rngs")
    check_option("local", local, (False, True))
    examples = fit_arguments.batching(fit_arguments.source(model, x, only_inputs=True), batch_size, steps)
    built = _on_its_mesh(model, "predict", examples.source.x)
    draw = built.next_draw(fit_arguments.checked_seed(model, "predict", seed, call))
    hooks = fit_arguments.callback_list(model, callbacks, verbose, examples)
    return built.step_runner.predict(examples, hooks, draw, call, local)


def train_on_batch(
    model: ModelBase,
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
        DistributionError: the current distribution is not the distribution of the model.
        DataError: the rows cannot be batched.

    Differs from Keras: values are for this batch, not means since the last `reset_metrics`.
    """
    x, y, sample_weight = fit_arguments.arrays_of_batch(model, x, y, sample_weight)
    built = model._ready_to_train("train_on_batch", x)
    source = fit_arguments.weighted_by_class(ArraySource(x, y, sample_weight), class_weight)
    with built.cell.training():
        values = built.step_runner.train_batch(source)
    return fit_arguments.keras_result(model, "train_on_batch", values, return_dict)


def test_on_batch(
    model: ModelBase, x: Any, y: PyTree = None, sample_weight: PyTree = None, return_dict: bool = False
) -> Any:
    """Compute the loss and the metrics of a batch; see `evaluate`."""
    x, y, sample_weight = fit_arguments.arrays_of_batch(model, x, y, sample_weight)
    model._check_compiled("test_on_batch")
    built = _on_its_mesh(model, "test_on_batch", x)
    built.check_measures("test_on_batch")
    values = built.step_runner.test_batch(ArraySource(x, y, sample_weight), built.next_draw())
    return fit_arguments.keras_result(model, "test_on_batch", values, return_dict)


def predict_on_batch(model: ModelBase, x: Any, *, local: bool = False) -> PyTree:
    """Return the outputs for a batch; see `predict`."""
    check_option("local", local, (False, True))
    x, _, _ = fit_arguments.arrays_of_batch(model, x, only_inputs=True)
    built = _on_its_mesh(model, "predict_on_batch", x)
    return built.step_runner.predict_batch(ArraySource(x), built.next_draw(), local)


def lower_train_step(model: ModelBase, x: Any, y: PyTree = None, sample_weight: PyTree = None) -> jax.stages.Lowered:
    """Lower the train step for a batch without running it; `.compile()` shows its memory and collectives.

    Raises:
        ModelError: the model is not compiled.
    """
    x, y, sample_weight = fit_arguments.arrays_of_batch(model, x, y, sample_weight)
    return model._compiled_model("lower_train_step", x).step_runner.lower(ArraySource(x, y, sample_weight))


def _on_its_mesh(model: ModelBase, method: str, x: Any) -> BuiltModel:
    """Return the built model; raise if it is on one device, and the current distribution is another one."""
    built = model._with_weights(x)
    if built.cell.mesh.size == 1:
        built.check_current_distribution(method)
    return built


def ready_to_train(model: ModelBase, method: str, x: Any) -> BuiltModel:
    """Return the built model before training; warn of changes that training does not follow."""
    built = model._compiled_model(method, x)
    built.check_current_distribution(method)
    built.warn_of_trainable()
    if built.lost_steps and not any(_steps_taken(model, built)):
        way = "`optimizer.iterations.assign(steps)` before it continues a schedule of its learning rate"
        warn(f"{method}: the optimizer starts again without its state, since merge_lora; {way}")
    built.lost_steps = False
    return built


def _steps_taken(model: ModelBase, built: BuiltModel) -> list[int]:
    return [int(getattr(one, "iterations", built.cell.state.step)) for one in model.optimizers.values()]


def stop_flag(mode: Mode, method: str) -> Any:
    """Return the attribute that ends the running `method` after the current step."""

    def stops_of(model: Any) -> set[Mode]:
        # without weights, callbacks that are called by hand have set it
        return model._record.stops if model._built is None else model._built.step_runner.stops

    def get(self: Any) -> bool:
        return mode in stops_of(self)

    def put(self: Any, value: Any) -> None:
        stops = stops_of(self)
        (stops.add if value else stops.discard)(mode)

    return property(get, put, doc=f"Whether `{method}` ends after the current step. Callbacks set it for this run.")
