"""Steps of an optimizer on lists of arrays, in custom training loops and in the steps of a model."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from keras_dist._support import tree_paths
from keras_dist._support.array_operators import value_of
from keras_dist._support.located_warnings import warn
from keras_dist._support.stateless_scope import current_scope
from keras_dist._unstable.jax_internals import hide_mesh_in, is_traced
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.host_slots import update_in_turn
from keras_dist.optimizers.optimizer_variables import OptimizerVariables, is_variable, keys_of


@hide_mesh_in
class CustomLoops(OptimizerVariables):
    """The variables of an optimizer, and methods for steps on lists of arrays."""

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Take one step as a pure function, which may be compiled.

        Args:
            optimizer_variables: the arrays of `variables`.
            grads: the gradients of `trainable_variables`. If one is None, its variable and slots do not change, with a
                warning.
            trainable_variables: the arrays of the variables for which the optimizer was built, in that order.

        Returns:
            The new arrays of `trainable_variables`, after their constraints, and of `optimizer_variables`.

        Raises:
            ModelError: the optimizer is not built, the lists do not fit it, or all gradients are None.
        """
        self._check_built("stateless_apply")
        trained, holder = self._updated, self._holder
        self._check_arrays("optimizer_variables", optimizer_variables, self.variables)
        absent = self._absent(grads)
        if absent:
            pairs = zip(grads, trained, strict=True)
            grads = [jnp.zeros(variable.shape, variable.dtype) if grad is None else grad for grad, variable in pairs]
        self._check_arrays("grads", grads, trained)
        self._check_arrays("trainable_variables", trainable_variables, trained)
        structure = jax.tree.structure(self._state, is_leaf=is_variable)
        state = structure.unflatten([jnp.asarray(value_of(value)) for value in self.in_order(optimizer_variables)])
        params = self._arranged([jnp.asarray(value_of(value)) for value in trainable_variables])
        gradients = self._arranged([value_of(grad) for grad in grads])
        update = self.update
        if holder is not None:
            gradients, update = holder.scattered(gradients), functools.partial(update, placements=holder.placements())
        updates, after = update_in_turn(update, gradients, state, params)
        new: Any = optax.apply_updates(params, updates)
        new, state = _kept(absent, params, new), _kept(absent, state, after)
        rules = [getattr(variable, "constraint", None) for variable in trained]
        listed = self._listed(new)
        constrained = [value if rule is None else rule(value) for rule, value in zip(rules, listed, strict=True)]
        return constrained, self.in_order(jax.tree.leaves(state))

    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Take one step and assign its results to the variables.

        Args:
            grads: the gradients of the variables; a variable whose gradient is None does not change.
            trainable_variables: the variables; by default the variables for which the optimizer was built. An optimizer
                that is not built is built for these.

        Raises:
            ModelError: the optimizer was built for other variables, these are arrays, or the call is traced.
        """
        if self._model_cell is not None:
            self._check_own("apply")
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
        self._check_built("apply")
        targets = list(self._trained if trainable_variables is None else trainable_variables)
        if len(targets) != len(self._trained) or any(
            one is not other for one, other in zip(targets, self._trained, strict=True)
        ):
            summary = f"the optimizer {self.name!r} was built for other variables"
            expected = shorten(keys_of(self._trained))
            fix = "apply it to all variables for which it was built, or make another optimizer"
            raise ModelError(summary, given=shorten(keys_of(targets)), expected=expected, fix=fix)
        is_lost = current_scope() is None and any(map(is_traced, grads))
        if is_lost or not all(hasattr(target, "assign") for target in targets):
            given = "traced gradients" if is_lost else "arrays in the place of variables"
            fix = "take the new arrays: stateless_apply(optimizer_variables, grads, trainable_variables)"
            raise ModelError(f"apply of the optimizer {self.name!r} cannot assign its results", given=given, fix=fix)
        values = self.stateless_apply(self.variables, grads, targets)
        for variable, value in zip(targets + self.variables, values[0] + values[1], strict=True):
            variable.assign(value)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Call `apply` with pairs of gradients and variables, and return `iterations`."""
        pairs = list(grads_and_vars)
        self.apply([grad for grad, _ in pairs], [variable for _, variable in pairs])
        return self.iterations

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """Assign the averages of `use_ema` to `var_list`, the variables the optimizer was built for.

        Raises:
            ModelError: the optimizer is not built, or was built for other variables.
        """
        self._check_own("finalize_variable_values")
        variables = list(var_list)
        self._check_arrays("var_list", variables, self._trained)
        state = jax.tree.map(value_of, self._state, is_leaf=is_variable)
        final = self.finalize(state, self._by_path([value_of(variable) for variable in variables]))
        for variable, value in zip(variables, final.values(), strict=True):
            variable.assign(value)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assign arrays to `variables`.

        Raises:
            ModelError: the optimizer is not built, or the arrays have other shapes.
        """
        self._check_built("set_weights")
        self._check_arrays("weights", weights, self.variables)
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(value)

    @property
    def _updated(self) -> Sequence[Any]:
        """The variables for which the optimizer was built, or of its model."""
        return self._trained if self._holder is None else self._holder.trained

    def _arranged(self, arrays: Sequence[Any]) -> Any:
        """Arrange arrays as for `init`: by paths, or nested like the model's variables."""
        if self._holder is None:
            return self._by_path(arrays)
        return traverse_util.unflatten_dict(dict(zip(self._holder.parts, arrays, strict=True)))

    def _listed(self, arranged: Any) -> list[Any]:
        """The inverse of `_arranged`."""
        if self._holder is None:
            return list(arranged.values())
        flat = traverse_util.flatten_dict(arranged)
        return [flat[parts] for parts in self._holder.parts]

    def _absent(self, grads: Sequence[Any]) -> set[str]:
        """Return the keys of variables without a gradient, with a warning."""
        if len(grads) != len(self._updated) or all(grad is not None for grad in grads):
            return set()
        absent = [key for key, grad in zip(keys_of(self._updated), grads, strict=True) if grad is None]
        if len(absent) == len(grads):
            summary = f"the optimizer {self.name!r} was given no gradients"
            fix = "take gradients of a loss that depends on the variables"
            raise ModelError(summary, given=f"None for {shorten(absent)}", fix=fix)
        warn(f"Gradients do not exist for variables {absent}: they do not change.")
        return {*absent}

    def _check_own(self, method: str) -> None:
        """Check that the state is not a model's, which changes only in compiled steps."""
        self._check_built(method)
        if self._model_cell is not None:
            given = f"{method} of the optimizer {self.name!r}, whose state is a model's"
            fix = "compile(..., train_step=train_step), and in it state = model.apply_gradients(state, grads)"
            raise ModelError("gradients can only be applied inside a train step", given=given, fix=fix)


def _kept(absent: set[str], before: Any, after: Any) -> Any:
    """Return `after` with the values of `before` for the variables `absent`."""
    if not absent:
        return after

    def chosen(path: Any, old: Any, new: Any) -> Any:
        keys = [
            part.key for part in path if hasattr(part, "key")
        ]  # for a model all names in the paths of its variables
        return old if any(key in absent for key in keys) or tree_paths.join(keys) in absent else new

    return jax.tree_util.tree_map_with_path(chosen, before, after)
