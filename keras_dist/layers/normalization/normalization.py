"""Normalization layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import (
    argument_error,
    check_axes,
    check_axes_exist,
    check_axis,
    check_fraction,
    check_number,
    check_size,
)
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import DTypeLike
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.base.call_arguments import InputSpec
from keras_dist.layers.base.layer import Layer
from keras_dist.layers.base.weight_arguments import GammaAndBetaArguments, Identifier, LayerArguments, Layout
from keras_dist.ops.normalization import divided_by_norm, divided_by_rms, standardized, standardized_by, wide
from keras_dist.variables.variable import Variable

__all__ = ["BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization", "UnitNormalization"]

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
            warn(
                f"`rms_scaling` of layer {self.name!r} is deprecated: it divides by the deviation, not by the root "
                "mean square, as RMSNormalization does"
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
        axis: the dim of the channels, of `gamma` and of `beta`.
        epsilon, center, scale, **kwargs: as in `LayerNormalization`.
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
            raise argument_error("axis", 0, "the dim of the channels, not of the batch", layer=self.name, example=-1)
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


_NO_COUNT = 1e-7
"""Added to counts, so that the mean of no values is finite."""


class BatchNormalization(ScaledNormalization):
    """Normalize each channel to mean 0 and variance 1 over the batch; outside of training by moving statistics.

    Statistics are computed over the whole batch, also if it is sharded. With `trainable=False` the layer uses, and does
    not update, the moving statistics in training, too.

    Args:
        axis: the dim of the channels, of `gamma` and of `beta`.
        momentum: weight of the previous moving statistics in each step.
        moving_mean_initializer: initializer of `moving_mean` (channels,).
        moving_variance_initializer: initializer of `moving_variance` (channels,).
        moving_mean_layout: layout of `moving_mean` and `renorm_mean`; layout rules take precedence.
        moving_variance_layout: layout of `moving_variance`, `moving_stddev` and `renorm_stddev`.
        renorm: whether to use moving statistics in training, too: Batch Renormalization, arXiv:1702.03275. Adds the
            weights `moving_stddev`, `renorm_mean` and `renorm_stddev`.
        renorm_clipping: limits of the correction: a dict with some of `rmin`, `rmax`, `dmax`.
        renorm_momentum: like `momentum`, for `renorm_mean` and `renorm_stddev`.
        synchronized: unused: statistics are always computed over the whole batch.
        epsilon, center, scale, **kwargs: as in `LayerNormalization`.
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        *,
        moving_mean_initializer: Identifier = "zeros",
        moving_variance_initializer: Identifier = "ones",
        moving_mean_layout: Layout = None,
        moving_variance_layout: Layout = None,
        renorm: bool = False,
        renorm_clipping: Mapping[str, float] | None = None,
        renorm_momentum: float = 0.99,
        synchronized: bool = False,
        **kwargs: Unpack[GammaAndBetaArguments],
    ) -> None:
        super().__init__(epsilon, center, scale, **kwargs)
        self.axis = check_axis("axis", axis, self.name)
        self.momentum = check_fraction("momentum", momentum, self.name)
        self.renorm = renorm
        self.smallest_ratio, self.largest_ratio, self.largest_shift = _limits(renorm_clipping, self.name)
        self.renorm_momentum = check_fraction("renorm_momentum", renorm_momentum, self.name)
        self.synchronized = synchronized
        self.describe_weight("moving_mean", moving_mean_initializer, layout=moving_mean_layout)
        self.describe_weight("moving_variance", moving_variance_initializer, layout=moving_variance_layout)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `gamma`, `beta`, `moving_mean` and `moving_variance`, each (channels,)."""
        (axis,) = check_axes_exist("axis", (self.axis,), input_shape, self.name)
        shape = (input_shape[axis],)
        fixed: dict[str, Any] = {"trainable": False, "autocast": False}
        self.add_gamma_and_beta(shape)
        self.moving_mean = self.add_weight(shape, name="moving_mean", **fixed)
        self.moving_variance = self.add_weight(shape, name="moving_variance", **fixed)
        if self.renorm:
            mean = {"initializer": self.moving_mean_initializer, "layout": self.moving_mean_layout}
            deviation = {"initializer": self._first_deviation, "layout": self.moving_variance_layout}
            self.moving_stddev = self.add_weight(shape, name="moving_stddev", **fixed, **deviation)
            self.renorm_mean = self.add_weight(shape, name="renorm_mean", **fixed, **mean)
            self.renorm_stddev = self.add_weight(shape, name="renorm_stddev", **fixed, **deviation)
        self.input_spec = InputSpec(ndim=len(input_shape), axes={axis: input_shape[axis]})

    def call(self, inputs: jax.Array, training: bool | None = None, mask: jax.Array | None = None) -> jax.Array:
        """Return the normalized inputs.

        Args:
            inputs: an array of any shape.
            training: whether to use the statistics of these inputs, and update the moving statistics.
            mask: boolean, values included in the statistics, of the shape of the inputs without the last dim.

        Raises:
            ModelError: the mask has another rank.
        """
        values = wide(inputs)
        gamma = self.gamma[...].astype(values.dtype) if self.scale else jnp.ones((), values.dtype)
        beta = self.beta[...].astype(values.dtype) if self.center else jnp.zeros((), values.dtype)
        if training and self.trainable and values.size:  # an empty batch has no statistics
            mean, variance = self._statistics(values, mask)
            if self.renorm:
                ratio, shift = self._correction(mean, variance)
                gamma, beta = ratio * gamma, shift * gamma + beta
            self._update_statistics(mean, variance)
        else:
            mean = self.moving_mean[...].astype(values.dtype)
            variance = self.moving_variance[...].astype(values.dtype)
        outputs = standardized_by(values, mean, variance, gamma, beta, self.axis % values.ndim, self.epsilon)
        return outputs.astype(self.compute_dtype)

    def _statistics(self, values: jax.Array, mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance of each channel, 0 if all values are masked."""
        axes = tuple(dim for dim in range(values.ndim) if dim != self.axis % values.ndim)
        if mask is None:
            return jnp.mean(values, axes), jnp.var(values, axes)
        kept = jnp.broadcast_to(self._as_weights(mask, values), values.shape)
        count = jnp.sum(kept, axes, values.dtype, keepdims=True) + _NO_COUNT
        mean = jnp.sum(values, axes, keepdims=True, where=kept) / count
        variance = jnp.sum(jnp.square(values - mean), axes, keepdims=True, where=kept) / count
        return jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)

    def _as_weights(self, mask: jax.Array, values: jax.Array) -> jax.Array:
        if mask.ndim != values.ndim - 1:
            rank = f"rank {values.ndim - 1}, as the input without its last dim"
            summary = f"the mask of layer {self.name!r} must have {rank}"
            given = f"a mask of shape {mask.shape} for an input of shape {values.shape}"
            raise ModelError(summary, given=given, fix="reshape the mask, or pass mask=None")
        return jnp.asarray(mask, bool)[..., None]

    def _update_statistics(self, mean: jax.Array, variance: jax.Array) -> None:
        _move(self.moving_mean, mean, self.momentum)
        if not self.renorm:
            _move(self.moving_variance, variance, self.momentum)
            return
        deviation = jnp.sqrt(variance + self.epsilon)
        _move(self.renorm_mean, mean, self.renorm_momentum)
        _move(self.renorm_stddev, deviation, self.renorm_momentum)
        _move(self.moving_stddev, deviation, self.momentum)
        squared = jnp.square(self.moving_stddev[...]) - self.epsilon
        self.moving_variance[...] = jnp.maximum(squared, 0).astype(self.moving_variance.dtype)

    def _correction(self, mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return factor and offset that turn batch-normalized values into values normalized by moving statistics."""
        deviation = jnp.maximum(self.renorm_stddev[...].astype(mean.dtype), jnp.sqrt(self.epsilon))
        ratio = jnp.clip(jnp.sqrt(variance + self.epsilon) / deviation, self.smallest_ratio, self.largest_ratio)
        shift = (mean - self.renorm_mean[...].astype(mean.dtype)) / deviation
        shift = jnp.clip(shift, -self.largest_shift, self.largest_shift)
        return jax.lax.stop_gradient(ratio), jax.lax.stop_gradient(shift)

    def _first_deviation(self, shape: tuple[int, ...], dtype: DTypeLike, key: jax.Array | None = None) -> jax.Array:
        return jnp.sqrt(self.moving_variance_initializer(shape, dtype, key=key))


def _move(statistic: Variable, towards: jax.Array, momentum: float) -> None:
    statistic[...] = (statistic[...] * momentum + towards * (1 - momentum)).astype(statistic.dtype)


def _limits(clipping: Mapping[str, float] | None, layer: str) -> tuple[float, float, float]:
    limits = {"rmin": 0.0, "rmax": math.inf, "dmax": math.inf}
    if isinstance(clipping, Mapping | None):
        limits |= {name: limit for name, limit in (clipping or {}).items() if limit is not None}
    if (
        not isinstance(clipping, Mapping | None)
        or len(limits) > 3
        or limits["rmin"] > limits["rmax"]
        or limits["dmax"] < 0
    ):
        summary = f"`renorm_clipping` of layer {layer!r} must be a dict with some of rmin <= rmax and dmax >= 0"
        fix = 'for example renorm_clipping={"rmin": 0.3, "rmax": 3.0, "dmax": 5.0}'
        raise ModelError(summary, given=f"renorm_clipping={shorten(clipping)}", fix=fix)
    return limits["rmin"], limits["rmax"], limits["dmax"]
