"""Layers: `nnx.Module`s that own variables under Keras's names and shapes, and create them when they see an input."""

from typing import TYPE_CHECKING

from keras_dist._not_here import missing_from
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
from keras_dist.layers.convolution import Conv1D, Conv2D, Conv3D, Convolution1D, Convolution2D, Convolution3D
from keras_dist.layers.dense import Dense
from keras_dist.layers.depthwise_convolution import DepthwiseConv1D, DepthwiseConv2D
from keras_dist.layers.dropout import AlphaDropout, Dropout, SpatialDropout1D, SpatialDropout2D, SpatialDropout3D
from keras_dist.layers.einsum_dense import EinsumDense
from keras_dist.layers.embedding import Embedding, ReversibleEmbedding
from keras_dist.layers.foreign import NNXLayer
from keras_dist.layers.global_pooling import (
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalAvgPool3D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalMaxPool3D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    GlobalMaxPooling3D,
)
from keras_dist.layers.group_normalization import GroupNormalization
from keras_dist.layers.grouped_query_attention import GroupedQueryAttention, GroupQueryAttention
from keras_dist.layers.gru import GRU, GRUCell
from keras_dist.layers.identifiers import deserialize, serialize
from keras_dist.layers.input_layer import Input, InputLayer
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.joining import Concatenate, Dot, concatenate, dot
from keras_dist.layers.lambda_ import Lambda
from keras_dist.layers.layer import Layer
from keras_dist.layers.layer_normalization import LayerNormalization
from keras_dist.layers.lstm import LSTM, LSTMCell
from keras_dist.layers.masking import Identity, Masking
from keras_dist.layers.merging import (
    Add,
    Average,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    add,
    average,
    maximum,
    minimum,
    multiply,
    subtract,
)
from keras_dist.layers.multi_head_attention import MultiHeadAttention
from keras_dist.layers.noise import ActivityRegularization, GaussianDropout, GaussianNoise
from keras_dist.layers.padding import Cropping1D, Cropping2D, Cropping3D, ZeroPadding1D, ZeroPadding2D, ZeroPadding3D
from keras_dist.layers.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
)
from keras_dist.layers.rescaling import Normalization, Rescaling
from keras_dist.layers.reshaping import Flatten, Permute, RepeatVector, Reshape
from keras_dist.layers.rms_normalization import RMSNormalization
from keras_dist.layers.rnn import RNN
from keras_dist.layers.separable_convolution import (
    SeparableConv1D,
    SeparableConv2D,
    SeparableConvolution1D,
    SeparableConvolution2D,
)
from keras_dist.layers.simple_rnn import SimpleRNN, SimpleRNNCell
from keras_dist.layers.spectral_normalization import SpectralNormalization
from keras_dist.layers.stacked_rnn_cells import StackedRNNCells
from keras_dist.layers.symbolic import KerasTensor
from keras_dist.layers.time_distributed import TimeDistributed
from keras_dist.layers.transposed_convolution import (
    Conv1DTranspose,
    Conv2DTranspose,
    Conv3DTranspose,
    Convolution1DTranspose,
    Convolution2DTranspose,
    Convolution3DTranspose,
)
from keras_dist.layers.unit_normalization import UnitNormalization
from keras_dist.layers.up_sampling import UpSampling1D, UpSampling2D, UpSampling3D
from keras_dist.layers.variable import Variable
from keras_dist.layers.wrapper import Wrapper

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "ActivityRegularization",
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
    "Add",
    "AdditiveAttention",
    "AlphaDropout",
    "Attention",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNormalization",
    "Bidirectional",
    "CategoryEncoding",
    "Concatenate",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Convolution1D",
    "Convolution1DTranspose",
    "Convolution2D",
    "Convolution2DTranspose",
    "Convolution3D",
    "Convolution3DTranspose",
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Dot",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "GroupNormalization",
    "GroupQueryAttention",
    "GroupedQueryAttention",
    "Identity",
    "Input",
    "InputLayer",
    "InputSpec",
    "KerasTensor",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "NNXLayer",
    "Normalization",
    "PReLU",
    "Permute",
    "RMSNormalization",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "ReversibleEmbedding",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "SpectralNormalization",
    "StackedRNNCells",
    "Subtract",
    "TimeDistributed",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "Variable",
    "Wrapper",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
    "add",
    "average",
    "concatenate",
    "deserialize",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "serialize",
    "subtract",
]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
