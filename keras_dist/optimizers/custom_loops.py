"""What training loops of one's own call on an optimizer: variables that it holds, and steps on lists of arrays."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import optax

from keras_dist import _jax, _paths
from keras_dist._operators import Operators, as_pytree, value_of
from keras_dist.errors import ModelError, shorten
from keras_dist.saving import absent

_INSTEAD = {
    "add_optimizer_variables": "optax transformations make their state themselves: define `transformation`",
    "add_variable": "optax transformations make their state themselves: define `transformation`",
    "add_variable_from_reference": "optax transformations make their state themselves: define `transformation`",
    "assign": "call variable.assign(value)",
    "assign_add": "call variable.assign_add(value)",
    "assign_sub": "call variable.assign_sub(value)",
    "load_own_variables": "call set_weights(arrays)",
    "save_own_variables": "take [variable.numpy() for variable in optimizer.variables]",
    "update_step": "define `transformation`, or call optimizer.update(grads, state, params)",
}


@as_pytree
class OptimizerVariable(Operators):
    """An array of the state of an optimizer that was built. It counts as its value in arithmetic and `jax.numpy`.

    Args:
        path: the names that lead to it, such as `inner/slots/0/mu/dense/kernel`.
        value: the first one; it decides shape and dtype for good.

    Attributes:
        path: the names that lead to it.
        name: the last of them.
        shape: its dims.
        dtype: its element type.
    """

    def __init__(self, path: str, value: jax.Array) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self.shape, self.dtype = value.shape, value.dtype
        self._value = value

    def _read(self) -> jax.Array:
        return self._value

    def assign(self, value: Any) -> jax.Array:
        """Put `value` in the place of the current one; gives the new one.

        Raises:
            ModelError: it has another shape, or is traced.
        """
        array = value_of(value)
        if _jax.is_traced(array) or jnp.shape(array) != self.shape:
            raise ModelError(
                f"optimizer variable {self.path!r} cannot take this value",
                given="a traced array" if _jax.is_traced(array) else f"shape {jnp.shape(array)}",
                expected=f"an array of shape {self.shape}",
                fix="in compiled functions stateless_apply gives the new arrays; assign them afterwards",
            )
        self._value = jnp.asarray(array, self.dtype)
        return self._value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} path={self.path}, shape={self.shape}, dtype={self.dtype}>"


class CustomLoops:
    """The methods of an optimizer for loops of one's own. `compile` and `fit` use none of them.

    Source: `keras.optimizers.Optimizer`.
    """

    name: str
    _trained: tuple[Any, ...] = ()
    _state: Any = None

    if TYPE_CHECKING:
        init: Any
        update: Any
        finalize: Any
    else:

        def __getattr__(self, name: str) -> NoReturn:
            fix = f". In its place: {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise absent(self, name, fix)

    @property
    def built(self) -> bool:
        """Whether `build` has made its variables."""
        return self._state is not None

    def build(self, variables: Iterable[Any]) -> None:
        """Make the variables of the state before the first step. Once built, it stays as it is.

        Args:
            variables: what is to be trained, such as `model.trainable_variables`, or arrays.
        """
        if self.built:
            return
        trained = tuple(variables)
        object.__setattr__(self, "_trained", trained)
        state = self.init(self._by_path([jnp.asarray(value_of(variable)) for variable in trained]))
        held = jax.tree_util.tree_map_with_path(
            lambda path, array: OptimizerVariable(_paths.join(_paths.parts_of(path)), jnp.asarray(array)), state
        )
        object.__setattr__(self, "_state", held)

    @property
    def variables(self) -> list[OptimizerVariable]:
        """The state that `build` made: the learning rate, the steps taken, and what is kept for each weight.

        Raises:
            ModelError: it is not built.

        Source: `keras.optimizers.Optimizer.variables`, in another order.
        """
        self._check_built("variables")
        return jax.tree.leaves(self._state, is_leaf=_is_variable)

    @property
    def iterations(self) -> Any:
        """The number of steps taken, as a variable; with `gradient_accumulation_steps` that of updates, an array.

        Raises:
            ModelError: it is not built.
        """
        self._check_built("iterations")
        steps = next((variable for variable in self.variables if variable.name == "iterations"), None)
        accumulated = getattr(self, "gradient_accumulation_steps", None)
        return steps // accumulated if accumulated and steps is not None else steps

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """One step as a pure function, which may be compiled.

        Args:
            optimizer_variables: the arrays of `variables`.
            grads: the gradients, one for each of `trainable_variables`. Where one is None, the variable and its slots
                stay as they are, with a warning.
            trainable_variables: the arrays of what it was built for, in that order.

        Returns:
            The new arrays of `trainable_variables`, after their constraints, and of `optimizer_variables`.

        Raises:
            ModelError: it is not built, the lists are not those that it was built for, or all gradients are None.

        Source: `keras.optimizers.Optimizer.stateless_apply`.
        """
        self._check_built("stateless_apply")
        self._check_arrays("optimizer_variables", optimizer_variables, self.variables)
        absent = self._absent(grads)
        if absent:
            pairs = zip(grads, self._trained, strict=True)
            grads = [jnp.zeros_like(value_of(variable)) if grad is None else grad for grad, variable in pairs]
        self._check_arrays("grads", grads, self._trained)
        self._check_arrays("trainable_variables", trainable_variables, self._trained)
        structure = jax.tree.structure(self._state, is_leaf=_is_variable)
        state = structure.unflatten([jnp.asarray(value_of(value)) for value in optimizer_variables])
        params = self._by_path([jnp.asarray(value_of(value)) for value in trainable_variables])
        updates, after = self.update(self._by_path([value_of(grad) for grad in grads]), state, params)
        new: Any = optax.apply_updates(params, updates)
        new, state = _kept(absent, params, new), _kept(absent, state, after)
        rules = [getattr(variable, "constraint", None) for variable in self._trained]
        constrained = [value if rule is None else rule(value) for rule, value in zip(rules, new.values(), strict=True)]
        return constrained, jax.tree.leaves(state)

    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """One step, whose results are assigned to the variables.

        Args:
            grads: the gradients, one for each variable, which stays as it is where one is None; nothing happens when
                there are none.
            trainable_variables: what is trained; by default what it was built for. It is built for these, if it is not.

        Raises:
            ModelError: it is built for others, they are arrays, or it is called in a compiled function.

        Source: `keras.optimizers.Optimizer.apply`.
        """
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
        self._check_built("apply")
        targets = list(self._trained if trainable_variables is None else trainable_variables)
        if _keys(targets) != _keys(self._trained):
            raise ModelError(
                f"the optimizer {self.name!r} was built for other variables",
                given=shorten(_keys(targets)),
                expected=shorten(_keys(self._trained)),
                fix="apply it to all of those it was built for, or make another optimizer",
            )
        if any(map(_jax.is_traced, grads)) or not all(hasattr(target, "assign") for target in targets):
            raise ModelError(
                f"apply of the optimizer {self.name!r} cannot assign its results",
                given="traced gradients" if any(map(_jax.is_traced, grads)) else "arrays in the place of variables",
                expected="variables, and a call outside of compiled functions",
                fix="take the new arrays: stateless_apply(optimizer_variables, grads, trainable_variables)",
            )
        values = self.stateless_apply(self.variables, grads, targets)
        for variable, value in zip(targets + self.variables, values[0] + values[1], strict=True):
            variable.assign(value)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """As `apply`, for pairs of gradients and variables; gives `iterations`."""
        pairs = list(grads_and_vars)
        self.apply([grad for grad, _ in pairs], [variable for _, variable in pairs])
        return self.iterations

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """Assign to the variables their averages, if it keeps these.

        Args:
            var_list: the variables that it was built for.

        Raises:
            ModelError: it is not built, or they are others.
        """
        self._check_built("finalize_variable_values")
        variables = list(var_list)
        self._check_arrays("var_list", variables, self._trained)
        state = jax.tree.map(value_of, self._state, is_leaf=_is_variable)
        final = self.finalize(state, self._by_path([value_of(variable) for variable in variables]))
        for variable, value in zip(variables, final.values(), strict=True):
            variable.assign(value)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Assign arrays to `variables`.

        Raises:
            ModelError: it is not built, or they have other shapes.
        """
        self._check_built("set_weights")
        self._check_arrays("weights", weights, self.variables)
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(value)

    def _absent(self, grads: Sequence[Any]) -> set[str]:
        """The keys of the variables without a gradient, which are warned of."""
        if len(grads) != len(self._trained) or all(grad is not None for grad in grads):
            return set()
        absent = [key for key, grad in zip(_keys(self._trained), grads, strict=True) if grad is None]
        if len(absent) == len(grads):
            raise ModelError(
                f"the optimizer {self.name!r} was given no gradients",
                given=f"None for {shorten(absent)}",
                expected="a gradient for at least one variable",
                fix="take gradients of a loss that depends on the variables",
            )
        warnings.warn(f"Gradients do not exist for variables {absent}: they stay as they are.", stacklevel=3)
        return {*absent}

    def _by_path(self, arrays: Sequence[Any]) -> OrderedDict[str, Any]:
        """The arrays in the order of what it was built for, by the paths that rules of optimizers match."""
        return OrderedDict(zip(_keys(self._trained), arrays, strict=True))

    def _check_built(self, method: str) -> None:
        if not self.built:
            raise ModelError(
                f"`{method}` of the optimizer {self.name!r}, which holds no variables",
                given=f"optimizer.{method} before build()",
                expected="an optimizer that was built; a compiled model keeps the state of its own",
                fix=f"optimizer.build(model.trainable_variables), or, after compile, model.optimizer.{method}",
            )

    def _check_arrays(self, argument: str, arrays: Sequence[Any], like: Sequence[Any]) -> None:
        """Check that there is an array of the right shape for each variable."""
        given, expected = [_shape(array) for array in arrays], [_shape(variable) for variable in like]
        if given == expected:
            return
        wrong = next((i for i, (a, b) in enumerate(zip(given, expected, strict=False)) if a != b), None)
        raise ModelError(
            f"`{argument}` does not fit the optimizer {self.name!r}",
            given=f"{len(given)} arrays" if wrong is None else f"{given[wrong]} at place {wrong}",
            expected=f"{len(expected)} arrays" if wrong is None else f"{expected[wrong]}, as it was built for",
            fix="pass as many arrays, in the order, as optimizer.variables and what it was built for",
        )


def _kept(absent: set[str], before: Any, after: Any) -> Any:
    """`after`, with what belongs to these keys as it was before."""
    if not absent:
        return after

    def chosen(path: Any, old: Any, new: Any) -> Any:
        return old if any(getattr(part, "key", None) in absent for part in path) else new

    return jax.tree_util.tree_map_with_path(chosen, before, after)


def _is_variable(node: Any) -> bool:
    return isinstance(node, OptimizerVariable)


def _keys(variables: Sequence[Any]) -> list[str]:
    """The path of each variable, or its place where it has none or shares it with another."""
    paths = [getattr(variable, "path", None) for variable in variables]
    return [
        path if isinstance(path, str) and paths.count(path) == 1 else str(place) for place, path in enumerate(paths)
    ]


def _shape(array: Any) -> str:
    return "None" if array is None else f"shape {tuple(jnp.shape(value_of(array)))}"
