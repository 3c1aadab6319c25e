"""Attributes of a layer: path, dtypes and arguments, what attributes can hold, and errors for missing ones."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist import mixed_precision
from keras_dist._support.signatures import takes_keyword
from keras_dist._support.stateless_scope import shapes_only
from keras_dist._support.types import DTypeLike
from keras_dist._unstable.flax_internals import PRIVATE_PREFIXES, attribute_order, is_data_attribute, restore_order
from keras_dist.errors import ArgumentTypeError, KerasDistError, ModelError, did_you_mean, shorten, unknown_name_error
from keras_dist.layers.base.building import is_made_by_building, number_weight
from keras_dist.layers.base.layer_record import is_layer
from keras_dist.layers.base.other_frameworks import check_is_ours, is_of_keras
from keras_dist.layers.base.weight_arguments import Layout, defaults_of
from keras_dist.layers.base.weights import direct_variables, walk
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.variables.lending import Lendable
from keras_dist.variables.variable import Variable


def path(self: Any) -> str | None:
    """The path of the layer in its model, or its name outside of models; None before it is built."""
    membership = self._record.membership
    return (membership.prefix if membership is not None else "") or (self.name if self.built else None)


def set_policy(layer: Any, value: DTypeLike | DTypePolicy | None) -> None:
    """Set the policy of a layer that is not built."""
    if layer._is_built:
        summary = f"the dtype policy of layer {layer.name!r} cannot change any more: it is built"
        raise ModelError(summary, given=f"dtype_policy = {value!r}", fix="pass dtype=... when you make the layer")
    layer._dtype_policy = policy_of(value, layer.name, takes_keep=layer._takes_keep)


def dtype(self: Any) -> str:
    """The dtype of the weights."""
    return self._dtype_policy.variable_dtype


def compute_dtype(self: Any) -> str:
    """The dtype of arithmetic: float inputs, and weights while `call` runs, are cast to it."""
    return self._dtype_policy.compute_dtype


def quantize(self: Any, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise ModelError: models quantize the weights of their layers."""
    given = f"quantize({mode!r}) of a {type(self).__name__}"
    fix = f'model.quantize("int8", ".*{self.name}")'
    raise ModelError(f"quantize: layer {self.name!r} is quantized by its model", given=given, fix=fix)


def dtype_of_weights(layer: Any, around: str | None) -> str | None:
    """Return the element type as which `call` reads float weights, given the type of the enclosing call."""
    is_mixed = layer.compute_dtype != layer.variable_dtype
    if not layer.autocast or not jnp.issubdtype(layer.compute_dtype, jnp.floating):
        return None
    return layer.compute_dtype if is_mixed or around is not None else None


def policy_of(dtype: DTypeLike | DTypePolicy | None, layer: str, *, takes_keep: bool = False) -> DTypePolicy:
    """Return the policy for the argument `dtype` of a layer; errors name the layer."""
    try:
        policy = mixed_precision.get(dtype)
    except ModelError as error:
        error.add_note(f"for `dtype` of layer {layer!r}")
        raise
    if policy.keep is not None and not takes_keep:
        summary = f"`keep` of a dtype policy is for flax.nnx modules; layer {layer!r} is not one"
        fix = f'layers that stay float32 are made with dtype="float32", others with dtype={policy.name!r}'
        raise ModelError(summary, given=f"{policy!r}", fix=fix)
    return policy


def check_dtype(dtype: DTypeLike, layer: str) -> str:
    """Return the name of `dtype`; float32 for None."""
    try:
        return jnp.dtype("float32" if dtype is None else dtype).name
    except Exception:  # numpy raises several
        summary = f"`dtype` of layer {layer!r} must be a name or numpy dtype"
        raise ModelError(summary, given=f"dtype={shorten(dtype)}", fix='for example dtype="bfloat16"') from None


def as_nnx_containers(value: Any) -> Any:
    """Convert lists, tuples and dicts that are empty or hold modules to `nnx.List` and `nnx.Dict`."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        items = [as_nnx_containers(item) for item in value]
        if any(isinstance(item, nnx.Module | nnx.Variable) for item in items) or value == []:
            return nnx.List(items)
    elif type(value) is dict:
        if value == {}:
            return nnx.Dict()
        items = {name: as_nnx_containers(item) for name, item in value.items()}
        if any(isinstance(item, nnx.Module | nnx.Variable) for item in items.values()):
            if not all(isinstance(name, str) for name in items):
                given, fix = f"the keys {shorten([*items])}", "use strings, or a list of layers"
                raise ModelError("keys of a dict of layers or weights must be strings", given=given, fix=fix)
            return nnx.Dict(items)
    return value


def check_name(name: Any) -> str:
    """Return `name` if it is a valid layer name."""
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
        summary = '`name` of a layer must be a string of printable characters without "/", which separates paths'
        raise ModelError(summary, given=f"name={shorten(name)}", fix='for example name="d1"')
    return name


def take_input_shape(kwargs: dict[str, Any]) -> tuple[int | None, ...] | None:
    """Remove `input_shape`, `input_dim` and `batch_input_shape`; return the shape including the batch."""
    if kwargs.get("input_shape") is not None:
        return (None, *kwargs.pop("input_shape"))
    if kwargs.get("input_dim") is not None:
        return (None, kwargs.pop("input_dim"))
    if kwargs.get("batch_input_shape") is not None:
        return tuple(kwargs.pop("batch_input_shape"))
    return None


def axes_of(layout: Layout) -> list[str | list[str] | None] | None:
    """Return the axes of a `TensorLayout`, or of a sequence of axes, as a list."""
    axes: Any = getattr(layout, "axes", layout)
    return None if axes is None else [list(axis) if isinstance(axis, tuple) else axis for axis in axes]


@contextlib.contextmanager
def undone_on_error(module: Any) -> Iterator[None]:
    """Restore the attributes of a module, and the weights of a layer, if an error is raised inside."""
    attributes = dict(vars(module))
    weights = module.weights if is_layer(module) else []
    kinds = [(value, type(value), dict(value.get_metadata())) for value in weights if isinstance(value, Lendable)]
    try:
        yield
    except BaseException:
        vars(module).clear()
        vars(module).update(attributes)
        for variable, kind, metadata in kinds:
            object.__setattr__(variable, "__class__", kind)
            variable.set_metadata(metadata)
        raise


def config_arguments(self: Any) -> dict[str, Any]:
    """Return the arguments of the constructor, with layouts as lists of axes, and current values."""
    arguments = {
        name: axes_of(value) if name.endswith("_layout") else value
        for name, value in self._arguments.items()
        if value is not None or not name.endswith(("_layout", "activity_regularizer"))
    }
    own = {"name": self.name, "trainable": self._trainable, "dtype": self.dtype_policy.identifier}
    if "data_format" in arguments and arguments["data_format"] is None:  # another process may have another default
        own["data_format"] = getattr(self, "data_format", None)
    return arguments | {name: value for name, value in own.items() if takes_keyword(type(self), name)}


def checked(layer: Any, name: str, value: Any) -> Any:
    """Return a value as an attribute of a layer can hold it; its variables are numbered, and belong to the layer."""
    if not name.startswith("_") and layer._record.membership is not None:
        _check_settable(layer, name, value)
    try:
        with shapes_only():
            items = jax.tree.leaves(value) if isinstance(value, list | tuple | dict) else [value]
    except ValueError as error:
        summary, given = f"keys of the dict `{name}` of a layer must have an order, as strings have", shorten(value)
        raise ModelError(summary, given=f"{name}={given}", fix="use strings, or a list of pairs") from error
    for item in items:
        if is_of_keras(item):
            check_is_ours(f"attribute {name!r} of layer {vars(layer).get('_name', type(layer).__name__)!r}", item)
    value = as_nnx_containers(value)
    for _, variable in direct_variables(value) if isinstance(value, nnx.List | nnx.Dict) else [((), value)]:
        if isinstance(variable, Variable):
            number_weight(layer, variable)
            if not variable._owners:
                variable.belong_to((layer,), variable._known_as)
    if name in vars(layer) and nnx.is_data(value) and not is_data_attribute(layer, name):
        return nnx.data(value)  # `self.kernel = None` before
    return value


def check_removable(layer: Any, name: str) -> None:
    """Check that an attribute can be deleted: a built model keeps its weights and layers."""
    if layer._record.membership is not None and isinstance(vars(layer).get(name), nnx.Variable | nnx.Module):
        summary = f"`{name}` of layer {layer.name!r} cannot be taken away: its model is built"
        raise ModelError(summary, given=f"del layer.{name}", fix="make the model anew without it")


def _check_settable(layer: Any, name: str, value: Any) -> None:
    """Refuse to change an attribute in a built model: compiled steps contain its value."""
    if isinstance(getattr(type(layer), name, None), property):
        return
    weight = isinstance(vars(layer).get(name), nnx.Variable)
    is_known = name in vars(layer) or hasattr(type(layer), name)
    if weight or (is_known and not np.array_equal(getattr(layer, name), value)):
        summary = f"`{name}` of layer {layer.name!r} cannot change any more: its model is built"
        fix = f"change it before, or keep it in a weight: self.{name} = self.add_weight(shape=(), trainable=False)"
        fix = f"layer.{name}.assign(value)" if weight else fix
        raise ModelError(summary, given=f"{name} = {shorten(value)}", fix=fix)


def missing(layer: Any, name: str) -> None:
    """Raise the error for a missing attribute; return None for a described weight that the layer was built without."""
    if name.startswith(("__", *PRIVATE_PREFIXES)) or name == "_arguments":
        raise AttributeError(name)
    if isinstance(getattr(type(layer), name, None), property):
        return getattr(type(layer), name).__get__(layer)  # its own error, again
    layer._check_initialised()
    if vars(layer).get("_is_built") and f"{name}_initializer" in vars(layer):
        return None
    message = f"{type(layer).__name__!r} object has no attribute {name!r}"
    if not vars(layer).get("_is_built") and is_made_by_building(layer, name):
        label = vars(layer).get("_name", type(layer).__name__)
        message += f"; layer {label!r} is not built: its weights are created when it is called on an array, "
        message += "or is in a model that knows its input"
    elif not name.startswith("_"):
        message += did_you_mean(name, (known for known in dir(layer) if not known.startswith("_") and known != name))
    raise AttributeError(message)


def complete_copy(layer: Any, copied: Any) -> Any:
    """Return a deep copy of a layer with what NNX leaves out: initial values, the order of attributes, arguments."""
    for (_, ours), (_, theirs) in zip(walk(layer), walk(copied), strict=True):
        if isinstance(ours, Variable) and ours.is_deferred:
            theirs.begin_as(ours)
    restore_order(copied, attribute_order(layer))
    if hasattr(layer, "_arguments"):
        object.__setattr__(copied, "_arguments", dict(layer._arguments))
    return copied


def unknown_arguments(layer: Any, kwargs: Mapping[str, Any]) -> KerasDistError:
    """Return the error for arguments that a constructor does not take."""
    known = [name for name in inspect.signature(type(layer).__init__).parameters if name not in ("self", "kwargs")]
    known += [name for weight in layer.weight_initializers for name in defaults_of(weight, None)]
    known += ["activity_regularizer", "trainable", "dtype", "autocast", "name", "input_shape"]
    known, first = list(dict.fromkeys(known)), next(iter(kwargs))
    summary = f"`{type(layer).__name__}` has no argument"
    given = ", ".join(f"{name}={shorten(value)}" for name, value in kwargs.items())
    return unknown_name_error(summary, first, known, given=given, fix="leave it out", error=ArgumentTypeError)
