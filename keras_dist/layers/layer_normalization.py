"""`LayerNormalization`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_axes, check_axes_exist, check_number
from keras_dist.errors import ModelError
from keras_dist.layers.layer import Layer


class LayerNormalization(Layer):
    """Each example with mean 0 and variance 1 over the dims `axis`.

    Args:
        axis: the dim, or dims, of the mean, of `gamma` and of `beta`.
        epsilon: added to the variance.
        center: whether `beta` is added.
        scale: whether `gamma` multiplies.
        beta_initializer: gives the first value of `beta`, of the sizes of the dims `axis`.
        gamma_initializer: gives the first value of `gamma`, likewise.
        beta_regularizer: a function of `beta` that is added to the loss.
        gamma_regularizer: likewise.
        beta_constraint: a function of `beta`, applied after each update.
        gamma_constraint: likewise.
        beta_layout: where the dims of `beta` lie: a `TensorLayout`, or axes; layout rules win over it.
        gamma_layout: likewise.
        rms_scaling: only False: deprecated in Keras, which divides by the deviation, not by the root mean square.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.LayerNormalization`.
    """

    def __init__(
        self,
        axis: Any = -1,
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
        rms_scaling: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if rms_scaling:
            raise ModelError(
                f"`rms_scaling` of layer {self.name!r} is deprecated in Keras",
                given="rms_scaling=True",
                expected="rms_scaling=False",
                fix="use RMSNormalization, which divides by the root mean square",
            )
        self.axis = check_axes("axis", axis, self.name)
        self.epsilon = check_number("epsilon", epsilon, 0, layer=self.name)
        self.center = center
        self.scale = scale
        self.describe_weight("gamma", gamma_initializer, gamma_regularizer, gamma_constraint, gamma_layout)
        self.describe_weight("beta", beta_initializer, beta_regularizer, beta_constraint, beta_layout)
        self.supports_masking = True
        self.autocast = False

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `gamma` and `beta`, of the sizes of the dims `axis`."""
        axes = check_axes_exist("axis", self.axis, input_shape, self.name)
        shape = tuple(input_shape[axis] for axis in axes)
        if self.scale:
            self.gamma = self.add_weight(shape, autocast=False, name="gamma")
        if self.center:
            self.beta = self.add_weight(shape, autocast=False, name="beta")

    def call(self, inputs: Any) -> Any:
        """The inputs, normalized."""
        wide = jnp.promote_types(inputs.dtype, jnp.float32)  # squares of half precision overflow
        values = inputs.astype(wide)
        axes = check_axes_exist("axis", self.axis, inputs.shape, self.name)
        shape = [size if dim in axes else 1 for dim, size in enumerate(inputs.shape)]
        mean = jnp.mean(values, axes, keepdims=True)
        factor = jax.lax.rsqrt(jnp.var(values, axes, keepdims=True) + self.epsilon)
        if self.scale:
            factor = factor * self.gamma[...].astype(wide).reshape(shape)
        summand = -mean * factor
        if self.center:
            summand = summand + self.beta[...].astype(wide).reshape(shape)
        return (values * factor + summand).astype(self.compute_dtype)
