"""The training state of a model, as one value and as a module, and pure functions of it."""

from __future__ import annotations

from typing import Any

from flax import nnx

from keras_dist._support.types import PyTree
from keras_dist.layers.base.module_precision import follow
from keras_dist.models.model_base import ModelBase
from keras_dist.training import optimization
from keras_dist.training.optimization import TrainState


def state(model: ModelBase) -> TrainState:
    """A copy of the training state. Later training does not change or delete it."""
    return model._with_weights().cell.copy_of_state()


def module(model: ModelBase) -> Any:
    """The module of `from_nnx` with current values; for other models an NNX module with copies.

    Assign a module to set the values.
    """
    return model._with_weights().shown_module()


def set_module(model: ModelBase, module: nnx.Module) -> None:
    """Set the values of the model to the values of a module."""
    model._with_weights().take_values(module)


def merge(model: ModelBase, trainable: PyTree, rest: PyTree) -> Any:
    """Return the NNX module with values shaped like `state.trainable` and `state.rest`, for a `train_step`.

    Under a mixed policy it casts as in the model's steps.
    """
    built = model._with_weights()
    module, precision = built.cell.graph.merge(trainable, rest), built.forward.precision
    if precision is not None:
        follow(precision, module)
    return module


def split(model: ModelBase, module: nnx.Module) -> tuple[PyTree, PyTree]:
    """Return the values of a module that `merge` made, as `(trainable, rest)`."""
    return model._with_weights().cell.graph.split(module)


def stateless_call(
    model: ModelBase, trainable: PyTree, rest: PyTree, *args: Any, return_losses: bool = False, **kwargs: Any
) -> tuple[PyTree, ...]:
    """Call the model with these values, for use in a `train_step` or a custom loop.

    Args:
        trainable: values shaped as `state.trainable`, or a list of values for `trainable_variables`.
        rest: values shaped as `state.rest`, or a list of values for `non_trainable_variables`.
        *args: arguments of the call.
        return_losses: whether the losses of layers and regularizers are returned, too.
        **kwargs: further arguments of the call, such as `training`.

    The `call` of a `from_nnx` model gets the same `rngs` in every run of a traced `train_step`; to draw new
    numbers, call it with the module of `merge` and the `rngs` of the step.

    Returns:
        `(outputs, rest)` with `rest` after the call, or `(outputs, rest, losses)`.

    Raises:
        ModelError: the lists of values and variables have different lengths.
    """
    built = model._with_weights(*args, **kwargs)
    if isinstance(trainable, list | tuple):
        listed = (model.trainable_variables, model.non_trainable_variables)
        outputs, rest, losses = built.listed_call(model.name, listed, (trainable, rest), args, kwargs)
    else:
        outputs, rest, losses = built.stateless_call(trainable, rest, args, kwargs)
    return (outputs, rest, losses) if return_losses else (outputs, rest)


def apply_gradients(model: ModelBase, state: TrainState, grads: PyTree, optimizer: str | None = None) -> TrainState:
    """Return the state after one update, for use in a `train_step`.

    Args:
        state: values and slots before.
        grads: gradients shaped as `state.trainable`, or as the part that the optimizer updates.
        optimizer: the name of one optimizer; by default all are applied.

    Raises:
        ModelError: the optimizer does not exist, or gradients are missing.
    """
    built = model._compiled_model("apply_gradients")
    forward = built.forward
    grads = forward.scattered(grads)
    return optimization.apply_gradients(state, built.optimizers, grads, optimizer, placements=forward.placements())
