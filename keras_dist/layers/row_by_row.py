"""Which layers treat each row of a batch by itself, so that rows that fill it up change nothing for the others.

A layer that is not known here mixes rows, until its class says `keeps_rows_apart = True`: classes of users look at what
they like, and a subclass may do other things than the class above it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx

from keras_dist import activations
from keras_dist.layers.activation import ELU, Activation, LeakyReLU, PReLU, ReLU, Softmax
from keras_dist.layers.adaptive_pooling import (
    AdaptiveAveragePooling1D,
    AdaptiveAveragePooling2D,
    AdaptiveAveragePooling3D,
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D,
    AdaptiveMaxPooling3D,
)
from keras_dist.layers.attention import AdditiveAttention, Attention
from keras_dist.layers.batch_normalization import BatchNormalization
from keras_dist.layers.bidirectional import Bidirectional
from keras_dist.layers.category_encoding import CategoryEncoding
from keras_dist.layers.convolution import (
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    DepthwiseConv1D,
    DepthwiseConv2D,
    SeparableConv1D,
    SeparableConv2D,
)
from keras_dist.layers.dense import Dense
from keras_dist.layers.dropout import AlphaDropout, Dropout, SpatialDropout1D, SpatialDropout2D, SpatialDropout3D
from keras_dist.layers.einsum_dense import EinsumDense
from keras_dist.layers.embedding import Embedding, ReversibleEmbedding
from keras_dist.layers.global_pooling import (
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    GlobalMaxPooling3D,
)
from keras_dist.layers.gru import GRU, GRUCell
from keras_dist.layers.joining import Concatenate, Dot
from keras_dist.layers.layer import Layer
from keras_dist.layers.lstm import LSTM, LSTMCell
from keras_dist.layers.masking import Identity, Masking
from keras_dist.layers.merging import Add, Average, Maximum, Minimum, Multiply, Subtract
from keras_dist.layers.multi_head_attention import GroupedQueryAttention, MultiHeadAttention
from keras_dist.layers.noise import GaussianDropout, GaussianNoise
from keras_dist.layers.normalization import GroupNormalization, LayerNormalization, RMSNormalization, UnitNormalization
from keras_dist.layers.padding import Cropping1D, Cropping2D, Cropping3D, ZeroPadding1D, ZeroPadding2D, ZeroPadding3D
from keras_dist.layers.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
)
from keras_dist.layers.rescaling import Normalization, Rescaling
from keras_dist.layers.reshaping import Flatten, Permute, RepeatVector, Reshape
from keras_dist.layers.rnn import RNN, StackedRNNCells
from keras_dist.layers.simple_rnn import SimpleRNN, SimpleRNNCell
from keras_dist.layers.spectral_normalization import SpectralNormalization
from keras_dist.layers.time_distributed import TimeDistributed
from keras_dist.layers.up_sampling import UpSampling1D, UpSampling2D, UpSampling3D
from keras_dist.random import SeedGenerator


@dataclasses.dataclass(frozen=True)
class Called:
    """What a layer was called with.

    Attributes:
        args: positional arguments.
        kwargs: arguments by name.
    """

    args: Any
    kwargs: Any

    @property
    def arrays(self) -> list[jax.Array]:
        """The arrays among the arguments, the positional ones first."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, jax.Array)]


Condition = Callable[[Any, Called], bool]
"""`condition(layer, called)`: whether such a call keeps rows apart."""

STANDS_FOR = "_stands_for"
"""The attribute of a class made for one layer, as constraints of its output are: the class that it does the work of."""


def keeps_rows_apart(layer: Any, args: Any, kwargs: Any) -> bool:
    """Whether each row of what a call gives follows from the same row of its inputs, whatever the others are.

    Args:
        layer: any layer.
        args: of the call.
        kwargs: likewise.
    """
    if layer.activity_regularizer is not None or _has_methods_of_its_own(layer):
        return False
    cls = _class_of(layer)
    condition = _CONDITIONS.get(cls)
    if condition is None:
        return _says_so(cls)
    if cls.call is not _CALLS[cls]:
        return False  # somebody has replaced it
    called = Called(args, kwargs)
    # of a lone dim, the last one is that of the rows
    return all(array.ndim > 1 for array in called.arrays) and _acts_alone(layer) and condition(layer, called)


def unknown_in(module: Any) -> Iterator[str]:
    """The modules in `module`, itself included, of classes of which nothing is known, as warnings call them."""
    for _, node in nnx.iter_graph(module):
        if isinstance(node, Layer):
            cls = _class_of(node)
            if cls not in _CONDITIONS and not _says_so(cls):
                yield f"layer {node.name!r} ({cls.__name__})"
        elif isinstance(node, nnx.Module) and not isinstance(node, nnx.List | nnx.Dict | SeedGenerator):
            yield f"a module of class {type(node).__name__}"


def _class_of(layer: Any) -> type:
    cls = type(layer)
    while STANDS_FOR in vars(cls):
        cls = vars(cls)[STANDS_FOR]
    return cls


def _says_so(cls: type) -> bool:
    """Whether the class itself says that it keeps rows apart, not one above it."""
    return vars(cls).get("keeps_rows_apart") is True


def _has_methods_of_its_own(layer: Any) -> bool:
    return any(callable(getattr(type(layer), name, None)) for name in vars(layer))


def _acts_alone(layer: Any) -> bool:
    """Whether its activations are ours, and not functions of users."""
    given = [vars(layer).get(name) for name in ("activation", "recurrent_activation")]
    return all(function is None or any(function is known for known in _ACTIVATIONS) for function in given)


_ACTIVATIONS = tuple(
    getattr(activations, name) for name in activations.__all__ if name not in ("deserialize", "get", "serialize")
)
"""Each is elementwise, or goes along the last dim by default."""


def _always(layer: Any, called: Called) -> bool:
    del layer, called
    return True


def _along_other_dims(layer: Any, called: Called) -> bool:
    """The dims `axis` are not those of the rows."""
    axes = layer.axis if isinstance(layer.axis, tuple | list) else (layer.axis,)
    return all(axis % array.ndim for array in called.arrays for axis in axes)


def _softmax(layer: Any, called: Called) -> bool:
    # a mask with fewer dims fits their end
    return len({array.ndim for array in called.arrays}) == 1 and _along_other_dims(layer, called)


def _in_inference(layer: Any, called: Called) -> bool:
    """No statistics of the batch are taken."""
    is_moving = bool(called.kwargs.get("training", True)) and layer.trainable
    return not is_moving and bool(layer.axis % called.arrays[0].ndim)


def _numbers_of_features(*names: str) -> Condition:
    """Of arrays among the arguments of the constructor, no dim stands for the rows."""
    return lambda layer, called: all(np.ndim(getattr(layer, name)) < 2 for name in names)


def _normalizes(layer: Any, called: Called) -> bool:
    return all(axis % called.arrays[0].ndim for axis in layer.axis)


def _drops(layer: Any, called: Called) -> bool:
    shape = layer.noise_shape
    return shape is None or (len(shape) == called.arrays[0].ndim and shape[0] in (None, 1))


def _einsum(layer: Any, called: Called) -> bool:
    inputs, kernel, outputs, side = layer._terms
    if side == "left" and called.arrays[0].ndim > len(inputs):
        return True  # the rows are among what is passed on
    rows = inputs[0]
    is_passed_on = inputs.count(rows) == 1 and rows not in kernel and outputs.startswith(rows)
    return is_passed_on and rows not in (layer.bias_axes or "")


def _attends(layer: Any, called: Called) -> bool:
    masks = jax.tree.leaves(called.kwargs.get("mask"))
    # without a dim of rows, positions would be rows; masks of other ranks fit other dims
    return len(called.args) == 1 and all(
        array.ndim == (2 if any(array is mask for mask in masks) else 3) for array in called.arrays
    )


def _attends_to_projections(layer: Any, called: Called) -> bool:
    # an `attention_mask` may come without a dim of rows; the other masks have the shapes of their inputs
    return len(called.args) <= 3 and called.kwargs.get("attention_mask") is None


_CONDITIONS: dict[type, Condition] = {
    **dict.fromkeys(
        (
            *(Activation, LeakyReLU, PReLU, ReLU),
            *(AdaptiveAveragePooling1D, AdaptiveAveragePooling2D, AdaptiveAveragePooling3D),
            *(AdaptiveMaxPooling1D, AdaptiveMaxPooling2D, AdaptiveMaxPooling3D),
            *(Add, Average, Maximum, Minimum, Multiply, Subtract),
            *(AveragePooling1D, AveragePooling2D, AveragePooling3D),
            *(MaxPooling1D, MaxPooling2D, MaxPooling3D),
            *(Bidirectional, GRU, GRUCell, LSTM, LSTMCell, RNN, SimpleRNN, SimpleRNNCell, StackedRNNCells),
            *(CategoryEncoding, Dense, Dot, Embedding, ReversibleEmbedding),
            *(Conv1D, Conv2D, Conv3D, Conv1DTranspose, Conv2DTranspose, Conv3DTranspose),
            *(Cropping1D, Cropping2D, Cropping3D, ZeroPadding1D, ZeroPadding2D, ZeroPadding3D),
            *(DepthwiseConv1D, DepthwiseConv2D, SeparableConv1D, SeparableConv2D),
            *(Flatten, Identity, Permute, RepeatVector, Reshape),
            *(GaussianDropout, GaussianNoise),
            *(GlobalAveragePooling1D, GlobalAveragePooling2D, GlobalAveragePooling3D),
            *(GlobalMaxPooling1D, GlobalMaxPooling2D, GlobalMaxPooling3D),
            *(SpectralNormalization, TimeDistributed),
            *(UpSampling1D, UpSampling2D, UpSampling3D),
        ),
        _always,
    ),
    **dict.fromkeys((AlphaDropout, Dropout, SpatialDropout1D, SpatialDropout2D, SpatialDropout3D), _drops),
    **dict.fromkeys(
        (Concatenate, GroupNormalization, LayerNormalization, RMSNormalization, UnitNormalization), _along_other_dims
    ),
    **dict.fromkeys((AdditiveAttention, Attention), _attends),
    **dict.fromkeys((GroupedQueryAttention, MultiHeadAttention), _attends_to_projections),
    BatchNormalization: _in_inference,
    ELU: _numbers_of_features("alpha"),
    EinsumDense: _einsum,
    Masking: _numbers_of_features("mask_value"),
    Normalization: _normalizes,
    Rescaling: _numbers_of_features("scale", "offset"),
    Softmax: _softmax,
}
"""The layers of this package that treat each row by itself, with what their arguments must be like for it."""

_CALLS = {cls: cls.call for cls in _CONDITIONS}
