"""Layers that normalize each example separately."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_axes, check_axes_exist, check_axis, check_number, check_size
from keras_dist.errors import ModelError
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import GammaAndBetaArguments, LayerArguments, Layout
from keras_dist.ops.normalization import divided_by_norm, divided_by_rms, standardized, wide

_LARGEST_FACTOR = 1e12
"""Limit of the factor in `UnitNormalization`, for zeros."""


class ScaledNormalization(Layer):
    """The base of normalizations with weights: `(inputs - mean) / sqrt(variance + epsilon) * gamma + beta`."""

    weight_initializers: ClassVar = {"beta": "zeros", "gamma": "ones"}

    def __init__(self, epsilon: float, center: bool, scale: bool, **kwargs: Unpack[GammaAndBetaArguments]) -> None:
        super().__init__(**kwargs)
        self.epsilon = check_number("epsilon", epsilon, 0, layer=self.name)
        self.center = center
        self.scale = scale
        self.supports_masking = True

    def add_gamma_and_beta(self, shape: Sequence[int]) -> None:
        """Create `gamma` and `beta`, if the layer has them."""
        if self.scale:
            self.gamma = self.add_weight(shape, autocast=False, name="gamma")
        if self.center:
            self.beta = self.add_weight(shape, autocast=False, name="beta")

    def normalize(self, values: jax.Array, axes: Sequence[int], shape: Sequence[int]) -> jax.Array:
        """Normalize over the dims `axes`, with `gamma` and `beta` reshaped to `shape`."""
        gamma = self.gamma[...].astype(values.dtype).reshape(shape) if self.scale else None
        beta = self.beta[...].astype(values.dtype).reshape(shape) if self.center else None
        return standardized(values, axes, self.epsilon, gamma, beta)


def _sizes(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Return `shape` with size 1 for all dims but `axes`."""
    return [size if dim in axes else 1 for dim, size in enumerate(shape)]


class LayerNormalization(ScaledNormalization):
    """Normalize each example to mean 0 and variance 1 over the dims `axis`.

    Args:
        axis: the dim, or dims, of the moments, of `gamma` and of `beta`.
        epsilon: added to the variance.
        center: whether `beta` is added.
        scale: whether `gamma` multiplies.
        rms_scaling: deprecated, as in Keras: whether to divide by the standard deviation without subtracting the mean,
            and multiply by `gamma`. For the root mean square use `RMSNormalization`.
        **kwargs: `beta_initializer`, `beta_regularizer`, `beta_constraint` and `beta_layout` of the weight `beta`, of
            the sizes of the dims `axis`, the same of `gamma`, and the arguments of `Layer`.
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        *,
        rms_scaling: bool = False,
        **kwargs: Unpack[GammaAndBetaArguments],
    ) -> None:
        super().__init__(epsilon, center, scale, **kwargs)
        self.rms_scaling = rms_scaling
        if rms_scaling:
            warnings.warn(
                f"`rms_scaling` of layer {self.name!r} is deprecated: it divides by the deviation, not by the root "
                "mean square, as RMSNormalization does",
                stacklevel=2,
            )
        self.axis = check_axes("axis", axis, self.name)
        self.autocast = False

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `gamma` and `beta`, of the sizes of the dims `axis`."""
        axes = check_axes_exist("axis", self.axis, input_shape, self.name)
        sizes = [input_shape[axis] for axis in axes]
        if self.rms_scaling:
            self.gamma = self.add_weight(sizes, autocast=False, name="gamma")
        else:
            self.add_gamma_and_beta(sizes)

    def call(self, inputs: jax.Array) -> jax.Array:
        axes = check_axes_exist("axis", self.axis, inputs.shape, self.name)
        values, sizes = wide(inputs), _sizes(inputs.shape, axes)
        if not self.rms_scaling:
            return self.normalize(values, axes, sizes).astype(self.compute_dtype)
        factor = jax.lax.rsqrt(jnp.var(values, axes, keepdims=True) + self.epsilon)
        return (values * factor * self.gamma[...].astype(values.dtype).reshape(sizes)).astype(self.compute_dtype)


class GroupNormalization(ScaledNormalization):
    """Normalize each group of channels of an example to mean 0 and variance 1.

    Args:
        groups: number of groups of neighbouring channels; -1 for one group per channel.
        axis: the dim of the channels.
        epsilon: added to the variance.
        center: whether `beta` is added.
        scale: whether `gamma` multiplies.
        **kwargs: `beta_initializer`, `beta_regularizer`, `beta_constraint` and `beta_layout` of the weight `beta`
            (channels,), the same of `gamma` (channels,), and the arguments of `Layer`.
    """

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        **kwargs: Unpack[GammaAndBetaArguments],
    ) -> None:
        super().__init__(epsilon, center, scale, **kwargs)
        self.groups = groups if groups == -1 else check_size("groups", groups, self.name)
        self.axis = check_axis("axis", axis, self.name)
        if self.axis == 0:
            summary = f"`axis` of layer {self.name!r} must be the dim of the channels, not of the batch"
            raise ModelError(summary, given="axis=0", fix="for example axis=-1")
        self.autocast = False

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `gamma` (channels,) and `beta` (channels,)."""
        (axis,) = check_axes_exist("axis", (self.axis,), input_shape, self.name)
        channels = input_shape[axis]
        if self.groups == -1:
            self.groups = channels
        if channels % self.groups:
            given = f"groups={self.groups} for {channels} channels: dim {axis} of {tuple(input_shape)}"
            fix = "change groups, or axis; groups=-1 gives each channel a group"
            raise ModelError(f"`groups` of layer {self.name!r} must divide its channels", given=given, fix=fix)
        self.add_gamma_and_beta((channels,))
        self.input_spec = InputSpec(ndim=len(input_shape), axes={axis: channels})

    def call(self, inputs: jax.Array) -> jax.Array:
        axis = self.axis % inputs.ndim
        grouped = (self.groups, inputs.shape[axis] // self.groups)
        values = wide(inputs).reshape(*inputs.shape[:axis], *grouped, *inputs.shape[axis + 1 :])
        shape = (*(1,) * axis, *grouped, *(1,) * (inputs.ndim - axis - 1))
        axes = tuple(dim for dim in range(1, values.ndim) if dim != axis)
        return self.normalize(values, axes, shape).reshape(inputs.shape).astype(self.compute_dtype)


class RMSNormalization(Layer):
    """`x / sqrt(mean(x**2) + epsilon) * scale`, with the mean over the dims `axis`.

    As in Keras, the output has no mask.

    Args:
        axis: the dim, or dims, of the mean and of `scale`.
        epsilon: added to the mean square.
        scale_layout: layout of `scale`, which has the sizes of the dims `axis`; layout rules take precedence.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-6,
        *,
        scale_layout: Layout = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.axis = check_axes("axis", axis, self.name)
        self.epsilon = check_number("epsilon", epsilon, 0, layer=self.name)
        self.describe_weight("scale", "ones", layout=scale_layout)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `scale`, of the sizes of the dims `axis`."""
        axes = check_axes_exist("axis", self.axis, input_shape, self.name)
        self.scale = self.add_weight(tuple(input_shape[axis] for axis in axes), name="scale")

    def call(self, x: jax.Array) -> jax.Array:
        values = wide(x)
        axes = check_axes_exist("axis", self.axis, x.shape, self.name)
        scale = self.scale[...].astype(values.dtype).reshape(_sizes(x.shape, axes))
        return divided_by_rms(values, axes, self.epsilon, scale).astype(x.dtype)


class UnitNormalization(Layer):
    """Divide each example by its L2 norm over the dims `axis`.

    Args:
        axis: the dim, or dims, of the norm.
        **kwargs: see `Layer`.
    """

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.axis = check_axes("axis", axis, self.name)
        self.supports_masking = True

    def call(self, inputs: jax.Array) -> jax.Array:
        axes = check_axes_exist("axis", self.axis, inputs.shape, self.name)
        return divided_by_norm(inputs, axes, _LARGEST_FACTOR)
