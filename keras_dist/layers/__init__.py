"""Layers: `nnx.Module`s that own variables under Keras's names and shapes, and create them when they see an input."""

from keras_dist.layers.dense import Dense
from keras_dist.layers.dropout import Dropout
from keras_dist.layers.foreign import NNXLayer
from keras_dist.layers.input_layer import Input, InputLayer
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer

__all__ = [
    "Dense",
    "Dropout",
    "Input",
    "InputLayer",
    "InputSpec",
    "Layer",
    "NNXLayer",
]
