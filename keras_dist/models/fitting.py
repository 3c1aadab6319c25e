"""Compile, fit, evaluate and predict, as functions of a model: from its arguments to its session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from keras_dist import optimizers, random
from keras_dist._arguments import check_callable, check_option
from keras_dist.callbacks import Callback, CallbackList, History
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batching import Batching, Streaming, Validation
from keras_dist.errors import ModelError
from keras_dist.mixed_precision import with_loss_scale
from keras_dist.models.arguments import step_options, weighted_arrays
from keras_dist.models.session import Session
from keras_dist.training.choices import Choices
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.objective import Objective, resolve_objective
from keras_dist.training.optimization import DEFAULT, as_optimizer
from keras_dist.training.outputs import Outputs
from keras_dist.training.rematerialisation import resolve_remat
from keras_dist.training.step import ModuleCall

if TYPE_CHECKING:
    from keras_dist.models.model import Model

Callbacks = Iterable[Callback] | Callback | None
Examples = Batching | Streaming


def compile(model: Model, arguments: Mapping[str, Any]) -> None:
    """Train the model as the arguments of `compile` say."""
    model._check_idle("compile")
    model._choose(_choices(model, arguments))


def _choices(model: Model, arguments: Mapping[str, Any]) -> Choices:
    """The arguments of `compile`, checked and with names resolved."""
    options = step_options(**{name: arguments[name] for name in _STEP_OPTIONS})
    train_step = arguments["train_step"] or getattr(model, "train_step", None)
    metrics = arguments["metrics"], arguments["weighted_metrics"]
    objective = _objective(model, train_step, arguments["loss"], arguments["loss_weights"], *metrics)
    optimizer, scales = arguments["optimizer"], check_option("auto_scale_loss", arguments["auto_scale_loss"], _BOOLS)
    if not isinstance(optimizer, Mapping) or optimizers.is_config(optimizer):
        optimizer = optimizers.get(optimizer)
    if scales:
        optimizer = with_loss_scale(optimizer, model.dtype_policy)
    if not isinstance(optimizer, Mapping):
        optimizer = as_optimizer(optimizer, DEFAULT)
    has_metrics = objective is not None and any(given is not None for given in metrics)
    measured = ModelMetrics(objective.all_metrics if objective is not None and has_metrics else None)
    return Choices(arguments, optimizer, objective, train_step, measured, options, resolve_remat(arguments["remat"]))


_BOOLS = (False, True)
_STEP_OPTIONS = ("run_eagerly", "steps_per_execution", "jit_compile", "donate", "check", "prefetch")


def _objective(
    model: Model, train_step: Any, loss: Any, loss_weights: Any, metrics: Any, weighted_metrics: Any
) -> Objective | None:
    """Loss and metrics; None where a train step needs none."""
    if loss is None and train_step is None and not model._may_add_losses:
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
        if loss is None:
            return None
    names, is_known = model.output_names, model._graph is not None
    if is_known:
        names = Outputs(model.output, names).names
    is_list = is_known and isinstance(model.output, list | tuple)
    return resolve_objective(loss, loss_weights, metrics, weighted_metrics, names, is_known, is_list)


def fit(
    model: Model,
    examples: Examples,
    epochs: range,
    validation: Validation | None,
    shuffle: bool,
    seed: int | None,
    callbacks: Callbacks,
    verbose: Any,
) -> History:
    """Train for the epochs; see `Model.fit`."""
    examples.check_passes(len(epochs))
    check_option("shuffle", shuffle, _BOOLS)
    if validation is not None:
        validation.check_passes(epochs)
    session = _ready_to_train(model, "fit", examples.source.x)
    if validation is not None:
        session.objective("fit with validation")
    shuffle_key = session.next_shuffle_key() if seed is None else (random.check_seed(seed),)
    hooks = _hooks(model, callbacks, verbose, examples, epochs.stop, add_history=True)
    model._outside.history = hooks.history
    with session.cell.training():
        hooks.history.timing = session.trainer.fit(
            examples, epochs, shuffle_key if shuffle else None, validation, hooks
        )
    session.warn_of_trainable()
    return hooks.history


def evaluate(model: Model, examples: Examples, callbacks: Callbacks, verbose: Any, return_dict: bool) -> Any:
    """Loss and metrics over the examples; see `Model.evaluate`."""
    session = model._compiled("evaluate", examples.source.x)
    session.objective("evaluate")
    return _keras_result(session.trainer.evaluate(examples, _hooks(model, callbacks, verbose, examples)), return_dict)


def predict(
    model: Model, examples: Examples, callbacks: Callbacks, verbose: Any, call: ModuleCall | None = None
) -> Any:
    """The outputs for the examples; see `Model.predict`."""
    session = model._born(examples.source.x)
    return session.trainer.predict(examples, _hooks(model, callbacks, verbose, examples), call)


def train_on_batch(model: Model, arrays: tuple[Any, Any, Any], class_weight: Any, return_dict: bool) -> Any:
    """One step of training on these rows; see `Model.train_on_batch`."""
    session = _ready_to_train(model, "train_on_batch", arrays[0])
    source = weighted_arrays(ArraySource(*arrays), class_weight)
    with session.cell.training():
        return _keras_result(session.trainer.train_batch(source), return_dict)


def test_on_batch(model: Model, arrays: tuple[Any, Any, Any], return_dict: bool) -> Any:
    """Loss and metrics of these rows; see `Model.test_on_batch`."""
    session = model._compiled("test_on_batch", arrays[0])
    session.objective("test_on_batch")
    return _keras_result(session.trainer.test_batch(ArraySource(*arrays)), return_dict)


def predict_on_batch(model: Model, x: Any) -> Any:
    """The outputs for these rows; see `Model.predict_on_batch`."""
    return model._born(x).trainer.predict_batch(ArraySource(x))


def lower_train_step(model: Model, arrays: tuple[Any, Any, Any]) -> jax.stages.Lowered:
    """The train step for these rows, lowered; see `Model.lower_train_step`."""
    return model._compiled("lower_train_step", arrays[0]).trainer.lower_train(ArraySource(*arrays))


def _ready_to_train(model: Model, method: str, x: Any) -> Session:
    """The session of a compiled model, on the current distribution."""
    session = model._compiled(method, x)
    session.check_current_distribution(method)
    session.warn_of_trainable()
    return session


def _hooks(
    model: Model,
    callbacks: Callbacks,
    verbose: Any,
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


def _keras_result(values: dict[str, float], return_dict: bool) -> Any:
    if return_dict:
        return values
    return next(iter(values.values())) if len(values) == 1 else list(values.values())
