"""`CustomSteps`: the state of a model, for training steps and loops of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from keras_dist._operators import value_of
from keras_dist.errors import ModelError, shorten
from keras_dist.models.session import Choices, Session
from keras_dist.models.variable import checked_value
from keras_dist.training.optimization import DEFAULT, apply_gradients
from keras_dist.training.train_state import TrainState


class CustomSteps:
    """State, module and optimizers, for steps and loops of one's own. Subclasses say when weights are born."""

    name: str
    trainable_variables: list[Any]
    non_trainable_variables: list[Any]
    _choices: Choices

    def _check_compiled(self, method: str) -> None:
        """Check that the model is compiled.

        Raises:
            ModelError: it is not.
        """
        raise NotImplementedError

    def _born(self, x: Any = None, *others: Any, **options: Any) -> Session:
        """The session of the model; its weights are born now, if need be, for inputs like these."""
        raise NotImplementedError

    def _compiled(self, method: str, x: Any = None) -> Session:
        """The session of the model, which is compiled.

        Raises:
            ModelError: it is not.
        """
        raise NotImplementedError

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
        if not isinstance(module, nnx.Module):
            raise ModelError(
                "`model.module` is not a flax.nnx.Module",
                given=f"{shorten(module)} of type {type(module).__name__}",
                expected="a module with the variables of this model",
                fix="change the one that `model.module` gives, and assign it",
            )
        cell = self._born().cell
        values = zip(cell.graph.flatten(*self.split(module)), cell.plan.rows, strict=True)
        cell.write_all({index: checked_value(value, row) for index, (value, row) in enumerate(values)})

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
            values, paths = self._by_path(trainable, rest)
            outputs, rest, losses = session.listed_call(values, paths, args, kwargs)
        else:
            outputs, rest, losses = session.stateless_call(trainable, rest, args, kwargs)
        return (outputs, rest, losses) if return_losses else (outputs, rest)

    def _by_path(self, trainable: Sequence[Any], rest: Sequence[Any]) -> tuple[dict[str, Any], list[str]]:
        """Values by the paths of the variables that they are for, and the paths of those that are not trained."""
        trained, others = self.trainable_variables, self.non_trainable_variables
        if (len(trainable), len(rest)) != (len(trained), len(others)):
            raise ModelError(
                f"stateless_call of model {self.name!r}: the values do not fit",
                given=f"{len(trainable)} trainable and {len(rest)} other values",
                expected=f"{len(trained)} and {len(others)}, as trainable_variables and non_trainable_variables",
                fix="pass a value for each",
            )
        given = zip([*trained, *others], [*trainable, *rest], strict=True)
        return {handle.path: jnp.asarray(value_of(value)) for handle, value in given}, [one.path for one in others]

    def apply_gradients(self, state: TrainState, grads: Any, optimizer: str | None = None) -> TrainState:
        """`state` after one update, for use in a `train_step`.

        Args:
            state: values and slots before.
            grads: gradients shaped as `state.trainable`, or as the part of it that the optimizer updates.
            optimizer: the name of one optimizer; by default all are applied.

        Raises:
            ModelError: there is no such optimizer, or gradients are missing.
        """
        return apply_gradients(
            state, self._compiled("apply_gradients").compiled("apply_gradients").optimizers, grads, optimizer
        )

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
        recipe = self._compiled("optimizers").compiled("optimizers")
        return {name: optimizer.transformation for name, optimizer in recipe.optimizers.items()}

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
