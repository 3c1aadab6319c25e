"""`SpectralNormalization`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._arguments import check_size
from keras_dist.errors import ModelError
from keras_dist.initializers import TruncatedNormal
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.loop_body import build_before
from keras_dist.layers.wrapper import Wrapper

_LARGEST_FACTOR = 1e7
"""What a vector of zeros is multiplied by."""


class SpectralNormalization(Wrapper):
    """A layer whose kernel is divided by its largest singular value, as estimated by the power method.

    Adds the weight `vector_u` (1, last dim of the kernel), which training moves. The layer's own weights are found
    under its name: `dense/kernel`.

    Args:
        layer: a layer with a weight `kernel` or `embeddings`.
        power_iterations: how many steps of the power method each step of training takes.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range.

    Differs from Keras: the kernel is divided in each call, outside of training too, and stays as the optimizer left it.
    Keras overwrites it in training, which `fit` on JAX forgets. `vector_u` is the first of `weights`.

    Source: `keras.layers.SpectralNormalization`; arXiv:1802.05957.
    """

    def __init__(self, layer: Any, power_iterations: int = 1, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.power_iterations = check_size("power_iterations", power_iterations, self.name)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create the weights of the layer, and `vector_u`.

        Raises:
            ModelError: the layer has no kernel.
        """
        build_before(self.layer, jnp.zeros((input_shape[0] or 1, *input_shape[1:]), self.compute_dtype))
        kernel = self._kernel()
        self.vector_u = self.add_weight(
            (1, kernel.shape[-1]),
            TruncatedNormal(stddev=0.02),
            kernel.dtype,
            trainable=False,
            autocast=False,
            name="vector_u",
        )
        self.input_spec = InputSpec(min_ndim=1, axes={-1: input_shape[-1]})

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """What the layer gives with the divided kernel."""
        variable = self._kernel()
        kernel = variable.get_raw_value()  # as it is stored, not as it is computed with
        matrix, right = kernel.reshape(-1, kernel.shape[-1]), self.vector_u[...]
        for _ in range(self.power_iterations if training else 1):
            left = _normalized(right @ matrix.T)
            right = _normalized(left @ matrix)
        left, right = jax.lax.stop_gradient((left, right))
        is_zero = jnp.all(kernel == 0)
        if training:
            self.vector_u[...] = jnp.where(is_zero, self.vector_u[...], right)
        largest = (left @ matrix @ right.T)[0, 0]
        variable[...] = kernel / jnp.where(is_zero, 1, largest)
        try:
            return self.layer(inputs, training=training)
        finally:
            variable[...] = kernel

    def _kernel(self) -> nnx.Variable:
        for name in ("kernel", "embeddings"):
            if isinstance(variable := vars(self.layer).get(name), nnx.Variable):
                return variable
        raise ModelError(
            f"`layer` of layer {self.name!r} has no kernel",
            given=repr(self.layer),
            expected="a layer with a weight `kernel` or `embeddings`",
            fix="for example SpectralNormalization(Dense(10))",
        )


def _normalized(vector: jax.Array) -> jax.Array:
    return vector * jnp.minimum(jax.lax.rsqrt(jnp.sum(jnp.square(vector))), _LARGEST_FACTOR)
