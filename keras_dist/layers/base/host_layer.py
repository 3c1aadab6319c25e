"""`HostLayer`: the base of layers that run in Python on the host, also on text, before data are sent to devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.types import PyTree, Shape
from keras_dist._unstable.jax_internals import is_traced
from keras_dist.errors import DataError, ModelError, shorten, with_type
from keras_dist.layers.base import symbolic
from keras_dist.layers.base.layer import Layer
from keras_dist.symbolic.tensors import KerasTensor


class HostLayer(Layer):
    """The base of layers that run on the host: they take arrays, lists or text, and return NumPy arrays.

    A model runs those at its beginning in the data pipeline, and compiles the rest.
    """

    is_host_side = True

    def __init__(self, *, dtype: Any = None, **kwargs: Any) -> None:
        super().__init__(dtype=None if symbolic.is_text(dtype) else dtype, **kwargs)
        self.built = True

    def __call__(self, inputs: PyTree) -> PyTree:
        """Return NumPy arrays for arrays, lists or text, or symbolic outputs for symbolic inputs.

        Raises:
            ModelError: the layer is called in a compiled function, or after a layer that runs on devices.
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
        """Return NumPy arrays for arrays, lists or text. Subclasses define it."""
        raise NotImplementedError

    def output_like(self, inputs: Any) -> Any:
        """Return symbolic outputs for symbolic inputs. Subclasses define it."""
        raise NotImplementedError

    def compute_output_spec(self, inputs: Any, **kwargs: Any) -> Any:
        return self.output_like(inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return self.output_like(KerasTensor(input_shape, "string")).shape


def as_rows(inputs: Any, layer: str, encoding: str = "utf-8") -> Any:
    """Convert text, numbers, or lists or arrays of them, to a NumPy array, of `str` objects for text."""
    given: Any = inputs.numpy() if hasattr(inputs, "numpy") else inputs
    array: Any = np.asarray(given) if hasattr(given, "shape") else None
    if array is None:
        first: Any = inputs
        while isinstance(first, list | tuple) and first:
            first = first[0]
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
    """Return a NumPy array of Python objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)
