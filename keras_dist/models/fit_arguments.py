"""Conversion of the arguments of `fit`, `evaluate` and `predict` to batches, epochs and callbacks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from keras_dist import random
from keras_dist._support.arguments import check_int, check_number, check_option, is_int
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import PyTree
from keras_dist.callbacks import Callback, CallbackList, History
from keras_dist.callbacks.terminate_on_nan import warns_of_nan
from keras_dist.config.settings import limited, max_epochs, max_steps_per_epoch
from keras_dist.data.adapters import Source, is_data_set, source_of, unpack_or_inputs
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import BatchKeys
from keras_dist.data.batching import Batching, Streaming, Validation
from keras_dist.data.conversion import OF_BATCHES, Arrays, are_batches, check_batch_size, weights_of_classes
from keras_dist.data.streams import StreamSource
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import DataError, DistributionError, ModelError, shorten
from keras_dist.models.model_base import ModelBase
from keras_dist.training.activations import resolve_remat
from keras_dist.training.loop import Mode
from keras_dist.training.step import ModuleCall

Examples = Batching | Streaming


def batching(
    source: Source, batch_size: Any, steps: Any, size_argument: str = "batch_size", steps_argument: str = "steps"
) -> Batching | Streaming:
    """Divide a source into batches of `batch_size`, 32 by default, or into `steps` batches."""
    if steps is not None:
        steps = check_steps(steps_argument, steps)
    if isinstance(source, StreamSource):
        if batch_size is not None:
            given = f"{size_argument}={shorten(batch_size)}, {source.title}"
            fix = f"leave out {size_argument}, or let the source make larger or smaller batches"
            error = DataError(f"`{size_argument}` cannot be given beside batches", given=given, fix=fix)
            # Keras ignores it; its guides pass it with a PyDataset and a DataLoader of torch
            warn(f"{error}; it is ignored")
        return Streaming(source, limited(steps_argument, steps, max_steps_per_epoch()), steps_argument)
    default = 32 if steps is None else -(-source.length // steps)
    batch_size = check_batch_size(batch_size, size_argument, default)
    if steps is None and source.length <= batch_size * (max_steps_per_epoch() or 0):
        return Batching(source, batch_size)
    return Batching(source, batch_size, limited(steps_argument, steps, max_steps_per_epoch()))


def source(
    model: ModelBase, x: Any, y: PyTree = None, sample_weight: PyTree = None, only_inputs: bool = False
) -> Source:
    """Return the source of examples, with inputs transformed by the model's host layers."""
    return source_of(x, y, sample_weight, prepare=prepare_of(model), keys=keys_of(model, only_inputs))


def keys_of(model: ModelBase, only_inputs: bool = False) -> BatchKeys | None:
    """Return the argument `batch_keys` of `compile`."""
    keys = model._compile_config.batch_keys
    return keys.of_inputs() if only_inputs and keys is not None else keys


def arrays_of_batch(
    model: ModelBase, x: PyTree, y: PyTree = None, sample_weight: PyTree = None, only_inputs: bool = False
) -> tuple[PyTree, PyTree, PyTree]:
    """Return the inputs of the compiled part of the model, the targets and the weights of a batch."""
    keys = keys_of(model, only_inputs)
    if keys is not None and y is None and sample_weight is None:
        x, y, sample_weight = unpack_or_inputs(x, keys, "the batch")
    return model._prepared(x), y, sample_weight


def prepare_of(model: ModelBase) -> Callable[[PyTree], PyTree] | None:
    """Return the transformation of inputs by the model's host layers; None without host layers."""
    return model._prepared if model._has_host_part else None


def training_sources(
    model: ModelBase,
    arrays: tuple[Any, PyTree, PyTree],
    class_weight: Mapping[int, float] | None,
    validation_split: float,
    validation_data: Any,
) -> tuple[Source, Source | None]:
    """Return the examples for training and for validation."""
    check_number("validation_split", validation_split, 0, below=1, example=0.2, error=DataError)
    examples, validation = source(model, *arrays), None
    if validation_data is not None:
        inputs = None if model._graph is None else len(jax.tree.leaves(model._graph.inputs))
        validation = validation_source(validation_data, prepare_of(model), keys_of(model), inputs)
    elif validation_split:
        examples, validation = split_source(examples, validation_split)
    return weighted_by_class(examples, class_weight), validation


def weighted_by_class(source: Source, class_weight: Mapping[int, float] | None) -> Any:
    """Return the source with example weights multiplied by class weights."""
    if class_weight is None:
        return source
    if isinstance(source, StreamSource):
        return source.weighted(class_weight)
    if not isinstance(source, ArraySource):
        raise _not_in_memory("class_weight", source)
    x, y, sample_weight = source.arrays
    return ArraySource(x, y, weights_of_classes(y, class_weight, sample_weight), source.name)


def split_source(source: Source, validation_split: float) -> tuple[ArraySource, ArraySource]:
    """Split off the last rows for validation."""
    if not isinstance(source, ArraySource):
        raise _not_in_memory("validation_split", source)
    at = math.floor(source.length * (1.0 - validation_split))
    if at in (0, source.length):
        summary = "`validation_split` leaves no rows to train on" if at == 0 else "`validation_split` takes no rows"
        given = f"validation_split={validation_split} of {source.length} rows"
        raise DataError(summary, given=given, fix="another part, or more examples")
    return source.split(at)


def validation(source: Source | None, fit_size: Any, batch_size: Any, steps: Any, freq: Any) -> Validation | None:
    """Return the validation examples and their epochs; None without examples."""
    epochs = freq if isinstance(freq, list) else [freq]
    if not epochs or not all(is_int(epoch, 1) for epoch in epochs):
        summary = "`validation_freq` must be an integer of at least 1, or a list of epochs, counted from 1"
        fix = "for example validation_freq=2, or [1, 10] for the first and the tenth epoch"
        raise ModelError(summary, given=f"validation_freq={shorten(freq)}", fix=fix)
    freq = list(map(int, epochs)) if isinstance(freq, list) else int(freq)
    if source is None:
        return None
    if batch_size is None and not isinstance(source, StreamSource):
        batch_size = fit_size
    return Validation(batching(source, batch_size, steps, "validation_batch_size", "validation_steps"), freq)


def validation_source(
    validation_data: Any,
    prepare: Callable[[PyTree], PyTree] | None = None,
    keys: BatchKeys | None = None,
    inputs: int | None = None,
) -> Source:
    """Return the examples of `validation_data`, for a model with this number of inputs."""
    if is_data_set(validation_data) or (keys is not None and isinstance(validation_data, Mapping)):
        return source_of(validation_data, name="validation ", prepare=prepare, keys=keys)
    fits = isinstance(validation_data, tuple | list) and len(validation_data) in (2, 3)
    is_list = are_batches(validation_data) and not (fits and inputs in (None, len(validation_data[0])))
    if is_list or not fits:
        raise DataError(
            "`validation_data` must be (x, y), (x, y, sample_weight) or a data set",
            given=f"{type(validation_data).__name__}"
            + (f" of length {len(validation_data)}" if isinstance(validation_data, tuple | list) else "")
            + (", whose items are tuples, as batches are" if is_list else ""),
            fix=OF_BATCHES if is_list else "fit(..., validation_data=(x_test, y_test))",
        )
    x, y, *weights = validation_data
    return source_of(x, y, *weights, name="validation ", prepare=prepare)


def _not_in_memory(argument: str, source: Source) -> DataError:
    given = f"{argument}, and {type(source).__name__} of {source.title}"
    fix = "split the dataset, or let it return sample weights"
    return DataError(f"`{argument}` is for arrays", given=given, fix=fix)


def checked_seed(model: ModelBase, mode: Mode, seed: Any, call: ModuleCall | None = None) -> int | None:
    """Return `seed`; raise if the step of this mode draws nothing from the `rngs` of a call."""
    if seed is None:
        return None
    source = model._record.source
    takes_rngs = source is not None and source.call is not None and not model._record.keras_model
    if call is None and (not takes_rngs or model._compile_config.is_own(mode)):
        given = f"seed={shorten(seed)}, a model that does not draw from the `rngs` of a call"
        fix = "draw from the `rngs` of a call; reset layers with a seed by seed_generator.state.assign((1, 0))"
        raise ModelError("`seed` has no effect on this model", given=given, fix=fix)
    return random.check_seed(seed)


def callback_list(
    model: ModelBase,
    callbacks: Iterable[Callback] | Callback | None,
    verbose: int | str,
    examples: Examples,
    epochs: int = 1,
    add_history: bool = False,
) -> CallbackList:
    """Return the callbacks with a history and progress bar, set up for the model."""
    check_option("verbose", verbose, (0, 1, 2, "auto"))
    params = {"verbose": verbose, "epochs": epochs, "steps": examples.steps_of_epoch}
    if not isinstance(callbacks, CallbackList):
        return CallbackList(callbacks, add_history, bool(verbose), model, **params)
    if add_history and callbacks.history is None:
        callbacks.append(History())
    callbacks.set_params(params)
    callbacks.set_model(model)
    return callbacks


def shapes_of_batch(examples: Examples, processes: int) -> Arrays:
    """Return the shapes of a batch of training examples that each of these processes has."""
    like = examples.source.like
    rows = examples.batch_size if isinstance(examples, Batching) else len(jax.tree.leaves(like)[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows * processes, *leaf.shape[1:]), leaf.dtype), like)


def keras_result(model: ModelBase, method: str, values: dict[str, float], return_dict: bool) -> Any:
    """Return logs in the form of Keras: a dict, a single value, or a list. Warn if the loss is NaN."""
    warns_of_nan(model, values, method)
    if return_dict:
        return values
    return next(iter(values.values())) if len(values) == 1 else list(values.values())


def check_steps(argument: str, value: Any, alternative: str = "None") -> int:
    """Check and return a number of steps."""
    return check_int(argument, value, 1, alternative=alternative, example=10)


def epoch_range(initial_epoch: Any, epochs: Any) -> range:
    """Return the range of epochs from `initial_epoch` to `epochs`."""
    first = check_int("initial_epoch", initial_epoch, 0)
    last = check_int("epochs", epochs, 0, example=3)
    return range(first, limited("epochs", last, max_epochs()))


def find_layout(model: ModelBase, examples: Examples) -> None:
    """Find the layout of a model without weights that was created under `AutoParallel`, from its examples."""
    asked: Any = model._record.made_under or current_distribution()
    if model._built is not None or asked is None or not asked.is_searched:
        return
    if not isinstance(examples, Batching):
        summary = "AutoParallel: the shapes of the batches are not known in advance"
        fix = "pass arrays; or make the model under distribution.search(factory, (x, y), optimizer, loss).distribution"
        raise DistributionError(summary, given=f"{examples.source.title}", fix=fix)
    rows = min(examples.batch_size, examples.source.length)
    batch = examples.source.gather(np.arange(rows), rows).arrays
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)
    found, record = asked.search(model, shapes), model._record
    record.made_under = found.distribution
    if found.best.remat is not None and record.compile_config is not None:
        record.compile_config = dataclasses.replace(record.compile_config, remat=resolve_remat(found.best.remat))
