"""`Precision`: the dtypes of a layer, by its dtype policy."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import jax.numpy as jnp

from keras_dist import mixed_precision
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError
from keras_dist.mixed_precision import DTypePolicy


class Precision:
    """The dtypes of a layer."""

    __slots__ = ()

    name: str
    _has_weights: bool
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
        if self._has_weights:
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
