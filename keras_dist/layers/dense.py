"""`Dense`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from keras_dist import activations
from keras_dist._arguments import check_size
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer


class Dense(Layer):
    """`activation(inputs @ kernel + bias)`, over the last dim.

    Args:
        units: size of the last dim of the output.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        kernel_initializer: gives the first value of `kernel` (last dim of the input, units).
        bias_initializer: gives the first value of `bias` (units,).
        kernel_regularizer: a function of `kernel` that is added to the loss.
        bias_regularizer: likewise.
        activity_regularizer: a function of the output that is added to the loss.
        kernel_constraint: a function of `kernel`, applied after each update.
        bias_constraint: likewise.
        kernel_layout: where the dims of `kernel` lie: a `TensorLayout`, or axes; layout rules win over it.
        bias_layout: likewise.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: `units` is not a positive integer.

    Source: `keras.layers.Dense`.
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        *,
        kernel_layout: Any = None,
        bias_layout: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.units = check_size("units", units, self.name)
        self.identify("activation", activations.get, activation)
        self.use_bias = use_bias
        self.describe_weight("kernel", kernel_initializer, kernel_regularizer, kernel_constraint, kernel_layout)
        self.describe_weight("bias", bias_initializer, bias_regularizer, bias_constraint, bias_layout)
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (features, units) and `bias` (units,)."""
        self.kernel = self.add_weight((input_shape[-1], self.units), name="kernel")
        if self.use_bias:
            self.bias = self.add_weight((self.units,), name="bias")
        self.input_spec = InputSpec(min_ndim=2, axes={-1: input_shape[-1]})

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The output (..., units) for inputs (batch, ..., features)."""
        outputs = jnp.matmul(inputs, self.kernel[...])
        if self.use_bias:
            outputs = outputs + self.bias[...]
        return self.activation(outputs)
