"""Layers: `nnx.Module`s that own variables under Keras's names and shapes, and create them when they see an input.

Source: names, arguments and defaults as in `keras.layers`.
"""

# ruff: noqa: F403  # each file lists its names in `__all__`

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist.layers.activations.activation import *
from keras_dist.layers.attention.attention import AdditiveAttention as AdditiveAttention
from keras_dist.layers.attention.attention import Attention as Attention
from keras_dist.layers.attention.multi_head_attention import GroupedQueryAttention as GroupedQueryAttention
from keras_dist.layers.attention.multi_head_attention import GroupQueryAttention as GroupQueryAttention
from keras_dist.layers.attention.multi_head_attention import MultiHeadAttention as MultiHeadAttention
from keras_dist.layers.base.call_arguments import InputSpec as InputSpec
from keras_dist.layers.base.layer import Layer as Layer
from keras_dist.layers.base.serialization import deserialize as deserialize
from keras_dist.layers.base.serialization import serialize as serialize
from keras_dist.layers.convolutional.convolution import *
from keras_dist.layers.core.dense import Dense as Dense
from keras_dist.layers.core.dense import EinsumDense as EinsumDense
from keras_dist.layers.core.embedding import Embedding as Embedding
from keras_dist.layers.core.embedding import ReversibleEmbedding as ReversibleEmbedding
from keras_dist.layers.core.foreign_modules import FlaxLayer as FlaxLayer
from keras_dist.layers.core.foreign_modules import JaxLayer as JaxLayer
from keras_dist.layers.core.foreign_modules import NNXLayer as NNXLayer
from keras_dist.layers.core.input_layer import Input as Input
from keras_dist.layers.core.input_layer import InputLayer as InputLayer
from keras_dist.layers.core.lambda_ import Identity as Identity
from keras_dist.layers.core.lambda_ import Lambda as Lambda
from keras_dist.layers.core.lambda_ import Masking as Masking
from keras_dist.layers.core.mixture_of_experts import MixtureOfExperts as MixtureOfExperts
from keras_dist.layers.core.stack import Stack as Stack
from keras_dist.layers.core.wrapper import Pipeline as Pipeline
from keras_dist.layers.core.wrapper import SpectralNormalization as SpectralNormalization
from keras_dist.layers.core.wrapper import TimeDistributed as TimeDistributed
from keras_dist.layers.core.wrapper import Wrapper as Wrapper
from keras_dist.layers.merging.merging import *
from keras_dist.layers.normalization.normalization import *
from keras_dist.layers.pooling.pooling import *
from keras_dist.layers.preprocessing.category_encoding import CategoryEncoding as CategoryEncoding
from keras_dist.layers.preprocessing.category_encoding import Discretization as Discretization
from keras_dist.layers.preprocessing.hashing import Hashing as Hashing
from keras_dist.layers.preprocessing.image_layer import CenterCrop as CenterCrop
from keras_dist.layers.preprocessing.image_layer import Resizing as Resizing
from keras_dist.layers.preprocessing.index_lookup import IntegerLookup as IntegerLookup
from keras_dist.layers.preprocessing.index_lookup import StringLookup as StringLookup
from keras_dist.layers.preprocessing.random_colors import *
from keras_dist.layers.preprocessing.random_geometry import *
from keras_dist.layers.preprocessing.rescaling import Normalization as Normalization
from keras_dist.layers.preprocessing.rescaling import Rescaling as Rescaling
from keras_dist.layers.preprocessing.text_vectorization import TextVectorization as TextVectorization
from keras_dist.layers.recurrent.bidirectional import Bidirectional as Bidirectional
from keras_dist.layers.recurrent.conv_lstm import ConvLSTM1D as ConvLSTM1D
from keras_dist.layers.recurrent.conv_lstm import ConvLSTM2D as ConvLSTM2D
from keras_dist.layers.recurrent.conv_lstm import ConvLSTM3D as ConvLSTM3D
from keras_dist.layers.recurrent.recurrent_layers import *
from keras_dist.layers.recurrent.rnn import RNN as RNN
from keras_dist.layers.recurrent.rnn import StackedRNNCells as StackedRNNCells
from keras_dist.layers.regularization.regularization import *
from keras_dist.layers.reshaping.reshaping import *
from keras_dist.symbolic.tensors import KerasTensor as KerasTensor
from keras_dist.variables.variable import Variable as Variable

__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "").startswith(f"{__name__}.")]  # pyright: ignore[reportUnsupportedDunderAll]

explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
