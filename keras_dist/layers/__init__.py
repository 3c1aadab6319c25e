"""Layers: `nnx.Module`s that own variables under Keras's names and shapes, and create them when they see an input.

Source: names, arguments and defaults as in `keras.layers`.
"""

from typing import TYPE_CHECKING

from keras_dist._support.missing_names import missing_from
from keras_dist.layers.activations.activation import ELU as ELU
from keras_dist.layers.activations.activation import Activation as Activation
from keras_dist.layers.activations.activation import LeakyReLU as LeakyReLU
from keras_dist.layers.activations.activation import PReLU as PReLU
from keras_dist.layers.activations.activation import ReLU as ReLU
from keras_dist.layers.activations.activation import Softmax as Softmax
from keras_dist.layers.attention.attention import AdditiveAttention as AdditiveAttention
from keras_dist.layers.attention.attention import Attention as Attention
from keras_dist.layers.attention.multi_head_attention import GroupedQueryAttention as GroupedQueryAttention
from keras_dist.layers.attention.multi_head_attention import GroupQueryAttention as GroupQueryAttention
from keras_dist.layers.attention.multi_head_attention import MultiHeadAttention as MultiHeadAttention
from keras_dist.layers.convolutional.convolution import Conv1D as Conv1D
from keras_dist.layers.convolutional.convolution import Conv2D as Conv2D
from keras_dist.layers.convolutional.convolution import Conv3D as Conv3D
from keras_dist.layers.convolutional.convolution import Convolution1D as Convolution1D
from keras_dist.layers.convolutional.convolution import Convolution2D as Convolution2D
from keras_dist.layers.convolutional.convolution import Convolution3D as Convolution3D
from keras_dist.layers.convolutional.convolution import DepthwiseConv1D as DepthwiseConv1D
from keras_dist.layers.convolutional.convolution import DepthwiseConv2D as DepthwiseConv2D
from keras_dist.layers.convolutional.convolution import SeparableConv1D as SeparableConv1D
from keras_dist.layers.convolutional.convolution import SeparableConv2D as SeparableConv2D
from keras_dist.layers.convolutional.convolution import SeparableConvolution1D as SeparableConvolution1D
from keras_dist.layers.convolutional.convolution import SeparableConvolution2D as SeparableConvolution2D
from keras_dist.layers.convolutional.transposed_convolution import Conv1DTranspose as Conv1DTranspose
from keras_dist.layers.convolutional.transposed_convolution import Conv2DTranspose as Conv2DTranspose
from keras_dist.layers.convolutional.transposed_convolution import Conv3DTranspose as Conv3DTranspose
from keras_dist.layers.convolutional.transposed_convolution import Convolution1DTranspose as Convolution1DTranspose
from keras_dist.layers.convolutional.transposed_convolution import Convolution2DTranspose as Convolution2DTranspose
from keras_dist.layers.convolutional.transposed_convolution import Convolution3DTranspose as Convolution3DTranspose
from keras_dist.layers.core.dense import Dense as Dense
from keras_dist.layers.core.einsum_dense import EinsumDense as EinsumDense
from keras_dist.layers.core.embedding import Embedding as Embedding
from keras_dist.layers.core.embedding import ReversibleEmbedding as ReversibleEmbedding
from keras_dist.layers.core.input_layer import Input as Input
from keras_dist.layers.core.input_layer import InputLayer as InputLayer
from keras_dist.layers.core.jax_layer import FlaxLayer as FlaxLayer
from keras_dist.layers.core.jax_layer import JaxLayer as JaxLayer
from keras_dist.layers.core.lambda_ import Lambda as Lambda
from keras_dist.layers.core.masking import Identity as Identity
from keras_dist.layers.core.masking import Masking as Masking
from keras_dist.layers.core.nnx_layer import NNXLayer as NNXLayer
from keras_dist.layers.core.pipeline import Pipeline as Pipeline
from keras_dist.layers.core.wrapper import SpectralNormalization as SpectralNormalization
from keras_dist.layers.core.wrapper import TimeDistributed as TimeDistributed
from keras_dist.layers.core.wrapper import Wrapper as Wrapper
from keras_dist.layers.input_spec import InputSpec as InputSpec
from keras_dist.layers.layer import Layer as Layer
from keras_dist.layers.merging.merging import Add as Add
from keras_dist.layers.merging.merging import Average as Average
from keras_dist.layers.merging.merging import Concatenate as Concatenate
from keras_dist.layers.merging.merging import Dot as Dot
from keras_dist.layers.merging.merging import Maximum as Maximum
from keras_dist.layers.merging.merging import Minimum as Minimum
from keras_dist.layers.merging.merging import Multiply as Multiply
from keras_dist.layers.merging.merging import Subtract as Subtract
from keras_dist.layers.merging.merging import add as add
from keras_dist.layers.merging.merging import average as average
from keras_dist.layers.merging.merging import concatenate as concatenate
from keras_dist.layers.merging.merging import dot as dot
from keras_dist.layers.merging.merging import maximum as maximum
from keras_dist.layers.merging.merging import minimum as minimum
from keras_dist.layers.merging.merging import multiply as multiply
from keras_dist.layers.merging.merging import subtract as subtract
from keras_dist.layers.normalization.batch_normalization import BatchNormalization as BatchNormalization
from keras_dist.layers.normalization.normalization import GroupNormalization as GroupNormalization
from keras_dist.layers.normalization.normalization import LayerNormalization as LayerNormalization
from keras_dist.layers.normalization.normalization import RMSNormalization as RMSNormalization
from keras_dist.layers.normalization.normalization import UnitNormalization as UnitNormalization
from keras_dist.layers.pooling.pooling import AdaptiveAveragePooling1D as AdaptiveAveragePooling1D
from keras_dist.layers.pooling.pooling import AdaptiveAveragePooling2D as AdaptiveAveragePooling2D
from keras_dist.layers.pooling.pooling import AdaptiveAveragePooling3D as AdaptiveAveragePooling3D
from keras_dist.layers.pooling.pooling import AdaptiveMaxPooling1D as AdaptiveMaxPooling1D
from keras_dist.layers.pooling.pooling import AdaptiveMaxPooling2D as AdaptiveMaxPooling2D
from keras_dist.layers.pooling.pooling import AdaptiveMaxPooling3D as AdaptiveMaxPooling3D
from keras_dist.layers.pooling.pooling import AveragePooling1D as AveragePooling1D
from keras_dist.layers.pooling.pooling import AveragePooling2D as AveragePooling2D
from keras_dist.layers.pooling.pooling import AveragePooling3D as AveragePooling3D
from keras_dist.layers.pooling.pooling import AvgPool1D as AvgPool1D
from keras_dist.layers.pooling.pooling import AvgPool2D as AvgPool2D
from keras_dist.layers.pooling.pooling import AvgPool3D as AvgPool3D
from keras_dist.layers.pooling.pooling import GlobalAveragePooling1D as GlobalAveragePooling1D
from keras_dist.layers.pooling.pooling import GlobalAveragePooling2D as GlobalAveragePooling2D
from keras_dist.layers.pooling.pooling import GlobalAveragePooling3D as GlobalAveragePooling3D
from keras_dist.layers.pooling.pooling import GlobalAvgPool1D as GlobalAvgPool1D
from keras_dist.layers.pooling.pooling import GlobalAvgPool2D as GlobalAvgPool2D
from keras_dist.layers.pooling.pooling import GlobalAvgPool3D as GlobalAvgPool3D
from keras_dist.layers.pooling.pooling import GlobalMaxPool1D as GlobalMaxPool1D
from keras_dist.layers.pooling.pooling import GlobalMaxPool2D as GlobalMaxPool2D
from keras_dist.layers.pooling.pooling import GlobalMaxPool3D as GlobalMaxPool3D
from keras_dist.layers.pooling.pooling import GlobalMaxPooling1D as GlobalMaxPooling1D
from keras_dist.layers.pooling.pooling import GlobalMaxPooling2D as GlobalMaxPooling2D
from keras_dist.layers.pooling.pooling import GlobalMaxPooling3D as GlobalMaxPooling3D
from keras_dist.layers.pooling.pooling import MaxPool1D as MaxPool1D
from keras_dist.layers.pooling.pooling import MaxPool2D as MaxPool2D
from keras_dist.layers.pooling.pooling import MaxPool3D as MaxPool3D
from keras_dist.layers.pooling.pooling import MaxPooling1D as MaxPooling1D
from keras_dist.layers.pooling.pooling import MaxPooling2D as MaxPooling2D
from keras_dist.layers.pooling.pooling import MaxPooling3D as MaxPooling3D
from keras_dist.layers.preprocessing.category_encoding import CategoryEncoding as CategoryEncoding
from keras_dist.layers.preprocessing.discretization import Discretization as Discretization
from keras_dist.layers.preprocessing.hashing import HashedCrossing as HashedCrossing
from keras_dist.layers.preprocessing.hashing import Hashing as Hashing
from keras_dist.layers.preprocessing.histograms import AutoContrast as AutoContrast
from keras_dist.layers.preprocessing.histograms import (
    ContrastLimitedAdaptiveHistogramEqualization as ContrastLimitedAdaptiveHistogramEqualization,
)
from keras_dist.layers.preprocessing.histograms import Equalization as Equalization
from keras_dist.layers.preprocessing.integer_lookup import IntegerLookup as IntegerLookup
from keras_dist.layers.preprocessing.mel_spectrogram import MelSpectrogram as MelSpectrogram
from keras_dist.layers.preprocessing.mixing import CutMix as CutMix
from keras_dist.layers.preprocessing.mixing import MixUp as MixUp
from keras_dist.layers.preprocessing.mixing import RandomErasing as RandomErasing
from keras_dist.layers.preprocessing.random_choices import AugMix as AugMix
from keras_dist.layers.preprocessing.random_choices import RandAugment as RandAugment
from keras_dist.layers.preprocessing.random_colors import RandomBrightness as RandomBrightness
from keras_dist.layers.preprocessing.random_colors import RandomColorDegeneration as RandomColorDegeneration
from keras_dist.layers.preprocessing.random_colors import RandomContrast as RandomContrast
from keras_dist.layers.preprocessing.random_colors import RandomGrayscale as RandomGrayscale
from keras_dist.layers.preprocessing.random_colors import RandomInvert as RandomInvert
from keras_dist.layers.preprocessing.random_colors import Solarization as Solarization
from keras_dist.layers.preprocessing.random_elastic_transform import RandomElasticTransform as RandomElasticTransform
from keras_dist.layers.preprocessing.random_filters import RandomGaussianBlur as RandomGaussianBlur
from keras_dist.layers.preprocessing.random_filters import RandomPosterization as RandomPosterization
from keras_dist.layers.preprocessing.random_filters import RandomSharpness as RandomSharpness
from keras_dist.layers.preprocessing.random_geometry import RandomCrop as RandomCrop
from keras_dist.layers.preprocessing.random_geometry import RandomFlip as RandomFlip
from keras_dist.layers.preprocessing.random_geometry import RandomRotation as RandomRotation
from keras_dist.layers.preprocessing.random_geometry import RandomShear as RandomShear
from keras_dist.layers.preprocessing.random_geometry import RandomTranslation as RandomTranslation
from keras_dist.layers.preprocessing.random_geometry import RandomZoom as RandomZoom
from keras_dist.layers.preprocessing.random_hues import RandomColorJitter as RandomColorJitter
from keras_dist.layers.preprocessing.random_hues import RandomHue as RandomHue
from keras_dist.layers.preprocessing.random_hues import RandomSaturation as RandomSaturation
from keras_dist.layers.preprocessing.random_perspective import RandomPerspective as RandomPerspective
from keras_dist.layers.preprocessing.rescaling import Normalization as Normalization
from keras_dist.layers.preprocessing.rescaling import Rescaling as Rescaling
from keras_dist.layers.preprocessing.resizing import CenterCrop as CenterCrop
from keras_dist.layers.preprocessing.resizing import Resizing as Resizing
from keras_dist.layers.preprocessing.stft_spectrogram import STFTSpectrogram as STFTSpectrogram
from keras_dist.layers.preprocessing.string_lookup import StringLookup as StringLookup
from keras_dist.layers.preprocessing.text_vectorization import TextVectorization as TextVectorization
from keras_dist.layers.recurrent.bidirectional import Bidirectional as Bidirectional
from keras_dist.layers.recurrent.conv_lstm import ConvLSTM1D as ConvLSTM1D
from keras_dist.layers.recurrent.conv_lstm import ConvLSTM2D as ConvLSTM2D
from keras_dist.layers.recurrent.conv_lstm import ConvLSTM3D as ConvLSTM3D
from keras_dist.layers.recurrent.gru import GRU as GRU
from keras_dist.layers.recurrent.gru import GRUCell as GRUCell
from keras_dist.layers.recurrent.lstm import LSTM as LSTM
from keras_dist.layers.recurrent.lstm import LSTMCell as LSTMCell
from keras_dist.layers.recurrent.rnn import RNN as RNN
from keras_dist.layers.recurrent.rnn import StackedRNNCells as StackedRNNCells
from keras_dist.layers.recurrent.simple_rnn import SimpleRNN as SimpleRNN
from keras_dist.layers.recurrent.simple_rnn import SimpleRNNCell as SimpleRNNCell
from keras_dist.layers.regularization.regularization import (
    ActivityRegularization as ActivityRegularization,
)
from keras_dist.layers.regularization.regularization import AlphaDropout as AlphaDropout
from keras_dist.layers.regularization.regularization import Dropout as Dropout
from keras_dist.layers.regularization.regularization import GaussianDropout as GaussianDropout
from keras_dist.layers.regularization.regularization import GaussianNoise as GaussianNoise
from keras_dist.layers.regularization.regularization import SpatialDropout1D as SpatialDropout1D
from keras_dist.layers.regularization.regularization import SpatialDropout2D as SpatialDropout2D
from keras_dist.layers.regularization.regularization import SpatialDropout3D as SpatialDropout3D
from keras_dist.layers.reshaping.padding import Cropping1D as Cropping1D
from keras_dist.layers.reshaping.padding import Cropping2D as Cropping2D
from keras_dist.layers.reshaping.padding import Cropping3D as Cropping3D
from keras_dist.layers.reshaping.padding import ZeroPadding1D as ZeroPadding1D
from keras_dist.layers.reshaping.padding import ZeroPadding2D as ZeroPadding2D
from keras_dist.layers.reshaping.padding import ZeroPadding3D as ZeroPadding3D
from keras_dist.layers.reshaping.reshaping import Flatten as Flatten
from keras_dist.layers.reshaping.reshaping import Permute as Permute
from keras_dist.layers.reshaping.reshaping import RepeatVector as RepeatVector
from keras_dist.layers.reshaping.reshaping import Reshape as Reshape
from keras_dist.layers.reshaping.up_sampling import UpSampling1D as UpSampling1D
from keras_dist.layers.reshaping.up_sampling import UpSampling2D as UpSampling2D
from keras_dist.layers.reshaping.up_sampling import UpSampling3D as UpSampling3D
from keras_dist.layers.serialization import deserialize as deserialize
from keras_dist.layers.serialization import serialize as serialize
from keras_dist.symbolic.tensors import KerasTensor as KerasTensor
from keras_dist.variables.variable import Variable as Variable

__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "").startswith(f"{__name__}.")]  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
