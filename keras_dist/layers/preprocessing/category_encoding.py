"""`CategoryEncoding`, and category vectors for layers that look up, hash or discretize."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_option, check_size
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.symbolic.tensors import KerasTensor

OUTPUT_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class CategoryEncoding(Layer):
    """Encode integers as vectors with one entry for each category.

    Args:
        num_tokens: number of categories; the integers are 0 to `num_tokens - 1`.
        output_mode: `"one_hot"` for a vector for each integer; `"multi_hot"` for a vector for each example, with 1 for
            its integers; `"count"` for a vector for each example, with the numbers of occurrences.
        sparse: must be False.
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
            count_weights: weight of each integer, of the shape of the inputs; only with `output_mode="count"`.
        """
        if count_weights is not None and self.output_mode != "count":
            expected, fix = f'None with output_mode="{self.output_mode}"', 'leave it out, or output_mode="count"'
            raise argument_error("count_weights", count_weights, expected, layer=self.name, fix=fix)
        return encode_categories(inputs, self.output_mode, self.num_tokens, self.compute_dtype, count_weights)


def encode_categories(
    inputs: ArrayLike, output_mode: str, depth: int, dtype: str, count_weights: jax.Array | None = None
) -> jax.Array:
    """Encode integers as vectors of size `depth`; see `CategoryEncoding`."""
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


def check_dense(sparse: Any, ragged: Any, layer: str) -> bool:
    """Check that neither sparse nor ragged results are requested; return False."""
    if sparse or ragged:
        given = f"sparse={shorten(sparse)}, ragged={shorten(ragged)}"
        fix = "leave them out; integers need no encoding before an Embedding"
        raise ModelError(f"layer {layer!r} gives dense arrays of one shape", given=given, fix=fix)
    return False


def check_output_mode(output_mode: Any, modes: Sequence[str], layer: str) -> str:
    """Check the output mode, and return its current name."""
    names = {"binary": "multi_hot", "tf-idf": "tf_idf"}
    return check_option("output_mode", names.get(output_mode, output_mode), modes, layer)


def check_salt(salt: Any, layer: str) -> tuple[int, int] | None:
    """Return the two integers of a key; one integer stands for both."""
    pair = tuple(salt) if isinstance(salt, list | tuple) else (salt, salt)
    if salt is None or (len(pair) == 2 and all(isinstance(each, int | np.integer) for each in pair)):
        return None if salt is None else (int(pair[0]), int(pair[1]))
    raise argument_error("salt", salt, "an integer, two of them, or None", layer=layer, example=(133, 137))


def batches_of(data: Any, steps: int | None) -> Iterator[Any]:
    """Yield the batches for `adapt`: an array or list itself, or up to `steps` batches of an iterable."""
    if isinstance(data, str | bytes | list | tuple) or hasattr(data, "shape") or not isinstance(data, Iterable):
        yield data
        return
    for number, batch in enumerate(data):
        if steps is not None and number >= steps:
            return
        yield batch


def encoded(indices: np.ndarray, output_mode: str, depth: int) -> np.ndarray:
    """Encode indices as float32 vectors of size `depth` on the host; indices out of range are ignored."""
    indices = np.atleast_1d(indices)
    if output_mode == "one_hot":
        if indices.ndim > 1 and indices.shape[-1] == 1:
            indices = indices[..., 0]
        rows = indices.reshape(-1, 1)
        shape = indices.shape
    else:
        rows = indices.reshape(-1, indices.shape[-1])
        shape = indices.shape[:-1]
    vectors = np.zeros((len(rows), depth), "float32")
    row, column = np.nonzero((rows >= 0) & (rows < depth))
    places = (row, rows[row, column])
    if output_mode == "multi_hot":
        vectors[places] = 1
    else:
        np.add.at(vectors, places, 1)
    return vectors.reshape(*shape, depth)


def encoded_like(inputs: KerasTensor, output_mode: str, depth: int, dtype: str) -> KerasTensor:
    """Return the symbolic result of `encoded`, or for mode `"int"` of the indices."""
    shape = inputs.shape
    if output_mode == "int":
        return KerasTensor(shape, dtype)
    if output_mode != "one_hot" or (len(shape) > 1 and shape[-1] == 1):
        shape = shape[:-1]
    return KerasTensor((*shape, depth), "float32")
