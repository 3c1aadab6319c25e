"""Compile, fit, evaluate and predict, as functions of a model: from its arguments to its session."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from keras_dist import optimizers, random
from keras_dist._support.arguments import (
    check_int,
    check_number,
    check_option,
    is_int,
)
from keras_dist._support.types import PyTree
from keras_dist.callbacks import Callback, CallbackList, History
from keras_dist.config.settings import limited, max_epochs, max_steps_per_epoch
from keras_dist.data.adapters import Source, is_data_set, source_of, unpack_or_inputs
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import BatchKeys, check_batch_keys
from keras_dist.data.batching import Batching, Streaming, Validation
from keras_dist.data.conversion import OF_BATCHES, are_batches, check_batch_size, weights_of_classes
from keras_dist.data.streams import StreamSource
from keras_dist.distribution import lint
from keras_dist.errors import DataError, ModelError, shorten
from keras_dist.models.automatic_layout import find_layout
from keras_dist.models.built_model import BuiltModel
from keras_dist.models.step_methods import steps_of
from keras_dist.optimizers.loss_scale import with_loss_scale
from keras_dist.training.compile_config import CompileConfig, StepOptions
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.loop import Mode
from keras_dist.training.objective import Objective, resolve_objective
from keras_dist.training.optimization import DEFAULT, as_optimizer
from keras_dist.training.outputs import Outputs
from keras_dist.training.rematerialisation import resolve_remat
from keras_dist.training.report import check_report
from keras_dist.training.step import ModuleCall, TrainStep

if TYPE_CHECKING:
    from keras_dist.models.trainer import Trainer

Callbacks = Iterable[Callback] | Callback | None
Examples = Batching | Streaming


def compile(model: Trainer, arguments: Mapping[str, Any]) -> None:
    """Train the model as the arguments of `compile` say."""
    check_idle(model, "compile")
    source = model._runtime.keras_model
    if source is not None and _are_defaults(model, arguments):
        arguments = {**arguments, **source.compile_arguments()}
    model._runtime.choices = choices = _choices(model, arguments)
    if model._session is not None:
        model._session.compile(choices)


def _are_defaults(model: Trainer, arguments: Mapping[str, Any]) -> bool:
    """Whether `compile` was called without arguments."""
    parameters = inspect.signature(model.compile).parameters
    return all(arguments[name] is parameter.default for name, parameter in parameters.items())


def check_idle(model: Trainer, method: str) -> None:
    """Check that the model is not training."""
    if model._session is not None and model._session.cell.is_training:
        given = f"{method} in a callback, or in another thread, while the model trains"
        fix = f"end the training with model.stop_training = True, and call {method} after it"
        raise ModelError(f"{method}: fit is running", given=given, fix=fix)


def _choices(model: Trainer, arguments: Mapping[str, Any]) -> CompileConfig:
    """The arguments of `compile`, checked and with names resolved."""
    options = step_options(**{name: arguments[name] for name in _STEP_OPTIONS})
    train_step, protocol = steps_of(model, arguments["train_step"])
    metrics = arguments["metrics"], arguments["weighted_metrics"]
    is_own = protocol is not None and bool(protocol.steps.keys() & {"train", "test"})
    objective = _objective(model, train_step, is_own, arguments["loss"], arguments["loss_weights"], *metrics)
    optimizer, scales = arguments["optimizer"], check_option("auto_scale_loss", arguments["auto_scale_loss"], _BOOLS)
    if not isinstance(optimizer, Mapping) or optimizers.is_config(optimizer):
        optimizer = optimizers.get(optimizer)
    if scales:
        optimizer = with_loss_scale(optimizer, model.dtype_policy)
    if not isinstance(optimizer, Mapping):
        optimizer = as_optimizer(optimizer, DEFAULT)
    has_metrics = objective is not None and any(given is not None for given in metrics)
    measured = ModelMetrics(objective if has_metrics else None)
    remat = resolve_remat(arguments["remat"])
    has_own_step = train_step is not None or (protocol is not None and "train" in protocol.steps)
    report = check_report(arguments["report"], has_own_step)
    keys = check_batch_keys(arguments["batch_keys"])
    return CompileConfig(arguments, optimizer, objective, train_step, protocol, measured, options, remat, report, keys)


_BOOLS = (False, True)
_STEP_OPTIONS = ("run_eagerly", "steps_per_execution", "jit_compile", "donate", "check", "prefetch", "uneven")


def _objective(
    model: Trainer,
    train_step: TrainStep | None,
    is_own: bool,
    loss: PyTree,
    loss_weights: PyTree,
    metrics: PyTree,
    weighted_metrics: PyTree,
) -> Objective | None:
    """Loss and metrics; None where a pure train step needs none; `is_own`: a step of the user's may need either."""
    may_add = model._may_add_losses or model._runtime.keras_model is not None
    if loss is None and train_step is None and not is_own and not may_add:
        fix = 'for example model.compile("adam", loss="mse"), or a train_step of your own'
        raise ModelError("compile: `loss` is missing", given="loss=None, train_step=None", fix=fix)
    if loss is None and train_step is not None and (metrics or weighted_metrics):
        summary = "compile: nothing would update the metrics"
        fix = 'compile(..., loss="mse"), or leave out metrics and return them in the logs of train_step'
        raise ModelError(summary, given="metrics, and a train_step without a loss", fix=fix)
    if train_step is not None and loss is None:
        return None
    layer_names = model.output_names
    names = Outputs(model.output, layer_names).names if model._graph is not None else layer_names
    return resolve_objective(loss, loss_weights, metrics, weighted_metrics, names, layer_names)


def fit(
    model: Trainer,
    examples: Examples,
    epochs: range,
    validation: Validation | None,
    shuffle: bool,
    seed: int | None,
    callbacks: Callbacks,
    verbose: int | str,
    class_weight: Mapping[int, float] | None,
) -> History:
    """Train for the epochs; see `Model.fit`."""
    check_option("shuffle", shuffle, _BOOLS)
    if validation is not None:
        validation = validation.repeatable(epochs)
    model._check_compiled("fit")
    find_layout(model, examples)
    session = ready_to_train(model, "fit", examples.source.x)
    if validation is not None:
        check_measures(session, "fit with validation")
    shuffle_key = session.next_shuffle_key() if seed is None else (random.check_seed(seed),)
    hooks = _hooks(model, callbacks, verbose, examples, epochs.stop, add_history=True)
    model._runtime.history = hooks.history
    with session.cell.training():
        hooks.history.timing = session.trainer.fit(
            examples,
            epochs,
            shuffle_key if shuffle else None,
            validation,
            hooks,
            {"class_weight": None if class_weight is None else sorted(class_weight.items())},
        )
    session.warn_of_trainable()
    return hooks.history


def evaluate(
    model: Trainer, examples: Examples, callbacks: Callbacks, verbose: int | str, return_dict: bool, seed: Any
) -> Any:
    """Loss and metrics over the examples; see `Model.evaluate`."""
    session = model._compiled("evaluate", examples.source.x)
    check_measures(session, "evaluate")
    draw = session.next_draw(_checked_seed(model, "test", seed))
    values = session.trainer.evaluate(examples, _hooks(model, callbacks, verbose, examples), draw)
    return keras_result(values, return_dict)


def _checked_seed(model: Trainer, mode: Mode, seed: Any, call: ModuleCall | None = None) -> int | None:
    """`seed`, if it is None, or a seed and the step of this mode draws from the `rngs` of a call."""
    if seed is None:
        return None
    if call is None and (not model._takes_rngs or model._chosen().is_own(mode)):
        given = f"seed={shorten(seed)}, a model that does not draw from the `rngs` of a call"
        fix = "draw from the `rngs` of a call; layers with a seed begin anew after seed_generator.state.assign((1, 0))"
        raise ModelError("`seed` has no effect on this model", given=given, fix=fix)
    return random.check_seed(seed)


def check_measures(session: BuiltModel, method: str) -> None:
    """Check that there is a loss, or a test step of the user's own."""
    if session.choices is None or not session.choices.is_own("test"):
        session.objective(method)


def predict(
    model: Trainer,
    examples: Examples,
    callbacks: Callbacks,
    verbose: int | str,
    call: ModuleCall | None,
    local: bool,
    seed: Any,
) -> PyTree:
    """The outputs for the examples; see `Model.predict`."""
    check_option("local", local, _BOOLS)
    session = model._with_weights(examples.source.x)
    draw = session.next_draw(_checked_seed(model, "predict", seed, call))
    return session.trainer.predict(examples, _hooks(model, callbacks, verbose, examples), draw, call, local)


def ready_to_train(model: Trainer, method: str, x: Any) -> BuiltModel:
    """The session of a compiled model, on the current distribution."""
    session = model._compiled(method, x)
    session.check_current_distribution(method)
    session.warn_of_trainable()
    return session


def _hooks(
    model: Trainer,
    callbacks: Callbacks,
    verbose: int | str,
    examples: Examples,
    epochs: int = 1,
    add_history: bool = False,
) -> CallbackList:
    check_option("verbose", verbose, (0, 1, 2, "auto"))
    params = {"verbose": verbose, "epochs": epochs, "steps": examples.steps_of_epoch}
    if not isinstance(callbacks, CallbackList):
        return CallbackList(callbacks, add_history, bool(verbose), model, **params)
    if add_history and callbacks.history is None:
        callbacks.append(History())
    callbacks.set_params(params)
    callbacks.set_model(model)
    return callbacks


def keras_result(values: dict[str, float], return_dict: bool) -> Any:
    """What Keras returns for logs: the dict, the only value, or a list."""
    if return_dict:
        return values
    return next(iter(values.values())) if len(values) == 1 else list(values.values())


def batching(
    source: Source, batch_size: Any, steps: Any, size_argument: str = "batch_size", steps_argument: str = "steps"
) -> Batching | Streaming:
    """The source in batches of `batch_size` rows; for None of 32, or so many that `steps` of them are all."""
    if steps is not None:
        steps = check_steps(steps_argument, steps)
    if isinstance(source, StreamSource):
        if batch_size is not None:
            given = f"{size_argument}={shorten(batch_size)}, {source.title}"
            fix = f"leave out {size_argument}, or let the source make larger or smaller batches"
            error = DataError(f"`{size_argument}` cannot be given beside batches", given=given, fix=fix)
            # Keras ignores it, and its guides have it beside a PyDataset and a DataLoader of torch.
            warnings.warn(f"{error}; it is ignored", stacklevel=lint.frames_inside())
        return Streaming(source, limited(steps_argument, steps, max_steps_per_epoch()), steps_argument)
    default = 32 if steps is None else -(-source.length // steps)
    batch_size = check_batch_size(batch_size, size_argument, default)
    if steps is None and source.length <= batch_size * (max_steps_per_epoch() or 0):
        return Batching(source, batch_size)
    return Batching(source, batch_size, limited(steps_argument, steps, max_steps_per_epoch()))


def source(model: Trainer, x: Any, y: PyTree = None, sample_weight: PyTree = None, only_inputs: bool = False) -> Source:
    """The source of examples, whose inputs go through the layers of the model that run on the host."""
    return source_of(x, y, sample_weight, prepare=prepare_of(model), keys=keys_of(model, only_inputs))


def keys_of(model: Trainer, only_inputs: bool = False) -> BatchKeys | None:
    """The keys in batches that are dicts, as `compile` was given them; None without any."""
    keys = model._chosen().batch_keys
    return keys.of_inputs() if only_inputs and keys is not None else keys


def arrays_of_batch(
    model: Trainer, x: PyTree, y: PyTree = None, sample_weight: PyTree = None, only_inputs: bool = False
) -> tuple[PyTree, PyTree, PyTree]:
    """The inputs of the compiled part of the model, targets and weights of one batch, which may be one dict."""
    keys = keys_of(model, only_inputs)
    if keys is not None and y is None and sample_weight is None:
        x, y, sample_weight = unpack_or_inputs(x, keys, "the batch")
    return model._prepared(x), y, sample_weight


def prepare_of(model: Trainer) -> Callable[[PyTree], PyTree] | None:
    """What the layers of the model that run on the host make of inputs; None without any."""
    return model._prepared if model._has_host_part else None


def training_sources(
    model: Trainer,
    arrays: tuple[Any, PyTree, PyTree],
    class_weight: Mapping[int, float] | None,
    validation_split: float,
    validation_data: Any,
) -> tuple[Source, Source | None]:
    """The examples to train on, and those to validate with."""
    wrong = "is not a part of the examples"
    check_number("validation_split", validation_split, 0, below=1, wrong=wrong, example=0.2, error=DataError)
    examples, validation = source(model, *arrays), None
    if validation_data is not None:
        inputs = None if model._graph is None else len(jax.tree.leaves(model._graph.inputs))
        validation = validation_source(validation_data, prepare_of(model), keys_of(model), inputs)
    elif validation_split:
        examples, validation = split_source(examples, validation_split)
    return weighted_by_class(examples, class_weight), validation


def weighted_by_class(source: Source, class_weight: Mapping[int, float] | None) -> Any:
    """The source, of the same class, with the weights of classes as weights of examples; itself without any."""
    if class_weight is None:
        return source
    if isinstance(source, StreamSource):
        return source.weighted(class_weight)
    if not isinstance(source, ArraySource):
        raise _not_in_memory("class_weight", source)
    x, y, sample_weight = source.arrays
    return ArraySource(x, y, weights_of_classes(y, class_weight, sample_weight), source.name)


def split_source(source: Source, validation_split: float) -> tuple[ArraySource, ArraySource]:
    """The first rows, and the last ones, which are that part of all."""
    if not isinstance(source, ArraySource):
        raise _not_in_memory("validation_split", source)
    at = math.floor(source.length * (1.0 - validation_split))
    if at in (0, source.length):
        summary = "`validation_split` leaves no rows to train on" if at == 0 else "`validation_split` takes no rows"
        given = f"validation_split={validation_split} of {source.length} rows"
        raise DataError(summary, given=given, fix="another part, or more examples")
    return source.split(at)


def validation(source: Source | None, fit_size: Any, batch_size: Any, steps: Any, freq: Any) -> Validation | None:
    """What is evaluated after which epochs, in batches of `fit_size` unless told otherwise; None without examples."""
    freq = check_freq(freq)
    if source is None:
        return None
    if batch_size is None and not isinstance(source, StreamSource):
        batch_size = fit_size
    return Validation(batching(source, batch_size, steps, "validation_batch_size", "validation_steps"), freq)


def check_freq(validation_freq: Any) -> int | list[int]:
    """`validation_freq`, if it is a number of epochs or a list of epochs."""
    epochs = validation_freq if isinstance(validation_freq, list) else [validation_freq]
    if epochs and all(is_int(epoch, 1) for epoch in epochs):
        return [int(epoch) for epoch in epochs] if isinstance(validation_freq, list) else int(validation_freq)
    summary = "`validation_freq` must be an integer of at least 1, or a list of epochs, counted from 1"
    fix = "for example validation_freq=2, or [1, 10] for the first and the tenth epoch"
    raise ModelError(summary, given=f"validation_freq={shorten(validation_freq)}", fix=fix)


def validation_source(
    validation_data: Any,
    prepare: Callable[[PyTree], PyTree] | None = None,
    keys: BatchKeys | None = None,
    inputs: int | None = None,
) -> Source:
    """The examples of `validation_data`, for a model with so many inputs, if that is known."""
    if is_data_set(validation_data) or (keys is not None and isinstance(validation_data, Mapping)):
        return source_of(validation_data, name="validation ", prepare=prepare, keys=keys)
    fits = isinstance(validation_data, tuple | list) and len(validation_data) in (2, 3)
    is_list = are_batches(validation_data) and not (fits and inputs in (None, len(validation_data[0])))
    if is_list or not fits:
        raise DataError(
            "`validation_data` must be (x, y), (x, y, sample_weight) or a data set",
            given=f"{type(validation_data).__name__}"
            + (f" of length {len(validation_data)}" if isinstance(validation_data, tuple | list) else "")
            + (", each of whose items is a tuple, as a batch is" if is_list else ""),
            fix=OF_BATCHES if is_list else "fit(..., validation_data=(x_test, y_test))",
        )
    x, y, *weights = validation_data
    return source_of(x, y, *weights, name="validation ", prepare=prepare)


def _not_in_memory(argument: str, source: Source) -> DataError:
    given = f"{argument}, and {type(source).__name__} of {source.title}"
    fix = "let the data set do it: hold rows out, or give sample weights itself"
    return DataError(f"`{argument}` is for arrays", given=given, fix=fix)


def step_options(
    run_eagerly: Any, steps_per_execution: Any, jit_compile: Any, donate: Any, check: Any, prefetch: Any, uneven: Any
) -> StepOptions:
    """How the steps run."""
    for name, value in (("run_eagerly", run_eagerly), ("donate", donate), ("check", check)):
        check_option(name, value, _BOOLS)
    check_option("jit_compile", jit_compile, (True, False, "auto"))
    check_option("uneven", uneven, (None, "pad"))
    steps = None
    if not isinstance(steps_per_execution, str) or steps_per_execution != "auto":
        steps = check_steps("steps_per_execution", steps_per_execution, "'auto'")
    jit = not run_eagerly and jit_compile is not False
    ahead = check_steps("prefetch", prefetch, "")
    return StepOptions(steps, jit, bool(donate and not check), bool(check), ahead, uneven == "pad")


def check_steps(argument: str, value: Any, alternative: str = "None") -> int:
    """`value`, the value of `argument`, if it is a number of steps."""
    return check_int(argument, value, 1, wrong="is not a number of steps", alternative=alternative, example=10)


def epoch_range(initial_epoch: Any, epochs: Any) -> range:
    """The numbers of the epochs from `initial_epoch` to `epochs`."""
    first = check_int("initial_epoch", initial_epoch, 0, wrong="is not a number of epochs")
    last = check_int("epochs", epochs, 0, wrong="is not a number of epochs", example=3)
    return range(first, limited("epochs", last, max_epochs()))
