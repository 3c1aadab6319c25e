"""`OptimizerVariables`: the variables and the learning rate of an optimizer. `ModelState`: variables in a model."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support import tree_paths
from keras_dist._support.array_operators import value_of, values_in
from keras_dist._support.dim_names import DimNames
from keras_dist._support.signatures import takes
from keras_dist._support.stateless_scope import without_scope
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.arguments import (
    LearningRate,
    LearningRateState,
    Rate,
    ScheduledRateState,
    check_rate,
    checked_rate,
    rate_after,
)
from keras_dist.serialization.configurable import absent
from keras_dist.variables import Variable

_INSTEAD = {
    "add_optimizer_variables": "optax transformations create their state: define `transformation`",
    "add_variable": "optax transformations create their state: define `transformation`",
    "add_variable_from_reference": "optax transformations create their state: define `transformation`",
    "assign": "call variable.assign(value)",
    "assign_add": "call variable.assign_add(value)",
    "assign_sub": "call variable.assign_sub(value)",
    "learning_rate": "set `learning_rate` of each of its `optimizers`",
    "load_own_variables": "call set_weights(arrays)",
    "save_own_variables": "take [variable.numpy() for variable in optimizer.variables]",
    "update_step": "define `transformation`, or call optimizer.update(grads, state, params)",
}


@dataclasses.dataclass(eq=False)
class ModelState:
    """The state of an optimizer in a model."""

    state: Any  # result of `init`, with variables instead of arrays
    steps: Any  # variable that counts the steps of the model
    cell: Any  # owner of the arrays
    trained: Sequence[Any] = ()  # variables to update, in the order of `model.trainable_variables`
    parts: Sequence[tree_paths.Parts] = ()  # parts of their paths
    scattered: Callable[[Any], Any] = values_in  # shards nested gradients like the slots that they update (traced)
    placements: Callable[[], Mapping[str, Any]] = dict  # where these gradients are


class OptimizerVariables:
    """The variables of an optimizer, created by `build` for a custom training loop, or by `compile` in a model.

    After `compile` the optimizer reads and writes the model's variables, and the model takes the steps.
    """

    name: str
    _arguments: dict[str, Any]
    _rate: Rate
    _trained: tuple[Any, ...] = ()
    _keys: Sequence[str] = ()  # of `_trained` in the state: paths may change later
    _dim_names: Mapping[str, DimNames] = MappingProxyType({})  # by path
    _own_state: Any = None
    _model: weakref.ref[ModelState] | None = None
    _count: Variable | None = None
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
            fix = f". Instead, {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise absent(self, name, fix)

    @property
    def built(self) -> bool:
        """Whether `build` or a model has created the variables."""
        return self._state is not None

    def build(self, variables: Iterable[Any]) -> None:
        """Create the variables of the initial state; do nothing if the optimizer is built.

        Args:
            variables: the variables to train, such as `model.trainable_variables`, or arrays.

        Raises:
            ModelError: a variable is on another mesh than the `mesh` of the optimizer.
        """
        if self.built:
            return
        trained = tuple(variables)
        for variable in trained:
            self._check_mesh(getattr(getattr(variable, "layout", None), "device_mesh", None))
        self._trained, self._keys = trained, keys_of(trained)
        names = zip(self._keys, (getattr(variable, "dim_names", ()) for variable in trained), strict=True)
        self.know_dims(dict(names))
        self.know_variables(dict(zip(self._keys, trained, strict=True)))
        with without_scope(), jax.ensure_compile_time_eval():  # a traced function creates them in its first step
            state = self.init(self._by_path([jnp.asarray(value_of(variable)) for variable in trained]))
            self._own_state = self.in_variables(state, lambda path, array: Variable.holding(jnp.array(array), path))

    def in_variables(self, state: PyTree, create: Callable[[str, Any], Variable]) -> PyTree:
        """Replace each leaf of a state by `create(path, leaf)`, except variables that `iterations` has returned."""
        flat, structure = jax.tree_util.tree_flatten_with_path(state)
        known = self._counts(structure.unflatten(range(len(flat))))
        paths = [tree_paths.join(tree_paths.parts_of(path)) for path, _ in flat]
        return structure.unflatten(
            known[index] if index in known else create(paths[index], leaf) for index, (_, leaf) in enumerate(flat)
        )

    def _counts(self, numbered: PyTree) -> dict[int, Variable]:
        """Return the variables that `iterations` has returned, by their number in the state."""
        found: dict[int, Variable] = {}
        for name, inner in self._inner().items():
            found |= inner._counts(_child(numbered, name))
        if self._count is not None:
            flat, _ = jax.tree_util.tree_flatten_with_path(numbered)
            named = (index for path, index in flat if tree_paths.parts_of(path)[-1] == "iterations")
            found |= {index: self._count for index in itertools.islice(named, 1)}
        return found

    def _inner(self) -> dict[str, Any]:
        """Return inner optimizers by the attribute of the state that holds their state."""
        return {}

    def know_variables(self, variables: Mapping[str, Any]) -> None:
        """Set the variables to update, by the paths that rules match."""
        for inner in self._inner().values():
            inner.know_variables(variables)

    def kind_of(self, path: str, shape: Sequence[int]) -> str:
        """Return how the weight at `path` is updated, for tables: by default the name of the optimizer."""
        return next((inner.kind_of(path, shape) for inner in self._inner().values()), self.name)

    def know_dims(self, dim_names: Mapping[str, DimNames]) -> None:
        """Set the names of the dims of variables, by the paths that `init` and `update` will see, before `init`."""
        self._dim_names = dim_names
        for inner in self._inner().values():
            inner.know_dims(dim_names)

    def attach(self, model: ModelState, part: tuple[str, ...] = ()) -> None:
        """Read and write the state of a model while the model exists; `part` is the path to this optimizer's state."""
        self._model, self._part = weakref.ref(model), part
        self._own_state, self._trained, self._keys = None, (), ()
        self._count = None  # it would keep the model alive
        self._is_used = False  # no other owner has its state
        for name, inner in self._inner().items():
            inner.attach(model, (*part, name))

    @property
    def _holder(self) -> ModelState | None:
        return None if self._model is None else self._model()

    @property
    def _model_cell(self) -> Any:
        return None if self._holder is None else self._holder.cell

    @property
    def _state(self) -> Any:
        """The variables in the structure of `init`, or None."""
        return self._own_state if self._holder is None else functools.reduce(_child, self._part, self._holder.state)

    def check_free(self, cell: Any, paths: Set[str]) -> None:
        """Check the mesh, and that no other model uses the optimizer, nor a loop without slots for these variables."""
        self._check_mesh(cell.mesh)
        for inner in self._inner().values() if self._own_state is None else ():
            inner.check_free(cell, paths)
        if self._model_cell not in (None, cell):
            gc.collect()  # an unreferenced model has cycles
        if self._model_cell is cell:
            return
        given = "an optimizer of another compiled model"
        fix = f"make another: {type(self).__name__}.from_config(optimizer.get_config())"
        if self._model_cell is None:
            missing = sorted(paths - {cell.path_of(variable) for variable in self._trained})
            steps = self._steps_taken() if missing and (self.built or self._count is not None) else None
            if steps is None or not int(steps.value):
                return
            given = f"an optimizer that has taken {int(steps.value)} steps, without slots for {shorten(missing)}"
            fix = f"call optimizer.build(model.trainable_variables) before the first step, or {fix}"
        expected = "an optimizer for each model: it holds the state of one"
        raise ModelError(f"compile: the optimizer {self.name!r} is in use", given=given, expected=expected, fix=fix)

    def slots_in(self, cell: Any) -> dict[str, Variable]:
        """Return the variables of the state, created by a model or a custom loop, by their paths in a model."""
        paths = {key: cell.path_of(variable) for key, variable in zip(self._keys, self._trained, strict=True)}
        return {
            tree_paths.join(paths.get(str(part)) or part for part in parts): variable
            for parts, variable in _by_parts(self._state)
        }

    def continue_from(self, values: Mapping[str, Any]) -> None:
        """Set the state in a model to these values by path, if there are any."""
        for parts, variable in _by_parts(self._state) if values else ():
            variable.assign(values[tree_paths.join(parts)])

    def _check_mesh(self, mesh: Any) -> None:
        """Check that the optimizer can train variables on this mesh (None if unknown)."""
        own, theirs = (getattr(one, "backend_mesh", one) for one in (self._mesh, mesh))
        if own is not None and theirs is not None and own != theirs:
            summary = f"the optimizer {self.name!r} has another mesh than the variables"
            given = f"mesh={self._mesh}, variables on {mesh}"
            raise ModelError(summary, given=given, fix="leave `mesh` out: slots are placed as their variables")

    @property
    def variables(self) -> list[Any]:
        """The state: number of steps, learning rate, and slots, which are ordered differently than in Keras.

        Before `build` or `compile` only the number of steps and, unless it is a schedule, the initial rate.
        """
        if not self.built:
            rate = getattr(self, "learning_rate", None)
            return [self._steps_taken(), *(() if rate is None or callable(rate) else (rate,))]
        return self.in_order(variables_in(self._state))

    def in_order(self, leaves: Sequence[Any]) -> list[Any]:
        """Convert leaves of the state to the order of `variables`, or back: steps first, then the rate."""
        found = list(leaves)
        numbered = jax.tree.structure(self._state, is_leaf=is_variable).unflatten(range(len(found)))
        for node in jax.tree.leaves(numbered, is_leaf=has_rate):
            if has_rate(node) and hasattr(node.inner, "iterations"):
                rate, steps = node.learning_rate, node.inner.iterations
                found[rate], found[steps] = found[steps], found[rate]
        return found

    @property
    def iterations(self) -> Any:
        """The number of steps, always the same variable; with `gradient_accumulation_steps` of updates, an array."""
        steps = self._steps_taken()
        accumulated = getattr(self, "gradient_accumulation_steps", None)
        return steps // accumulated if accumulated and self.built else steps

    def _steps_taken(self) -> Any:
        if not self.built:
            for inner in self._inner().values():
                return inner._steps_taken()
            if self._count is None:
                with without_scope(), jax.ensure_compile_time_eval():
                    self._count = Variable.holding(jnp.zeros((), jnp.int32), "iterations")
            return self._count
        steps = next((variable for variable in self.variables if variable.name == "iterations"), None)
        return steps if steps is not None or self._holder is None else self._holder.steps

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the next step; before training, the rate or schedule given to the optimizer.

        A rate that is set applies from the next step, without recompilation. Before training it may be a schedule.

        Raises:
            ModelError: the rate is not in the state (plain optax), follows a schedule, or is not a finite number.
        """
        if self._state is not None:
            node = self._rated()
            rate = node.learning_rate.numpy()
            if callable(self._rate) and takes(self._rate, 0):  # `iterations` may have been assigned
                rate = rate_after(self._rate, node.inner.iterations.value)
            return LearningRate(rate, self)
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
            summary = f"the learning rate of optimizer {self.name!r} follows a schedule"
            fix = "compile with a number, for example SGD(0.1), or change the schedule"
            raise ModelError(summary, given=f"learning_rate = {rate}", fix=fix)
        if self._state is not None:
            self._rated().learning_rate.assign(rate)
        elif self._is_used:
            given = f"learning_rate = {rate}, of an optimizer whose state init() has returned"
            fix = "set model.optimizer.learning_rate; in a state of optax state._replace(learning_rate=...)"
            raise ModelError(f"`learning_rate` of the optimizer {self.name!r} cannot be changed", given=given, fix=fix)
        else:
            self._begin_with(rate)

    def _begin_with(self, rate: Any) -> None:
        """Replace the initial rate, unless it is the same in float32."""
        if not callable(rate) and np.float32(self._rate) != rate:  # type: ignore[arg-type]
            self._rate = float(rate)
        for inner in self._inner().values():
            inner._begin_with(rate)

    def _current_rate(self) -> Rate:
        """Return the current rate as a number, or the schedule."""
        node = next(iter(self._rates()), None)
        return float(np.asarray(node.learning_rate)) if isinstance(node, LearningRateState) else self._rate

    def _rates(self) -> list[Any]:
        nodes = jax.tree.leaves(self._state, is_leaf=lambda node: has_rate(node) or is_variable(node))
        return [node for node in nodes if has_rate(node)]

    def _rated(self) -> Any:
        """Return the part of the state that holds the learning rate."""
        for node in self._rates():
            return node
        summary = f"optimizer {self.name!r} does not keep its learning rate in state"
        fix = "in place of optax.adam(1e-3): optimizers.with_learning_rate(optax.scale_by_adam(), 1e-3)"
        raise ModelError(summary, given="an optax transformation with a fixed rate or a schedule", fix=fix)

    def detach(self) -> None:
        """Stop using the model's state, and keep its current learning rate."""
        if self._model_cell is not None:
            self._begin_with(self._current_rate())
            self._model = self._count = None
        for inner in self._inner().values():
            inner.detach()

    def _by_path(self, arrays: Sequence[Any]) -> OrderedDict[str, Any]:
        """Return the arrays by the paths of the variables, which rules match."""
        return OrderedDict(zip(self._keys, arrays, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the state of a model."""
        return {name: value for name, value in vars(self).items() if name not in ("_model", "_part", "_count")}

    def _check_built(self, method: str) -> None:
        if not self.built:
            summary = f"`{method}` of the optimizer {self.name!r} needs variables"
            fix = f"optimizer.build(model.trainable_variables), or, after compile, model.optimizer.{method}"
            raise ModelError(summary, given=f"optimizer.{method} before build()", fix=fix)

    def _check_arrays(self, argument: str, arrays: Sequence[Any], like: Sequence[Any]) -> None:
        """Check the number and the shapes of arrays."""
        given, expected = [_shape(array) for array in arrays], [_shape(variable) for variable in like]
        if given == expected:
            return
        wrong = next((i for i, (a, b) in enumerate(zip(given, expected, strict=False)) if a != b), None)
        raise ModelError(
            f"`{argument}` does not fit the optimizer {self.name!r}",
            given=f"{len(given)} arrays" if wrong is None else f"{given[wrong]} at place {wrong}",
            expected=f"{len(expected)} arrays" if wrong is None else f"{expected[wrong]}, as it was built for",
            fix="pass the arrays in the order of optimizer.variables, or of the variables that it was built for",
        )


def _child(node: Any, name: str) -> Any:
    return node[name] if isinstance(node, dict) else getattr(node, name)


def is_variable(node: Any) -> bool:
    """Whether `node` is a leaf of a state of variables."""
    return isinstance(node, Variable)


def _by_parts(state: PyTree) -> list[tuple[tree_paths.Parts, Variable]]:
    """Return the variables of a state with the parts of their paths."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=is_variable)
    return [(tree_paths.parts_of(path), variable) for path, variable in flat]


def variables_in(state: PyTree) -> list[Variable]:
    """Return the variables of a state in the order of its leaves."""
    return jax.tree.leaves(state, is_leaf=is_variable)


def has_rate(node: Any) -> bool:
    """Whether `node` is a part of a state that holds a learning rate."""
    return isinstance(node, LearningRateState | ScheduledRateState)


def keys_of(variables: Sequence[Any]) -> list[str]:
    """Return the path of each variable, with its index if the path is not unique, or only its index without a path."""
    paths = [getattr(variable, "path", None) for variable in variables]
    return [
        str(place) if not isinstance(path, str) else path if paths.count(path) == 1 else f"{path}/{place}"
        for place, path in enumerate(paths)
    ]


def _shape(array: Any) -> str:
    return "None" if array is None else f"shape {tuple(jnp.shape(value_of(array)))}"
