"""`Dense`."""

from __future__ import annotations

from typing import ClassVar, Unpack

import jax
import jax.numpy as jnp

from keras_dist import activations
from keras_dist._support.arguments import check_size
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.lora import LoraLayer
from keras_dist.layers.weight_arguments import Identifier, KernelAndBiasArguments


class Dense(LoraLayer):
    """`activation(inputs @ kernel + bias)`, over the last dim.

    Args:
        units: size of the last dim of the output.
        activation: a name or a function; None for none.
        use_bias: whether a bias is added.
        lora_rank: rank of a trainable update of the frozen `kernel`; None for no LoRA. See `enable_lora`.
        lora_alpha: scaling factor; the update is multiplied by `lora_alpha / lora_rank`. By default `lora_rank`.
        **kwargs: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` and `kernel_layout` of the weight
            `kernel` (features, units), the same of `bias` (units,), and the arguments of `Layer`.
    """

    weight_initializers: ClassVar = {"kernel": "glorot_uniform", "bias": "zeros"}

    def __init__(
        self,
        units: int,
        activation: Identifier = None,
        use_bias: bool = True,
        *,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        **kwargs: Unpack[KernelAndBiasArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.units = check_size("units", units, self.name)
        self.identify("activation", activations.get, activation)
        self.use_bias = use_bias
        self._describe_lora(lora_rank, lora_alpha)
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `kernel` (features, units) and `bias` (units,)."""
        self.kernel = self._add_adapted((input_shape[-1], self.units))
        if self.use_bias:
            self.bias = self.add_weight((self.units,), name="bias")
        self._add_factors()
        self.input_spec = InputSpec(min_ndim=2, axes={-1: input_shape[-1]})

    def call(self, inputs: jax.Array, training: bool | None = None) -> jax.Array:
        """Return the output (..., units) for inputs (batch, ..., features)."""
        outputs = jnp.matmul(inputs, self._adapted_value())
        if self.use_bias:
            outputs = outputs + self.bias[...]
        return outputs if self.activation is None else self.activation(outputs)
