"""`GroupNormalization`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_axes_exist, check_axis, check_number, check_size
from keras_dist.errors import ModelError
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer


class GroupNormalization(Layer):
    """Each group of channels of an example with mean 0 and variance 1 over all its dims.

    Args:
        groups: into how many groups of neighbours the channels fall; -1 for one channel in each.
        axis: the dim of the channels.
        epsilon: added to the variance.
        center: whether `beta` is added.
        scale: whether `gamma` multiplies.
        beta_initializer: gives the first value of `beta` (channels,).
        gamma_initializer: gives the first value of `gamma` (channels,).
        beta_regularizer: a function of `beta` that is added to the loss.
        gamma_regularizer: likewise.
        beta_constraint: a function of `beta`, applied after each update.
        gamma_constraint: likewise.
        beta_layout: where the dim of `beta` lies: a `TensorLayout`, or axes; layout rules win over it.
        gamma_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range, or the groups do not divide the channels.

    Source: `keras.layers.GroupNormalization`.
    """

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        *,
        beta_layout: Any = None,
        gamma_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.groups = groups if groups == -1 else check_size("groups", groups, self.name)
        self.axis = _check_not_batch(check_axis("axis", axis, self.name), self.name)
        self.epsilon = check_number("epsilon", epsilon, 0, layer=self.name)
        self.center = center
        self.scale = scale
        self.describe_weight("gamma", gamma_initializer, gamma_regularizer, gamma_constraint, gamma_layout)
        self.describe_weight("beta", beta_initializer, beta_regularizer, beta_constraint, beta_layout)
        self.supports_masking = True
        self.autocast = False

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `gamma` (channels,) and `beta` (channels,)."""
        (axis,) = check_axes_exist("axis", (self.axis,), input_shape, self.name)
        channels = input_shape[axis]
        if self.groups == -1:
            self.groups = channels
        if channels % self.groups:
            raise ModelError(
                f"`groups` of layer {self.name!r} do not divide its channels",
                given=f"groups={self.groups} for {channels} channels: dim {axis} of {tuple(input_shape)}",
                expected=f"a divisor of {channels}",
                fix="change groups, or axis; groups=-1 puts each channel into a group of its own",
            )
        if self.scale:
            self.gamma = self.add_weight((channels,), autocast=False, name="gamma")
        if self.center:
            self.beta = self.add_weight((channels,), autocast=False, name="beta")
        self.input_spec = InputSpec(ndim=len(input_shape), axes={axis: channels})

    def call(self, inputs: Any) -> Any:
        """The inputs, normalized."""
        wide = jnp.promote_types(inputs.dtype, jnp.float32)  # squares of half precision overflow
        axis = self.axis % inputs.ndim
        grouped = (self.groups, inputs.shape[axis] // self.groups)
        values = inputs.astype(wide).reshape(*inputs.shape[:axis], *grouped, *inputs.shape[axis + 1 :])
        shape = (*(1,) * axis, *grouped, *(1,) * (inputs.ndim - axis - 1))
        axes = tuple(dim for dim in range(1, values.ndim) if dim != axis)
        factor = jax.lax.rsqrt(jnp.var(values, axes, keepdims=True) + self.epsilon)
        mean = jnp.mean(values, axes, keepdims=True)
        if self.scale:
            factor = factor * self.gamma[...].astype(wide).reshape(shape)
        summand = -mean * factor
        if self.center:
            summand = summand + self.beta[...].astype(wide).reshape(shape)
        return (values * factor + summand).reshape(inputs.shape).astype(self.compute_dtype)


def _check_not_batch(axis: int, layer: str) -> int:
    """`axis`.

    Raises:
        ModelError: it is the dim of the batch.
    """
    if axis == 0:
        raise ModelError(
            f"`axis` of layer {layer!r} is the dim of the batch",
            given="axis=0",
            expected="the dim of the channels",
            fix="for example axis=-1",
        )
    return axis
