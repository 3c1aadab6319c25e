"""Attributes of layers: names, dtypes of a policy, lists and dicts of sublayers, changes that are undone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

import jax.numpy as jnp
from flax import nnx

from keras_dist import mixed_precision
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.weight_arguments import Layout
from keras_dist.layers.base.weights import WeightOwner
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.variables.lending import Lendable


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
            return nnx.Dict({str(name): item for name, item in items.items()})
    return value


def check_name(name: Any) -> str:
    """Return `name` if it is a valid layer name."""
    if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
        summary = '`name` of a layer must be a string of printable characters without "/", which separates paths'
        raise ModelError(summary, given=f"name={shorten(name)}", fix='for example name="d1"')
    return name


def check_dtype(dtype: DTypeLike, layer: str) -> str:
    """Return the name of `dtype`; float32 for None."""
    try:
        return jnp.dtype("float32" if dtype is None else dtype).name
    except Exception:  # numpy raises several
        summary = f"`dtype` of layer {layer!r} must be a name or numpy dtype"
        raise ModelError(summary, given=f"dtype={shorten(dtype)}", fix='for example dtype="bfloat16"') from None


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
    weights = module.weights if isinstance(module, WeightOwner) else []
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


class Precision:
    """The dtypes of a layer."""

    __slots__ = ()

    name: str
    _is_built: bool
    autocast: bool
    _dtype_policy: DTypePolicy
    _takes_keep: ClassVar[bool] = False
    """Whether the layer may hold parameters of `flax.nnx` modules, for which a policy has `keep`."""

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The policy for the dtypes of arithmetic and weights. Can be set until the layer is built.

        Source: `keras.layers.Layer.dtype_policy`.
        """
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: DTypeLike | DTypePolicy | None) -> None:
        if self._is_built:
            summary = f"the dtype policy of layer {self.name!r} cannot change any more: it is built"
            raise ModelError(summary, given=f"dtype_policy = {value!r}", fix="pass dtype=... when you make the layer")
        self._dtype_policy = policy_of(value, self.name, takes_keep=self._takes_keep)

    @property
    def dtype(self) -> str:
        """The dtype of the weights."""
        return self._dtype_policy.variable_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of the weights."""
        return self._dtype_policy.variable_dtype

    @property
    def compute_dtype(self) -> str:
        """The dtype of arithmetic: float inputs, and weights while `call` runs, are cast to it."""
        return self._dtype_policy.compute_dtype

    @property
    def input_dtype(self) -> str:
        """The dtype to which float inputs are cast, unless `autocast` is False."""
        return self.compute_dtype

    @property
    def quantization_mode(self) -> None:
        """None, since quantization is not available."""
        return None

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ModelError: quantization is not available."""
        given = f"quantize({mode!r}) of a {type(self).__name__}"
        fix = 'quantize in Keras: keras.saving.load_model("m.keras").quantize("int8"); or dtype="bfloat16"'
        raise ModelError(f"quantize of {self.name!r}: quantization is not available", given=given, fix=fix)

    @property
    def _casts_inputs(self) -> bool:
        return self.autocast

    def _weights_dtype(self, around: str | None) -> str | None:
        """Return the element type as which `call` reads float weights, given the type of the enclosing call."""
        is_mixed = self.compute_dtype != self.variable_dtype
        if not self.autocast or not jnp.issubdtype(self.compute_dtype, jnp.floating):
            return None
        return self.compute_dtype if is_mixed or around is not None else None


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
