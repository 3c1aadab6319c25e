"""The dtypes of a layer: methods of `Layer` that read and set its policy."""

from __future__ import annotations

from typing import Any, NoReturn

import jax.numpy as jnp

from keras_dist import mixed_precision
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError, shorten
from keras_dist.mixed_precision import DTypePolicy


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


def input_dtype(self: Any) -> str:
    """The dtype to which float inputs are cast, unless `autocast` is False."""
    return self.compute_dtype


def quantization_mode(self: Any) -> None:
    """None, since quantization is not available."""
    return None


def quantize(self: Any, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise ModelError: quantization is not available."""
    given = f"quantize({mode!r}) of a {type(self).__name__}"
    fix = 'quantize in Keras: keras.saving.load_model("m.keras").quantize("int8"); or dtype="bfloat16"'
    raise ModelError(f"quantize of {self.name!r}: quantization is not available", given=given, fix=fix)


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
