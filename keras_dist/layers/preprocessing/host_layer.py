"""`HostLayer`: the base of layers that run in Python on the host, on text too, before rows go to devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import argument_error, check_option
from keras_dist._support.types import PyTree, Shape
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.errors import DataError, ModelError, shorten, with_type
from keras_dist.layers import symbolic
from keras_dist.layers.layer import Layer
from keras_dist.symbolic.tensors import KerasTensor

OUTPUT_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class HostLayer(Layer):
    """The base of layers that run on the host: they take arrays, lists or text, and give numpy arrays.

    A model runs those at its beginning in the data pipeline, and compiles the rest. Subclasses define
    `transform(inputs)` and `output_like(inputs)`. They have no weights.

    Args:
        **kwargs: see `Layer`.
    """

    is_host_side = True

    def __init__(self, *, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(dtype=None if symbolic.is_text(dtype) else dtype, **kwargs)
        self.built = True

    def __call__(self, inputs: PyTree) -> PyTree:
        """Return what the layer gives for arrays, lists or text; for symbolic inputs symbolic outputs.

        Raises:
            ModelError: it is called inside of a compiled function, or after a layer that runs on devices.
        """
        self._check_initialised()
        if symbolic.is_any_symbolic(inputs):
            return symbolic.connect(self, (inputs,), {})
        if any(map(is_traced, jax.tree.leaves(inputs))):
            summary = f"layer {self.name!r} runs on the host, and cannot be called in a compiled function"
            given = f"{type(self).__name__} called on traced arrays, as in `call` of a layer or a subclassed model"
            fix = "begin a model with it, or apply it to data: dataset.map(lambda pair: (layer(pair[0]), pair[1]))"
            raise ModelError(summary, given=given, fix=fix)
        return self.transform(inputs)

    def transform(self, inputs: PyTree) -> PyTree:
        """Return numpy arrays for arrays, lists or text."""
        raise NotImplementedError(f"{type(self).__name__} does not define transform(self, inputs)")

    def output_like(self, inputs: Any) -> Any:
        """Return symbolic tensors like the outputs for symbolic inputs."""
        raise NotImplementedError(f"{type(self).__name__} does not define output_like(self, inputs)")

    def compute_output_spec(self, inputs: Any, **kwargs: Any) -> Any:
        """Return symbolic tensors like the outputs for symbolic inputs."""
        return self.output_like(inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the output for inputs of this shape, the batch included; None for any size."""
        return self.output_like(KerasTensor(input_shape, "string")).shape


def check_dense(sparse: Any, ragged: Any, layer: str) -> bool:
    """Return False, if neither is asked for."""
    if sparse or ragged:
        given = f"sparse={shorten(sparse)}, ragged={shorten(ragged)}"
        fix = "leave them out; integers need no encoding before an Embedding"
        raise ModelError(f"layer {layer!r} gives dense arrays of one shape", given=given, fix=fix)
    return False


def check_output_mode(output_mode: Any, modes: Sequence[str], layer: str) -> str:
    """Return the output mode, under its name of today."""
    names = {"binary": "multi_hot", "tf-idf": "tf_idf"}
    return check_option("output_mode", names.get(output_mode, output_mode), modes, layer)


def check_salt(salt: Any, layer: str) -> tuple[int, int] | None:
    """Return the two numbers of a key; one stands for both."""
    pair = tuple(salt) if isinstance(salt, list | tuple) else (salt, salt)
    if salt is None or (len(pair) == 2 and all(isinstance(each, int | np.integer) for each in pair)):
        return None if salt is None else (int(pair[0]), int(pair[1]))
    raise argument_error("salt", salt, "an integer, two of them, or None", layer=layer, example=(133, 137))


def as_rows(inputs: Any, layer: str, encoding: str = "utf-8") -> Any:
    """Return text, numbers, lists or arrays of them as a numpy array; text as an array of `str`."""
    given: Any = inputs.numpy() if hasattr(inputs, "numpy") else inputs
    array: Any = np.asarray(given) if hasattr(given, "shape") else None
    if array is None:
        first = next(_items(inputs), None)
        try:
            array = np.array(inputs, dtype=object if isinstance(first, str | bytes) else None)
        except ValueError:
            array = None
    if array is None or (array.dtype == object and any(isinstance(item, list | tuple) for item in array.flat)):
        fix = "join what belongs to an example to one text, or pad the lists"
        raise DataError(f"layer {layer!r} gets lists of different lengths", given=shorten(inputs), fix=fix)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    if array.dtype.kind != "O":
        return array
    texts = [item.decode(encoding, "surrogateescape") if isinstance(item, bytes) else item for item in array.flat]
    if not all(isinstance(text, str) for text in texts):
        integers = np.array(texts)
        if integers.dtype.kind in "biuf":
            return integers.reshape(array.shape)
        wrong = next(text for text in texts if not isinstance(text, str))
        fix = "convert it: str(value); missing values to an empty text"
        raise DataError(f"layer {layer!r} gets something else than text", given=with_type(wrong), fix=fix)
    return objects(texts, array.shape)


def objects(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return an array of Python objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def batches_of(data: Any, steps: int | None) -> Iterator[Any]:
    """Yield what `adapt` gets: an array, a list, or the batches of an iterable, of which `steps` are read."""
    if isinstance(data, str | bytes | list | tuple) or hasattr(data, "shape") or not isinstance(data, Iterable):
        yield data
        return
    for number, batch in enumerate(data):
        if steps is not None and number >= steps:
            return
        yield batch


def encoded(indices: np.ndarray, output_mode: str, depth: int) -> np.ndarray:
    """Return indices as vectors of `depth` float32 numbers; others than 0 to depth - 1 are left out.

    Args:
        indices: integers.
        output_mode: `"one_hot"`: a vector for each, in place of a last dim of size 1; `"multi_hot"` or `"count"`: one
            for all that the last dim holds.
        depth: the length of vectors.
    """
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
    """Return a symbolic tensor like what `encoded` gives, or in mode `"int"` like the indices."""
    shape = inputs.shape
    if output_mode == "int":
        return KerasTensor(shape, dtype)
    if output_mode != "one_hot" or (len(shape) > 1 and shape[-1] == 1):
        shape = shape[:-1]
    return KerasTensor((*shape, depth), "float32")


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _items(item)
    else:
        yield value
