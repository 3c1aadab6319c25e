"""`Input` and `InputLayer`: symbolic inputs of functional models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import LARGEST_SIZE, is_int
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import DTypeLike, Shape
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.layers.base.layer import Layer
from keras_dist.symbolic.tensors import TEXT, KerasTensor, Node, is_text


class InputLayer(Layer):
    """An input of a functional model; for the arguments see `Input`, whose `tensor` is `input_tensor` here."""

    sparse = ragged = False
    _is_shared_in_configs: ClassVar[bool] = False  # there is nothing to share

    def __init__(
        self,
        shape: Sequence[int | None] | None = None,
        batch_size: int | None = None,
        dtype: DTypeLike | None = None,
        sparse: bool | None = None,
        ragged: bool | None = None,
        batch_shape: Sequence[int | None] | None = None,
        input_tensor: KerasTensor | None = None,
        optional: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if "input_shape" in kwargs:
            warn("Argument `input_shape` is deprecated. Use `shape` instead.")
        default = getattr(input_tensor, "dtype", "float32")
        self._holds_text = is_text(dtype)
        super().__init__(name=name, dtype=default if dtype is None or self._holds_text else dtype, **kwargs)
        if sparse or ragged:
            summary = f"Input {self.name!r} cannot be sparse or ragged"
            raise ModelError(summary, given=f"sparse={sparse}, ragged={ragged}", fix="leave these arguments out")
        if input_tensor is not None:
            batch_shape = _shape_like(input_tensor, shape, batch_size, batch_shape, dtype, self.name)
            shape = batch_size = None
        if shape is None and batch_shape is None and self._own_input_shape is not None:
            first = self._own_input_shape[0] if batch_size is None else batch_size
            batch_shape, batch_size = (first, *self._own_input_shape[1:]), None
        self.batch_shape = _batch_shape(shape, batch_size, batch_shape, self.name)
        self.optional = optional
        self.built = True
        node = Node(self, (), {})
        if input_tensor is None or input_tensor.node is not None:  # outputs of layers keep their node
            node.outputs = node.output(self.batch_shape, self.dtype, self.name)
        else:
            input_tensor.node, input_tensor.name, node.outputs = node, self.name, input_tensor
        self._record.nodes.append(node)

    @property
    def dtype(self) -> str:
        """The element type of the input; `"string"` for text."""
        return TEXT if self._holds_text else super().dtype

    def call(self) -> None:
        """Return None: models use their inputs in place of this layer."""

    def get_config(self) -> dict[str, Any]:
        """Return the shape with the batch, the element type and the name."""
        shape = list(self.batch_shape)
        return {"batch_shape": shape, "dtype": self.dtype, "optional": self.optional, "name": self.name}


def Input(
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: DTypeLike | None = None,
    sparse: bool | None = None,
    ragged: bool | None = None,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
    tensor: KerasTensor | None = None,
    optional: bool = False,
) -> KerasTensor:
    """Return a symbolic input of a model.

    Args:
        shape: dims of one example, without the batch; None for any size.
        batch_size: number of examples, if fixed.
        dtype: element type; float32 by default, `"string"` for text.
        sparse: must be False.
        ragged: must be False.
        batch_shape: dims including the batch, instead of `shape` and `batch_size`.
        name: name of the input, for example in dicts passed to `model.fit`.
        tensor: a symbolic tensor that gives shape and dtype. A tensor made by `KerasTensor` becomes the input itself.
        optional: whether the input may be None.

    Raises:
        ModelError: neither or both of `shape` and `batch_shape` are given, or one is not a shape.

    Example:
        >>> from keras_dist import layers
        >>> layers.Dense(3)(layers.Input((8,)))
        <KerasTensor shape=(None, 3), dtype=float32, name=dense/output>

    Source: `keras.Input`.
    """
    return InputLayer(shape, batch_size, dtype, sparse, ragged, batch_shape, tensor, optional, name).output


def _batch_shape(shape: Any, batch_size: int | None, batch_shape: Shape | None, name: str) -> tuple[int | None, ...]:
    if (shape is None) == (batch_shape is None) or (batch_shape is not None and batch_size is not None):
        given = f"shape={shorten(shape)}, batch_size={batch_size!r}, batch_shape={shorten(batch_shape)}"
        fix = "for example Input((28, 28, 1)): the dims of one example"
        raise ModelError(f"Input {name!r} needs `shape` or `batch_shape`", given=given, fix=fix)
    dims = (batch_size, *_dims(shape, name)) if batch_shape is None else tuple(_dims(batch_shape, name))
    if not dims or any(dim is not None and not is_int(dim, 1, LARGEST_SIZE) for dim in dims):
        summary = f"`shape` of Input {name!r} must be integers from 1 to {LARGEST_SIZE}, or None for any size"
        given = f"shape={shorten(shape if batch_shape is None else batch_shape)}, batch_size={batch_size!r}"
        raise ModelError(summary, given=given, fix="for example Input((28, 28, 1))")
    return tuple(None if dim is None else int(dim) for dim in dims)


def _shape_like(
    tensor: Any, shape: Any, batch_size: int | None, batch_shape: Shape | None, dtype: DTypeLike | None, name: str
) -> tuple[int | None, ...]:
    """Return the shape of an existing tensor, which the other arguments must not contradict."""
    is_like = isinstance(tensor, KerasTensor) and batch_size in (None, *tensor.shape[:1])
    is_like = is_like and (shape is None or tuple(shape) == tensor.shape[1:])
    is_like = is_like and (batch_shape is None or tuple(batch_shape) == tensor.shape)
    if is_like and (dtype is None or jnp.dtype(dtype).name == tensor.dtype):
        return tensor.shape
    summary = f"`tensor` of Input {name!r} must be a symbolic tensor, without a shape or dtype that differs"
    given = f"{shorten(tensor)}, shape={shape}, batch_size={batch_size}, batch_shape={batch_shape}, dtype={dtype}"
    raise ModelError(summary, given=given, fix="Input(tensor=kd.KerasTensor((None, 8))); arrays are arguments of calls")


def _dims(shape: Shape, name: str) -> tuple[int | None, ...]:
    if (isinstance(shape, Sequence) and not isinstance(shape, str)) or isinstance(shape, np.ndarray):
        return tuple(shape)
    given = f"shape={with_type(shape)}"
    fix = f"shape=({shape},)" if isinstance(shape, int) else "for example shape=(28, 28, 1)"
    raise ModelError(f"`shape` of Input {name!r} must be a sequence of dims", given=given, fix=fix)
