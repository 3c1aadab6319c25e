"""`RMSNormalization`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from keras_dist._arguments import check_axes, check_axes_exist, check_number
from keras_dist.layers.layer import Layer


class RMSNormalization(Layer):
    """Each example over its root mean square, times `scale`.

    As in Keras the mask of the input is not passed on.

    Args:
        axis: the dim, or dims, of the mean and of `scale`.
        epsilon: added to the mean square.
        scale_layout: where the dims of `scale`, of the sizes of the dims `axis`, lie: a `TensorLayout`, or axes; wins
            over the layout rules.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: an argument is out of its range.

    Source: `keras.layers.RMSNormalization`.
    """

    def __init__(self, axis: Any = -1, epsilon: float = 1e-6, *, scale_layout: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = check_axes("axis", axis, self.name)
        self.epsilon = check_number("epsilon", epsilon, 0, layer=self.name)
        self.describe_weight("scale", "ones", layout=scale_layout)

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Create `scale`, of the sizes of the dims `axis`."""
        axes = check_axes_exist("axis", self.axis, input_shape, self.name)
        self.scale = self.add_weight(tuple(input_shape[axis] for axis in axes), name="scale")

    def call(self, x: Any) -> Any:
        """The inputs, normalized."""
        wide = jnp.promote_types(x.dtype, jnp.float32)  # squares of half precision overflow
        values = x.astype(wide)
        axes = check_axes_exist("axis", self.axis, x.shape, self.name)
        shape = [size if dim in axes else 1 for dim, size in enumerate(x.shape)]
        factor = jax.lax.rsqrt(jnp.mean(jnp.square(values), axes, keepdims=True) + self.epsilon)
        return (values * factor * self.scale[...].astype(wide).reshape(shape)).astype(x.dtype)
