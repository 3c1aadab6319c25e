"""`NNXLayer`, `JaxLayer` and `FlaxLayer`: modules and functions of Flax and JAX as layers."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx, traverse_util

from keras_dist import random
from keras_dist._support import tree_paths
from keras_dist._support.array_operators import Operators, value_of
from keras_dist._support.types import DTypeLike, PyTree, Shape
from keras_dist.errors import ConfigError, ModelError, shorten, with_type
from keras_dist.initializers import FromArray
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.module_precision import compute_under
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.layers.base.symbolic import is_shape
from keras_dist.random.seeds import key_of, next_numbers
from keras_dist.serialization.object_registry import snake_case


class NNXLayer(Layer):
    """Any `flax.nnx.Module` as a layer. Models wrap modules among their layers automatically.

    Its variables keep their paths, such as `linear/kernel`. Under a mixed policy its parameters are cast while it is
    called, as in `Model.from_nnx`.

    Args:
        module: a module, called as `module(inputs)` in training or evaluation mode.
        name: by default the name of its class.
        **kwargs: see `Layer`.

    Raises:
        ModelError: `module` is not a module.

    Example:
        >>> from flax import nnx
        >>> from keras_dist import layers
        >>> layer = layers.NNXLayer(nnx.Linear(8, 3, rngs=nnx.Rngs(0)), name="head")
        >>> layer(layers.Input((8,))).shape
        (None, 3)
    """

    _takes_keep: ClassVar[bool] = True

    def __init__(self, module: nnx.Module, *, name: str | None = None, **kwargs: Any) -> None:
        if not isinstance(module, nnx.Module):
            check_is_ours("NNXLayer: `module`", module)
            fix = "for example NNXLayer(nnx.Linear(8, 3, rngs=nnx.Rngs(0)))"
            raise ModelError("NNXLayer: `module` must be a flax.nnx.Module", given=with_type(module), fix=fix)
        super().__init__(name=name, **kwargs)
        if name is None:
            self._base_name = self._name = snake_case(type(module).__name__)
        self._members = module
        self.built = True

    def call(self, inputs: PyTree, training: bool | None = None) -> PyTree:
        if training:
            self._members.train()
        else:
            self._members.eval()
        if not (self.autocast and self.dtype_policy.is_mixed):
            return self._members(inputs)
        return compute_under(self.dtype_policy, self._members, lambda: self._members(inputs))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of a subclass that creates its own module.

        Raises:
            ConfigError: the module was an argument, which a config cannot contain.
        """
        if "module" in self._arguments:
            given = f"a module of {type(self._members).__module__}.{type(self._members).__name__}"
            fix = "subclass NNXLayer, make the module in __init__, and @saving.register_keras_serializable() the class"
            raise ConfigError(f"layer {self.name!r} cannot be serialized to a config", given=given, fix=fix)
        return super().get_config()


def as_layer(value: Any) -> Layer:
    """Return a layer unchanged; wrap a module in an `NNXLayer`."""
    if isinstance(value, Layer):
        return value
    if isinstance(value, nnx.Module):
        return NNXLayer(value)
    check_is_ours("the layer", value)
    fix = "pass an object, not a class; wrap a function as layers.Lambda(function)"
    raise ModelError("a layer must be a Layer or an nnx.Module", given=with_type(value), fix=fix)


class JaxLayer(Layer):
    """A JAX function with parameters and optional state, as a layer.

    Paths of weights are paths in the pytrees, such as `params/Dense_0/kernel` and `state/batch_stats/mean`.

    Args:
        call_fn: returns the outputs, or `(outputs, state)` if it has a parameter `state`. Its parameters are some of
            `params`, `state`, `rng` (a key in training, else None), `inputs` and `training`, with these names.
        init_fn: returns the initial `params`, or `(params, state)` if `call_fn` has a parameter `state`. Its parameters
            are some of `rng`, `inputs` (ones) and `training`.
        params: initial parameters instead of `init_fn`: a pytree of arrays, or `params` of another such layer.
        state: initial state, a pytree of arrays.
        seed: seed of the keys.
        native_serialization_platforms: unused.
        **kwargs: see `Layer`.

    Raises:
        ModelError: a function has other parameters, or there are no initial values.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from keras_dist import layers
        >>> def first(rng, inputs):
        ...     return {"kernel": jax.random.normal(rng, (inputs.shape[-1], 3))}
        >>> layer = layers.JaxLayer(lambda params, inputs: inputs @ params["kernel"], first)
        >>> layer(jnp.ones((2, 4))).shape, [weight.path for weight in layer.weights]
        ((2, 3), ['params/kernel'])
    """

    def __init__(
        self,
        call_fn: Callable[..., Any],
        init_fn: Callable[..., Any] | None = None,
        params: PyTree = None,
        state: PyTree = None,
        seed: int | None = None,
        native_serialization_platforms: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        del native_serialization_platforms
        super().__init__(**kwargs)
        self.call_fn, self.init_fn = call_fn, init_fn
        self._called_with = self._parameters("call_fn", call_fn, ("params", "state", "rng", "inputs", "training"))
        self._begun_with = self._parameters("init_fn", init_fn, ("rng", "inputs", "training")) if init_fn else ()
        has_weights = "params" in self._called_with or "state" in self._called_with
        if has_weights and init_fn is None and params is None and state is None:
            summary = f"layer {self.name!r} has no first parameters: neither `init_fn` nor `params` nor `state`"
            fix = "init_fn=lambda rng, inputs: ..., or params=..."
            raise ModelError(summary, given=f"call_fn of {', '.join(self._called_with)}", fix=fix)
        params, state = (
            jax.tree.map(value_of, given, is_leaf=lambda leaf: isinstance(leaf, Operators)) for given in (params, state)
        )
        # in a function, which hides the arrays from NNX
        self._given = None if params is None and state is None else lambda: (params, state)
        if "rng" in self._called_with:
            self.seed_generator = random.SeedGenerator(seed)

    def build(self, input_shape: PyTree) -> None:
        """Create a weight for each array of the initial parameters and state."""
        draws, given = self._given is None, self._given or (lambda: None)
        found: Any = jax.eval_shape(lambda: self._first_values(input_shape)) if draws else given()
        group, leaves = _Group(next_numbers()), 0
        for name, values, trainable in zip(("params", "state"), found, (True, False), strict=True):
            flat, treedef = jax.tree.flatten_with_path(values)
            parts, weights = [_names(path) for path, _ in flat], []
            for path, (_, value) in zip(parts, flat, strict=True):
                initial = _PartOfValues(self, input_shape, leaves, group) if draws else FromArray(np.asarray(value))
                weights.append(self._weight(name, path, value, initial, trainable))
                leaves += 1
            setattr(self, name, _with_lists(traverse_util.unflatten_dict(dict(zip(parts, weights, strict=True)))))
            setattr(self, f"_{name}_tree", (treedef, tuple(parts)))

    def call(self, inputs: PyTree, training: bool | None = False) -> PyTree:
        """Return the output of `call_fn`, and store its state."""
        given: dict[str, Any] = {"inputs": inputs, "training": training}
        for name in ("params", "state"):
            if name in self._called_with:
                treedef, _ = getattr(self, f"_{name}_tree")
                given[name] = treedef.unflatten([weight[...] for weight in self._listed_weights(name)])
        if "rng" in self._called_with:
            given["rng"] = self.call_keys(bool(training))
        outputs = self.call_fn(*[given[name] for name in self._called_with])
        if "state" not in self._called_with:
            return outputs
        outputs, state = outputs
        values, treedef = jax.tree.flatten(state)
        if treedef != self._state_tree[0]:
            summary = f"`call_fn` of layer {self.name!r} returned a state of another structure"
            fix = "return (outputs, state) with the state as it came, except for the values"
            raise ModelError(summary, given=str(treedef), expected=str(self._state_tree[0]), fix=fix)
        for weight, value in zip(self._listed_weights("state"), values, strict=True):
            weight.assign(value)
        return outputs

    def init_keys(self) -> PyTree:
        """Return the `rng` of `init_fn`."""
        return random.next_key()

    def call_keys(self, training: bool) -> PyTree:
        """Return the `rng` of `call_fn`."""
        return key_of(self.seed_generator) if training else None

    def _first_values(self, input_shape: PyTree) -> tuple[PyTree, PyTree]:
        if self.init_fn is None:
            return None, None
        inputs = jax.tree.map(
            lambda shape: jnp.ones([1, *(size or 1 for size in shape[1:])], self.compute_dtype),
            input_shape,
            is_leaf=is_shape,
        )
        given = {"rng": self.init_keys, "inputs": lambda: inputs, "training": lambda: True}
        found = self.init_fn(*[given[name]() for name in self._begun_with])
        return found if "state" in self._called_with else (found, None)

    def _weight(self, name: str, path: tree_paths.Parts, value: Any, initializer: Any, trainable: bool) -> Any:
        label = "/".join((name, *map(str, path)))
        if not isinstance(value, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic | float | int):
            fix = "keep other values in the function"
            raise ModelError(f"{label!r} of layer {self.name!r} is not an array", given=shorten(value), fix=fix)
        dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(value))
        own = None if jnp.issubdtype(dtype, jnp.floating) else dtype
        return self.add_weight(jnp.shape(value), initializer, dtype=own, trainable=trainable, name=str(path[-1]))

    def _listed_weights(self, name: str) -> list[Any]:
        _, parts = getattr(self, f"_{name}_tree")
        found = []
        for path in parts:
            part = getattr(self, name)
            for step in path:
                part = part[step if isinstance(part, nnx.List) else str(step)]
            found.append(part)
        return found

    def _parameters(self, argument: str, function: Any, known: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(inspect.signature(function).parameters) if callable(function) else ()
        if "inputs" not in names or not set(names) <= set(known):
            summary = f"`{argument}` of layer {self.name!r} must take `inputs`, and may take {', '.join(known)}"
            fix = f"{argument}=lambda {', '.join(known)}: ..."
            raise ModelError(summary, given=f"{shorten(function)} of {', '.join(names) or 'no parameters'}", fix=fix)
        return names

    def _config_arguments(self) -> dict[str, Any]:
        given = super()._config_arguments()
        return {name: value for name, value in given.items() if name not in ("params", "state", "variables")}


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
    """Weights that one call of `init_fn` initializes."""

    numbers: tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class _PartOfValues:
    """The initializer of one of the arrays that `init_fn` returns."""

    layer: JaxLayer
    input_shape: PyTree
    index: int
    group: _Group

    def __call__(self, shape: Shape, dtype: DTypeLike, key: jax.Array) -> jax.Array:
        """Return the array, from a call with this key."""
        with random.key_stream(key):
            values = self.layer._first_values(self.input_shape)
        return jnp.asarray(jax.tree.leaves(values)[self.index], dtype)


class FlaxLayer(JaxLayer):
    """A Linen module as a layer. Collections other than `params` are its state. NNX modules need no such wrapper.

    Args:
        module: a `flax.linen.Module`, called as `module(inputs)`, or `module(inputs, training=...)` if possible.
        method: a method of the module, or a function of it, instead of `__call__`.
        variables: initial variables as returned by `module.init`, which is called by default.
        **kwargs: `seed`, and the arguments of `Layer`.

    Raises:
        ModelError: `module` is not a Linen module.

    Example:
        >>> import flax.linen, jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layer = layers.FlaxLayer(flax.linen.Dense(3))
        >>> layer(jnp.ones((2, 4))).shape, [weight.path for weight in layer.weights]
        ((2, 3), ['params/params/bias', 'params/params/kernel'])
    """

    def __init__(
        self, module: linen.Module, method: Any = None, variables: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not isinstance(module, linen.Module):
            fix = "a flax.nnx.Module is a layer as it is, or layers.NNXLayer(module)"
            raise ModelError("FlaxLayer: `module` must be a module of Linen", given=with_type(module), fix=fix)
        called = module.__call__ if method is None else getattr(module, method) if isinstance(method, str) else method
        takes_training = "training" in inspect.signature(called).parameters

        def options(training: bool | None) -> dict[str, Any]:
            return {"method": method} | ({"training": bool(training)} if takes_training else {})

        def call_fn(params: PyTree, state: PyTree, rng: PyTree, inputs: PyTree, training: bool | None) -> Any:
            known = {**(params or {}), **(state or {})}
            mutable = linen.DenyList(["params"])
            return module.apply(known, inputs, rngs=rng, mutable=mutable, **options(training))

        def init_fn(rng: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            return _in_two(module.init(rng, inputs, **options(True)))

        params, state = (None, None) if variables is None else _in_two(variables)
        kwargs = {"name": None, **kwargs}
        super().__init__(call_fn, init_fn, params, state, **kwargs)

    def init_keys(self) -> PyTree:
        """Return keys of the streams `params` and `dropout`."""
        return {"params": random.next_key(), "dropout": random.next_key()}

    def call_keys(self, training: bool) -> PyTree:
        """Return a key of the stream `dropout`, in training."""
        return {"dropout": key_of(self.seed_generator)} if training else {}


def _in_two(variables: Mapping[str, Any]) -> tuple[PyTree, PyTree]:
    params = {name: values for name, values in variables.items() if name == "params"}
    return params, {name: values for name, values in variables.items() if name != "params"}


def _names(path: tuple[Any, ...]) -> tree_paths.Parts:
    """Convert a path of a pytree to names of attributes and indices of lists."""
    parts = tree_paths.parts_of(path)
    return tuple(part if isinstance(part, int) else str(part).replace("/", ".") for part in parts) or ("value",)


def _with_lists(weights: Any) -> Any:
    """Replace nested dicts with keys 0, 1, ... by lists."""
    if not isinstance(weights, dict):
        return weights
    parts = {name: _with_lists(part) for name, part in weights.items()}
    is_list = bool(parts) and [*parts] == [*range(len(parts))]
    return [*parts.values()] if is_list else {str(name): part for name, part in parts.items()}
