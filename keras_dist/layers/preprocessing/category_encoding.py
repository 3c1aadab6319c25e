"""`CategoryEncoding`."""

from __future__ import annotations

from typing import Unpack

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_size
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.layers.layer import Layer
from keras_dist.layers.preprocessing.host_layer import check_dense, check_output_mode
from keras_dist.layers.weight_arguments import LayerArguments


class CategoryEncoding(Layer):
    """Encode integers as vectors with one entry for each category.

    Args:
        num_tokens: the number of categories: the integers are 0 to `num_tokens - 1`.
        output_mode: `"one_hot"`, a vector for each integer; `"multi_hot"`, one for each example, with 1 for the
            integers in it; or `"count"`, one for each example, with the number of times that each integer is in it.
        sparse: False; arrays are dense.
        **kwargs: see `Layer`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import layers
        >>> layers.CategoryEncoding(3, output_mode="count")(np.array([[0, 2, 2]])).tolist()
        [[1.0, 0.0, 2.0]]

    Differs from Keras: `sparse=True` is refused.
    """

    def __init__(
        self,
        num_tokens: int | None = None,
        output_mode: str = "multi_hot",
        sparse: bool = False,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.num_tokens = check_size("num_tokens", num_tokens, self.name)
        self.output_mode = check_output_mode(output_mode, ("multi_hot", "one_hot", "count"), self.name)
        self.sparse = check_dense(sparse, False, self.name)
        self.autocast = False

    def call(self, inputs: ArrayLike, count_weights: jax.Array | None = None) -> jax.Array:
        """Return the vectors.

        Args:
            inputs: integers (batch, n), or (batch,).
            count_weights: the weight of each integer, of the shape of the inputs; only with `output_mode="count"`.
        """
        if count_weights is not None and self.output_mode != "count":
            given = f'count_weights with output_mode="{self.output_mode}"'
            fix = 'leave them out, or make the layer with output_mode="count"'
            raise ModelError(f"layer {self.name!r} does not count", given=given, fix=fix)
        return encode_categories(inputs, self.output_mode, self.num_tokens, self.compute_dtype, count_weights)


def encode_categories(
    inputs: ArrayLike, output_mode: str, depth: int, dtype: str, count_weights: jax.Array | None = None
) -> jax.Array:
    """Return integers as vectors of `depth` numbers; see `CategoryEncoding`."""
    inputs = jnp.atleast_1d(jnp.asarray(inputs))
    if output_mode == "one_hot" and inputs.ndim > 1 and inputs.shape[-1] == 1:
        inputs = inputs[..., 0]
    vectors = jax.nn.one_hot(inputs.astype("int32"), depth, dtype=dtype)
    if output_mode == "one_hot":
        return vectors
    axis = min(inputs.ndim - 1, 1)
    if output_mode == "multi_hot":
        return jnp.max(vectors, axis)
    if count_weights is not None:
        vectors = vectors * jnp.asarray(count_weights, dtype)[..., None]
    return jnp.sum(vectors, axis)
