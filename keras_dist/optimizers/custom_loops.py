"""The variables of an optimizer: its own in custom training loops, or those of the model that it trains."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from keras_dist import _jax, _paths
from keras_dist._operators import Operators, value_of
from keras_dist._scope import current_scope, without_scope
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.learning_rate import (
    LearningRate,
    LearningRateState,
    Rate,
    ScheduledRateState,
    check_rate,
    checked_rate,
)
from keras_dist.optimizers.variable import Iterations, ModelState, OptimizerVariable
from keras_dist.saving.configurable import absent

_INSTEAD = {
    "add_optimizer_variables": "optax transformations make their state themselves: define `transformation`",
    "add_variable": "optax transformations make their state themselves: define `transformation`",
    "add_variable_from_reference": "optax transformations make their state themselves: define `transformation`",
    "assign": "call variable.assign(value)",
    "assign_add": "call variable.assign_add(value)",
    "assign_sub": "call variable.assign_sub(value)",
    "learning_rate": "set those of its `optimizers`, one by one",
    "load_own_variables": "call set_weights(arrays)",
    "save_own_variables": "take [variable.numpy() for variable in optimizer.variables]",
    "update_step": "define `transformation`, or call optimizer.update(grads, state, params)",
}


class CustomLoops:
    """The variables of an optimizer, and its steps on lists of arrays.

    `build` makes variables for a custom training loop. `compile` makes them in the model instead: from then on the
    optimizer reads and writes those, and the model takes the steps.

    Source: `keras.optimizers.Optimizer`.
    """

    name: str
    _arguments: dict[str, Any]
    _rate: Rate
    _trained: tuple[Any, ...] = ()
    _own_state: Any = None
    _model: weakref.ref[ModelState] | None = None
    _part: tuple[str, ...] = ()
    _is_used: bool = False
    _has_scaled: bool = False
    _mesh: Any = None

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
        """Whether `build` or a model has made its variables."""
        return self._state is not None

    def build(self, variables: Iterable[Any]) -> None:
        """Make the variables of the state before the first step; does nothing for a built optimizer.

        Args:
            variables: what is to be trained, such as `model.trainable_variables`, or arrays.

        Raises:
            ModelError: one lies on another mesh than the optimizer was made for.
        """
        if self.built:
            return
        trained = tuple(variables)
        for variable in trained:
            self._check_mesh(getattr(getattr(variable, "layout", None), "device_mesh", None))
        self._trained = trained
        self.know_variables(dict(zip(_keys(trained), trained, strict=True)))
        with without_scope(), jax.ensure_compile_time_eval():  # a traced function makes them in its first step
            state = self.init(self._by_path([jnp.asarray(value_of(variable)) for variable in trained]))
        held = jax.tree_util.tree_map_with_path(
            lambda path, array: OptimizerVariable(_paths.join(_paths.parts_of(path)), jnp.asarray(array)), state
        )
        self._own_state = held

    def _inner(self) -> dict[str, CustomLoops]:
        """The optimizers inside this one, by the attributes of its state that hold theirs."""
        return {}

    def know_variables(self, variables: Mapping[str, Any]) -> None:
        """Note which variables it is going to update, by the paths that rules of optimizers match."""
        for inner in self._inner().values():
            inner.know_variables(variables)

    def attach(self, model: ModelState, part: tuple[str, ...] = ()) -> None:
        """Read and write the state that a model holds, for as long as the model does.

        Args:
            model: its state, with handles in the places of the arrays.
            part: the attributes that lead to what `init` of this optimizer gave.
        """
        self._model, self._part = weakref.ref(model), part
        self._own_state, self._trained = None, ()
        self._is_used = False  # nobody else has its state
        for name, inner in self._inner().items():
            inner.attach(model, (*part, name))

    def detach(self) -> None:
        """Stop using the model's state, and keep its current learning rate."""
        if self._model_cell is not None:
            self._begin_with(self._current_rate())
            self._model = None
        for inner in self._inner().values():
            inner.detach()

    @property
    def _holder(self) -> ModelState | None:
        return None if self._model is None else self._model()

    @property
    def _model_cell(self) -> Any:
        return None if self._holder is None else self._holder.cell

    @property
    def _state(self) -> Any:
        """Handles on its state, in the structure that `init` gives; None where there are none."""
        return self._own_state if self._holder is None else functools.reduce(_child, self._part, self._holder.state)

    def check_free(self, cell: Any) -> None:
        """Check that no other model and no custom loop trains with it, and that its mesh is the model's.

        Args:
            cell: of the model that is going to.

        Raises:
            ModelError: one does, or it was made for another mesh.
        """
        self._check_mesh(cell.mesh)
        for inner in self._inner().values():
            inner.check_free(cell)
        if self._model_cell not in (None, cell):
            gc.collect()  # a model that nobody holds any more has cycles
        if self._model_cell is cell or not self.built:
            return
        given = "an optimizer that another model was compiled with"
        if self._model_cell is None:
            steps = int(self.iterations)
            if not steps:
                return
            given = f"an optimizer with variables of its own, {steps} steps old"
        raise ModelError(
            f"compile: the optimizer {self.name!r} is in use",
            given=given,
            expected="an optimizer for each model: it holds the state of one",
            fix=f"make another: {type(self).__name__}.from_config(optimizer.get_config())",
        )

    def _check_mesh(self, mesh: Any) -> None:
        """Check that variables on a mesh, None if that is not known, can be trained with this optimizer."""
        own, theirs = (getattr(one, "backend_mesh", one) for one in (self._mesh, mesh))
        if own is not None and theirs is not None and own != theirs:
            raise ModelError(
                f"the optimizer {self.name!r} was made for another mesh than that of the variables",
                given=f"mesh={self._mesh}, variables on {mesh}",
                expected="one mesh",
                fix="make it with the mesh of the variables, or leave `mesh` out: slots lie where their variables do",
            )

    @property
    def variables(self) -> list[Any]:
        """The state: the learning rate, the steps taken, and what is kept for each weight.

        Before it is built or a model's, only the steps and the rate that it begins with, unless that is a schedule.

        Source: `keras.optimizers.Optimizer.variables`, in another order.
        """
        if not self.built:
            rate = getattr(self, "learning_rate", None)
            return [Iterations(self), *(() if rate is None or callable(rate) else (rate,))]
        return jax.tree.leaves(self._state, is_leaf=_is_variable)

    @property
    def iterations(self) -> Any:
        """The number of steps taken, as a variable; with `gradient_accumulation_steps` that of updates, an array.

        Before the optimizer has variables it counts as 0, and can be passed around: it is that variable afterwards.
        """
        steps = self._steps_taken()
        accumulated = getattr(self, "gradient_accumulation_steps", None)
        return steps // accumulated if accumulated and self.built else steps

    def _steps_taken(self) -> Any:
        """The variable that counts steps; what stands for it, where there is none yet."""
        if not self.built:
            return Iterations(self)
        steps = next((variable for variable in self.variables if variable.name == "iterations"), None)
        return steps if steps is not None or self._holder is None else self._holder.steps

    @property
    def learning_rate(self) -> Any:
        """The rate of the next step, a float; without state the rate that it was made with.

        Setting it counts from the next step on and compiles nothing. A schedule may be set before there is state.

        Raises:
            ModelError: it does not keep its rate in state (plain optax); or it is set while it follows a schedule, or
                to something that is not a finite number.
        """
        if self._state is not None:
            return LearningRate(self._rated().learning_rate.numpy(), self)
        rate = next((inner.learning_rate for inner in self._inner().values()), self._rate)
        return rate if callable(rate) else LearningRate(rate, self)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value) and not isinstance(value, float) and not (self.built or self._is_used or self._inner()):
            check_rate(value)
            self._rate = value
            self._arguments = {**self._arguments, "learning_rate": value}  # of `get_config`
            return
        rate = checked_rate(value)
        if isinstance(self._rated(), ScheduledRateState) if self._state is not None else callable(self._rate):
            raise ModelError(
                f"the learning rate of optimizer {self.name!r} follows a schedule",
                given=f"learning_rate = {rate}",
                expected="an optimizer whose rate is a number",
                fix="compile with a number, for example SGD(0.1), or let the schedule tell all rates",
            )
        if self._state is not None:
            self._rated().learning_rate.assign(rate)
        elif self._is_used:
            raise ModelError(
                f"`learning_rate` of the optimizer {self.name!r} cannot be changed",
                given=f"learning_rate = {rate}, of an optimizer whose state is in other hands: init() gave it away",
                expected="an optimizer with variables, or what it was made with",
                fix="model.optimizer.learning_rate = ... sets the rate of a compiled model; in a state of optax "
                "state._replace(learning_rate=...)",
            )
        else:
            self._begin_with(rate)

    def _begin_with(self, rate: Any) -> None:
        """Replace the first rate, unless it is the same in float32."""
        if not callable(rate) and np.float32(self._rate) != rate:  # type: ignore[arg-type]
            self._rate = float(rate)
        for inner in self._inner().values():
            inner._begin_with(rate)

    def _current_rate(self) -> Rate:
        """The current rate as a number; the schedule, if there is one."""
        node = next(iter(self._rates()), None)
        return float(np.asarray(node.learning_rate)) if isinstance(node, LearningRateState) else self._rate

    def _rates(self) -> list[Any]:
        nodes = jax.tree.leaves(self._state, is_leaf=lambda node: _has_rate(node) or _is_variable(node))
        return [node for node in nodes if _has_rate(node)]

    def _rated(self) -> Any:
        """The part of the state that holds the learning rate."""
        for node in self._rates():
            return node
        raise ModelError(
            f"optimizer {self.name!r} does not keep its learning rate in state",
            given="an optax transformation with a fixed rate or a schedule",
            expected="an optimizer by name, or one made by keras_dist.optimizers",
            fix="in place of optax.adam(1e-3): optimizers.with_learning_rate(optax.scale_by_adam(), 1e-3)",
        )

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Take one step as a pure function, which may be compiled.

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
        trained, holder = self._updated, self._holder
        self._check_arrays("optimizer_variables", optimizer_variables, self.variables)
        absent = self._absent(grads)
        if absent:
            pairs = zip(grads, trained, strict=True)
            grads = [jnp.zeros(variable.shape, variable.dtype) if grad is None else grad for grad, variable in pairs]
        self._check_arrays("grads", grads, trained)
        self._check_arrays("trainable_variables", trainable_variables, trained)
        structure = jax.tree.structure(self._state, is_leaf=_is_variable)
        state = structure.unflatten([jnp.asarray(value_of(value)) for value in optimizer_variables])
        params = self._arranged([jnp.asarray(value_of(value)) for value in trainable_variables])
        gradients = self._arranged([value_of(grad) for grad in grads])
        gradients = gradients if holder is None else holder.scattered(gradients)
        updates, after = self.update(gradients, state, params)
        new: Any = optax.apply_updates(params, updates)
        new, state = _kept(absent, params, new), _kept(absent, state, after)
        rules = [getattr(variable, "constraint", None) for variable in trained]
        listed = self._listed(new)
        constrained = [value if rule is None else rule(value) for rule, value in zip(rules, listed, strict=True)]
        return constrained, jax.tree.leaves(state)

    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Take one step and assign its results to the variables.

        Args:
            grads: the gradients, one for each variable, which stays as it is where one is None; nothing happens when
                there are none.
            trainable_variables: what is trained; by default what it was built for. It is built for these, if it is not.

        Raises:
            ModelError: it is built for others, they are arrays, or it is called in a compiled function.

        Source: `keras.optimizers.Optimizer.apply`.
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
            raise ModelError(
                f"the optimizer {self.name!r} was built for other variables",
                given=shorten(_keys(targets)),
                expected=shorten(_keys(self._trained)),
                fix="apply it to all of those it was built for, or make another optimizer",
            )
        is_lost = current_scope() is None and any(map(_jax.is_traced, grads))
        if is_lost or not all(hasattr(target, "assign") for target in targets):
            raise ModelError(
                f"apply of the optimizer {self.name!r} cannot assign its results",
                given="traced gradients" if is_lost else "arrays in the place of variables",
                expected="variables, and a call outside of compiled functions",
                fix="take the new arrays: stateless_apply(optimizer_variables, grads, trainable_variables)",
            )
        values = self.stateless_apply(self.variables, grads, targets)
        for variable, value in zip(targets + self.variables, values[0] + values[1], strict=True):
            variable.assign(value)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Call `apply` with pairs of gradients and variables, and return `iterations`."""
        pairs = list(grads_and_vars)
        self.apply([grad for grad, _ in pairs], [variable for _, variable in pairs])
        return self.iterations

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """Assign their averages to the variables, with `use_ema`.

        Args:
            var_list: the variables that it was built for.

        Raises:
            ModelError: it is not built, or they are others.
        """
        self._check_own("finalize_variable_values")
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

    @property
    def _updated(self) -> Sequence[Any]:
        """The variables that it was built for, or those of the model that it updates."""
        return self._trained if self._holder is None else self._holder.trained

    def _arranged(self, arrays: Sequence[Any]) -> Any:
        """Arrays in the structure that `init` was given: by paths, or nested as the model's variables are."""
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
        absent = [key for key, grad in zip(_keys(self._updated), grads, strict=True) if grad is None]
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
        """Return the arrays by the paths of the variables that it was built for, which rules of optimizers match."""
        return OrderedDict(zip(_keys(self._trained), arrays, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the state of a model."""
        return {name: value for name, value in vars(self).items() if name not in ("_model", "_part")}

    def _check_built(self, method: str) -> None:
        if not self.built:
            raise ModelError(
                f"`{method}` of the optimizer {self.name!r}, which holds no variables",
                given=f"optimizer.{method} before build()",
                expected="an optimizer that was built; a compiled model keeps the state of its own",
                fix=f"optimizer.build(model.trainable_variables), or, after compile, model.optimizer.{method}",
            )

    def _check_own(self, method: str) -> None:
        """Check that its variables are its own: the state of a model changes in compiled steps alone."""
        self._check_built(method)
        if self._model_cell is not None:
            raise ModelError(
                "gradients are not applied from outside of a step",
                given=f"{method} of the optimizer {self.name!r}, whose state is a model's",
                expected="a pure train_step(state, batch, rngs) -> (state, logs), which is compiled with the model",
                fix="compile(..., train_step=train_step), and in it state = model.apply_gradients(state, grads); a "
                "loop of your own takes an optimizer of its own",
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
    """Return `after`, with the values of `before` under these keys."""
    if not absent:
        return after

    def chosen(path: Any, old: Any, new: Any) -> Any:
        keys = [part.key for part in path if hasattr(part, "key")]  # of a model's variables all names of their paths
        return old if any(key in absent for key in keys) or _paths.join(keys) in absent else new

    return jax.tree_util.tree_map_with_path(chosen, before, after)


def _child(node: Any, name: str) -> Any:
    return node[name] if isinstance(node, dict) else getattr(node, name)


def _is_variable(node: Any) -> bool:
    return isinstance(node, Operators)


def _has_rate(node: Any) -> bool:
    return isinstance(node, LearningRateState | ScheduledRateState)


def _keys(variables: Sequence[Any]) -> list[str]:
    """Return the path of each variable: with its place, if another has the same; its place alone, if it has none."""
    paths = [getattr(variable, "path", None) for variable in variables]
    return [
        str(place) if not isinstance(path, str) else path if paths.count(path) == 1 else f"{path}/{place}"
        for place, path in enumerate(paths)
    ]


def _shape(array: Any) -> str:
    return "None" if array is None else f"shape {tuple(jnp.shape(value_of(array)))}"
