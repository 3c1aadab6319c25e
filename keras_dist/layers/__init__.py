"""Layers: `nnx.Module`s that own variables under Keras's names and shapes, and create them when they see an input."""

from keras_dist.layers.adaptive_pooling import (
    AdaptiveAveragePooling1D,
    AdaptiveAveragePooling2D,
    AdaptiveAveragePooling3D,
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D,
    AdaptiveMaxPooling3D,
)
from keras_dist.layers.batch_normalization import BatchNormalization
from keras_dist.layers.convolution import Conv1D, Conv2D, Conv3D, Convolution1D, Convolution2D, Convolution3D
from keras_dist.layers.dense import Dense
from keras_dist.layers.depthwise_convolution import DepthwiseConv1D, DepthwiseConv2D
from keras_dist.layers.dropout import Dropout
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
from keras_dist.layers.input_layer import Input, InputLayer
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer
from keras_dist.layers.layer_normalization import LayerNormalization
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
from keras_dist.layers.rms_normalization import RMSNormalization
from keras_dist.layers.separable_convolution import (
    SeparableConv1D,
    SeparableConv2D,
    SeparableConvolution1D,
    SeparableConvolution2D,
)
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

__all__ = [
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNormalization",
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
    "Dropout",
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
    "Input",
    "InputLayer",
    "InputSpec",
    "Layer",
    "LayerNormalization",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "NNXLayer",
    "RMSNormalization",
    "SeparableConv1D",
    "SeparableConv2D",
    "SeparableConvolution1D",
    "SeparableConvolution2D",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
]
