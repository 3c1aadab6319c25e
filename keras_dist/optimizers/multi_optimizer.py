"""`MultiOptimizer`: an optimizer for each variable, by its path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from keras_dist._support import tree_paths
from keras_dist._support.arguments import check_callable
from keras_dist._support.dim_names import DimNames
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.optimizers.custom_loops import CustomLoops
from keras_dist.optimizers.loss_scale import LossScaleOptimizer
from keras_dist.optimizers.optimizer import Optimizer
from keras_dist.optimizers.optimizer_variables import ModelState
from keras_dist.serialization.configurable import Configurable


class VariableOfPath(NamedTuple):
    """The properties of a variable by which its optimizer is chosen."""

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: Any


class OptimizerMap(Configurable, MutableMapping[str, Optimizer]):
    """Optimizers by the paths of variables.

    Args:
        default_optimizer: the optimizer of variables that no rule matches.
        optimizer_map: a dict from paths, or regular expressions for whole paths, to optimizers. Exact paths come first.

    Raises:
        ModelError: a value is not an `Optimizer`, or a key exists already or is not a regular expression.

    Example:
        >>> from keras_dist import optimizers
        >>> chosen = optimizers.OptimizerMap(optimizers.SGD(), {"encoder/.*": optimizers.Adam()})
        >>> chosen["encoder/dense/kernel"].name, chosen["head/kernel"].name
        ('adam', 'sgd')
    """

    def __init__(self, default_optimizer: Optimizer, optimizer_map: Mapping[str, Optimizer] | None = None) -> None:
        self._default_optimizer = _checked(default_optimizer)
        self._optimizer_map: dict[str, Optimizer] = {}
        if optimizer_map is not None and not isinstance(optimizer_map, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            summary = "OptimizerMap: `optimizer_map` must be a dict from paths to optimizers"
            raise ModelError(summary, given=shorten(optimizer_map), fix='for example {"encoder/.*": Adam(1e-3)}')
        for key, optimizer in (optimizer_map or {}).items():
            self[key] = optimizer

    @property
    def default_optimizer(self) -> Optimizer:
        """The optimizer of variables that no rule matches."""
        return self._default_optimizer

    def __getitem__(self, key: str) -> Optimizer:
        """Return the optimizer of the variable with this path.

        Raises:
            ModelError: more than one rule matches.
        """
        if key in self._optimizer_map:
            return self._optimizer_map[key]
        matching = [rule for rule in self._optimizer_map if pattern(rule).fullmatch(key)]
        if len(matching) > 1:
            summary = f"Multiple optimizers assigned to variable {key!r}"
            given = f"the rules {', '.join(map(repr, matching))}"
            raise ModelError(summary, given=given, fix=f"make the rules more specific, or add {key!r} itself")
        return self._optimizer_map[matching[0]] if matching else self._default_optimizer

    def __setitem__(self, key: str, optimizer: Optimizer) -> None:
        if not isinstance(key, str) or key in self._optimizer_map:  # pyright: ignore[reportUnnecessaryIsInstance]
            summary = f"{shorten(key)} already exists in the OptimizerMap, or is not a string"
            raise ModelError(summary, given=shorten(key), fix="delete the former entry first")
        try:
            pattern(key)
        except re.error as error:
            summary = f"OptimizerMap: {shorten(key)} is not a regular expression"
            fix = f"escape what is meant literally: {re.escape(key)!r}"
            raise ModelError(summary, given=f"{shorten(key)}: {error}", fix=fix) from error
        self._optimizer_map[key] = _checked(optimizer)

    def __delitem__(self, key: str) -> None:
        del self._optimizer_map[key]

    def __len__(self) -> int:
        return len(self._optimizer_map)

    def __iter__(self) -> Iterator[str]:
        return iter(self._optimizer_map)

    def __call__(self, variable: Any) -> Optimizer:
        """Return the optimizer of a variable."""
        return self[variable.path]

    def _config_arguments(self) -> dict[str, Any]:
        return {"default_optimizer": self._default_optimizer, "optimizer_map": dict(self._optimizer_map)}


class MultiOptimizerState(NamedTuple):
    """Number of steps, an int32 scalar, and the states of the optimizers by key."""

    iterations: jax.Array
    inner: dict[str, PyTree]


class MultiOptimizer(Optimizer):
    """Several optimizers, one for each variable, chosen by a map or a function.

    Args:
        optimizer_map: an `OptimizerMap`, or a callable from a variable with `path`, `name`, `shape` and `dtype` to its
            optimizer, the same object for variables that are updated together.
        loss_scale_factor: replaces the `loss_scale_factor` of each optimizer.
        name: by default the name of the class in lower case.

    Raises:
        ModelError: an optimizer is not supported, such as a `LossScaleOptimizer`.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import optimizers
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(4, name="body"), kd.layers.Dense(2, name="head")])
        >>> chosen = optimizers.OptimizerMap(optimizers.SGD(0.1), {"head/.*": optimizers.Adam(1e-3)})
        >>> model.compile(optimizers.MultiOptimizer(chosen), loss="mse")
        >>> [(one.name, round(float(one.learning_rate), 4)) for one in model.optimizer.optimizers]
        [('adam', 0.001), ('sgd', 0.1)]

    Differs from Keras: `compile` also takes a dict of optimizers, whose names and rates callbacks can use.
    """

    def __init__(
        self,
        optimizer_map: OptimizerMap | Callable[[Any], Optimizer],
        loss_scale_factor: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(0.0, loss_scale_factor=loss_scale_factor, name=name)
        self._map = check_callable("optimizer_map", optimizer_map, "variable")
        self._all: list[Optimizer] = []
        if isinstance(optimizer_map, OptimizerMap):
            for optimizer in (*optimizer_map._optimizer_map.values(), optimizer_map.default_optimizer):
                self._number(optimizer)
        self._own_holder: ModelState | None = None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that the map contains, or that the function has chosen so far."""
        return list(self._all)

    @property
    def learning_rate(self) -> Any:
        """Not available: each of `optimizers` has its own."""
        raise AttributeError

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        raise AttributeError("a MultiOptimizer has no learning rate: set `learning_rate` of each of its `optimizers`")

    @property
    def iterations(self) -> Any:
        return self._steps_taken()

    @property
    def use_ema(self) -> bool:  # type: ignore[override]
        """Whether one of the optimizers keeps averages."""
        return any(optimizer.use_ema for optimizer in self._all)

    @use_ema.setter
    def use_ema(self, value: bool) -> None:
        del value  # the base's constructor sets it

    @property
    def gradient_accumulation_steps(self) -> int | None:  # type: ignore[override]
        """The number of the first optimizer that accumulates gradients, or None."""
        return next(filter(None, (optimizer.gradient_accumulation_steps for optimizer in self._all)), None)

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int | None) -> None:
        del value

    def init(self, params: PyTree) -> MultiOptimizerState:  # type: ignore[override]
        self._is_used = True
        states = {key: self._by_key(key).init(part) for key, part in self._parts(params).items()}
        return MultiOptimizerState(jnp.zeros((), jnp.int32), states)

    def update(self, updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        """Return the updates of the weights, and the new state; `extra` is passed to the optimizers."""
        weights = {} if params is None else self._parts(params)
        flat: dict[Any, Any] = {}
        states: dict[str, Any] = {}
        extra.pop("grad", None)
        for key, part in self._parts(updates).items():
            found, states[key] = self._by_key(key).update(part, state.inner[key], weights.get(key), **extra)
            flat |= traverse_util.flatten_dict(found)
        iterations = jnp.asarray(optax.safe_increment(state.iterations))
        return _restored(updates, flat), MultiOptimizerState(iterations, states)

    def squared_norm(self, updates: PyTree, state: PyTree, batch_weight: ArrayLike = 1.0) -> tuple[Any, Any]:
        """Return the squared norm of the gradients of all optimizers that take a step, and whether one does."""
        parts = self._parts(updates).items()
        found = [self._by_key(key).squared_norm(part, state.inner[key], batch_weight) for key, part in parts]
        squared = sum((jnp.where(is_due, one, 0.0) for one, is_due in found), jnp.zeros((), jnp.float32))
        return squared, jnp.any(jnp.array([is_due for _, is_due in found]))

    def rate_of_step(self, before: PyTree, after: PyTree) -> Any:
        """Return the learning rate of a step, if there is one optimizer."""
        if len(before.inner) == 1:
            (key,) = before.inner
            return self._by_key(key).rate_of_step(before.inner[key], after.inner[key])
        fix = "give compile a dict of optimizers by name: each rate then has a name"
        raise ModelError("a MultiOptimizer has no learning rate", given=f"{len(before.inner)} optimizers", fix=fix)

    def of_variable(self, names: tree_paths.Parts, leaf: Any) -> Optimizer:
        """Return the optimizer that updates a variable."""
        return self._by_key(self._key_of(names, leaf))

    def finalize(self, state: PyTree, params: PyTree) -> PyTree:
        flat: dict[Any, Any] = {}
        for key, part in self._parts(params).items():
            flat |= traverse_util.flatten_dict(self._by_key(key).finalize(state.inner[key], part))
        return _restored(params, flat)

    def build(self, variables: Iterable[Any]) -> None:
        """Create the variables of the initial state; see `Optimizer.build`."""
        super().build(variables)
        if self._own_holder is None and self._own_state is not None:
            parts = [(key,) for key in self._by_path(self._trained)]
            self._own_holder = ModelState(
                self._own_state, None, None, self._trained, parts
            )  # read by the inner optimizers
            for key in self._own_state.inner:
                self._by_key(key).attach(self._own_holder, ("inner", key))

    def _counts(self, numbered: PyTree) -> dict[int, Any]:
        found = super()._counts(numbered)
        for key, part in numbered.inner.items():
            found |= self._by_key(key)._counts(part)
        return found

    def attach(self, model: ModelState, part: tuple[str, ...] = ()) -> None:
        """Read and write the state that a model holds; see `Optimizer.attach`."""
        super().attach(model, part)
        node = model.state
        for name in part:
            node = getattr(node, name)
        for key in node.inner:
            self._by_key(key).attach(model, (*part, "inner", key))

    def detach(self) -> None:
        self._model = self._count = None
        for optimizer in self._all:
            optimizer.detach()

    def know_variables(self, variables: Mapping[str, Any]) -> None:
        """Set the variables to update, by path."""
        for optimizer in self._all:
            optimizer.know_variables(variables)

    def kind_of(self, path: str, shape: Sequence[int]) -> str:
        weight = jax.ShapeDtypeStruct(tuple(shape), jnp.float32)
        return self._by_key(self._key_of(tuple(path.split("/")), weight)).kind_of(path, shape)

    def know_dims(self, dim_names: Mapping[str, DimNames]) -> None:
        super().know_dims(dim_names)
        for optimizer in self._all:
            optimizer.know_dims(dim_names)

    def check_free(self, cell: Any, paths: Set[str]) -> None:
        """Check that no other model or custom loop uses this optimizer or its `optimizers`."""
        super().check_free(cell, paths)
        for optimizer in self._all:
            if self._own_state is None or optimizer._holder is not self._own_holder:
                optimizer.check_free(cell, paths)

    def averaged(self) -> list[tuple[Any, Any]]:
        return [pair for optimizer in self._all for pair in optimizer.averaged()]

    def _parts(self, tree: Any) -> dict[str, Any]:
        """Split nested dicts by the keys of their optimizers."""
        if not isinstance(tree, Mapping):
            summary = "MultiOptimizer needs the paths of variables"
            fix = "use it in compile, build it on variables, or pass nested dicts by names"
            raise ModelError(summary, given=f"weights as {shorten(tree)}", fix=fix)
        parts: dict[str, dict[Any, Any]] = {}
        for names, leaf in traverse_util.flatten_dict(dict(tree)).items():
            parts.setdefault(self._key_of(names, leaf), {})[names] = leaf
        return {key: traverse_util.unflatten_dict(parts[key]) for key in sorted(parts)}

    def _key_of(self, names: tree_paths.Parts, leaf: Any) -> str:
        path = tree_paths.join(names)
        if path not in self._chosen:
            self._chosen[path] = self._number(
                self._map(VariableOfPath(path, str(names[-1]), tuple(jnp.shape(leaf)), jnp.result_type(leaf)))
            )
        return self._chosen[path]

    @property
    def _chosen(self) -> dict[str, str]:
        return self.__dict__.setdefault("_chosen_keys", {})

    def _number(self, optimizer: Any) -> str:
        """Return the key of an optimizer, and add it to `optimizers`."""
        for index, known in enumerate(self._all):
            if known is optimizer:
                return str(index)
        self._all.append(_checked(optimizer))
        vars(optimizer)["loss_scale_factor"] = self.loss_scale_factor
        optimizer.know_dims(self._dim_names)
        return str(len(self._all) - 1)

    def _by_key(self, key: str) -> Optimizer:
        return self._all[int(key)]

    def _inner(self) -> dict[str, CustomLoops]:
        return {}  # each has a part of the variables only


def _checked(optimizer: Any) -> Optimizer:
    if isinstance(optimizer, Optimizer) and not isinstance(optimizer, LossScaleOptimizer | MultiOptimizer):
        return optimizer
    summary = f"{type(optimizer).__name__} cannot be used inside of a MultiOptimizer"
    fix = "put the MultiOptimizer into a LossScaleOptimizer, or name an optimizer of keras_dist.optimizers"
    raise ModelError(summary, given=shorten(optimizer), fix=fix)


def _restored(like: Any, flat: dict[Any, Any]) -> Any:
    """Arrange leaves in the structure of `like`."""
    return type(like)(
        {name: flat[(name,)] for name in like}
        if all((name,) in flat for name in like)
        else traverse_util.unflatten_dict(flat)
    )
