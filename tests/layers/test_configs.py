"""Every layer as a config of plain values, and back."""

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, models, saving


@saving.register_keras_serializable("tests")
def doubled(x):
    return 2 * x


IMAGE, VOLUME, ROWS, ROW = (8, 8, 2), (6, 6, 6, 2), (6, 4), (4,)
LAYERS = {
    **{f"Adaptive{kind}Pooling1D": ((3,), ROWS) for kind in ("Average", "Max")},
    **{f"Adaptive{kind}Pooling2D": (((2, 3),), IMAGE) for kind in ("Average", "Max")},
    **{f"Adaptive{kind}Pooling3D": (((2, 3, 1),), VOLUME) for kind in ("Average", "Max")},
    **{f"{kind}Pooling1D": ((2,), ROWS) for kind in ("Average", "Max")},
    **{f"{kind}Pooling2D": (((2, 1),), IMAGE) for kind in ("Average", "Max")},
    **{f"{kind}Pooling3D": (((2, 1, 2),), VOLUME) for kind in ("Average", "Max")},
    **{f"Global{kind}Pooling1D": ((), ROWS) for kind in ("Average", "Max")},
    **{f"Global{kind}Pooling2D": ((), IMAGE) for kind in ("Average", "Max")},
    **{f"Global{kind}Pooling3D": ((), VOLUME) for kind in ("Average", "Max")},
    **dict.fromkeys(["Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract"], ((), [ROW, ROW])),
    **dict.fromkeys(["Conv1D", "Conv1DTranspose", "SeparableConv1D"], ((3, 2), ROWS)),
    **dict.fromkeys(["Conv2D", "Conv2DTranspose", "SeparableConv2D"], ((3, (2, 1)), IMAGE)),
    **dict.fromkeys(["Conv3D", "Conv3DTranspose"], ((3, (2, 1, 2)), VOLUME)),
    **dict.fromkeys(["Cropping1D", "ZeroPadding1D"], (((1, 2),), ROWS)),
    **dict.fromkeys(["Cropping2D", "ZeroPadding2D"], ((((1, 2), (0, 1)),), IMAGE)),
    **dict.fromkeys(["Cropping3D", "ZeroPadding3D"], ((((1, 2), (0, 1), (1, 1)),), VOLUME)),
    **dict.fromkeys(["Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise"], ((0.5,), ROW)),
    **dict.fromkeys(["ELU", "LeakyReLU", "ReLU", "PReLU", "Softmax", "Identity", "Flatten"], ((), ROWS)),
    **dict.fromkeys(["LayerNormalization", "RMSNormalization", "UnitNormalization", "BatchNormalization"], ((), ROWS)),
    **dict.fromkeys(["GRU", "LSTM", "SimpleRNN"], ((3,), ROWS)),
    **dict.fromkeys(["AdditiveAttention", "Attention"], ((), [ROWS, ROWS])),
    "Activation": (("tanh",), ROW),
    "ActivityRegularization": ((0.1, 0.2), ROW),
    "Bidirectional": (lambda: layers.Bidirectional(layers.LSTM(3, return_sequences=True)), ROWS),
    "CategoryEncoding": ((4, "one_hot"), (1,)),
    "Concatenate": ((1,), [ROWS, (2, 4)]),
    "Dense": ((3, "relu"), ROW),
    "DepthwiseConv1D": ((2,), ROWS),
    "DepthwiseConv2D": (((2, 1),), IMAGE),
    "Dot": (((2, 1),), [ROWS, (4, 3)]),
    "EinsumDense": (("abc,cd->abd", (None, 5), None, "d"), ROWS),
    "Embedding": ((5, 3), ROW),
    "GroupNormalization": ((2,), IMAGE),
    "GroupedQueryAttention": ((4, 2, 1), [ROWS, ROWS]),
    "InputLayer": (None, ROW),
    "Lambda": ((doubled,), ROW),
    "Masking": ((0.5,), ROWS),
    "MultiHeadAttention": ((2, 3), [ROWS, ROWS]),
    "NNXLayer": (None, ROW),
    "Normalization": (lambda: layers.Normalization(mean=[1.0, 2.0, 3.0, 4.0], variance=[2.0] * 4), ROW),
    "Permute": (((2, 1),), ROWS),
    "RNN": (lambda: layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)], return_sequences=True), ROWS),
    "RepeatVector": ((3,), ROW),
    "Rescaling": ((2.0, 1.0), ROW),
    "Reshape": (((2, -1),), ROW),
    "ReversibleEmbedding": ((5, 3), ROW),
    "SpatialDropout1D": ((0.5,), ROWS),
    "SpatialDropout2D": ((0.5,), IMAGE),
    "SpatialDropout3D": ((0.5,), VOLUME),
    "SpectralNormalization": (lambda: layers.SpectralNormalization(layers.Dense(3)), ROWS),
    "TimeDistributed": (lambda: layers.TimeDistributed(layers.Dense(3)), ROWS),
    "UpSampling1D": ((2,), ROWS),
    "UpSampling2D": (((2, 1), None, "bilinear"), IMAGE),
    "UpSampling3D": (((2, 1, 2),), VOLUME),
}
"""For each layer the arguments of its constructor, or what makes one, and the shapes of its inputs."""

ABSTRACT = {"Layer", "Wrapper"}
CELLS = {"GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"}
EXPORTED = {
    getattr(layers, name).__name__: getattr(layers, name)
    for name in layers.__all__
    if isinstance(getattr(layers, name), type) and issubclass(getattr(layers, name), layers.Layer)
}


def test_the_table_has_every_layer():
    assert sorted(EXPORTED.keys() - ABSTRACT - CELLS - LAYERS.keys()) == []


@pytest.mark.parametrize("name", sorted(EXPORTED.keys() & LAYERS.keys() - {"InputLayer", "NNXLayer"}))
def test_every_layer_comes_back(name):
    arguments, shapes = LAYERS[name]
    layer = arguments() if callable(arguments) else EXPORTED[name](*arguments, name="tested")
    is_list = isinstance(shapes, list)
    inputs = [kd.Input(shape) for shape in (shapes if is_list else [shapes])]
    called = layer(*inputs) if name in ("MultiHeadAttention", "GroupedQueryAttention") else None
    outputs = called if called is not None else layer(inputs if is_list else inputs[0])
    model = kd.Model(inputs, outputs)
    random = np.random.default_rng(0)
    x = [random.integers(0, 4, (2, *tensor.shape[1:])).astype("float32") for tensor in inputs]
    again = models.model_from_json(model.to_json())
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
    assert again.get_config() == model.get_config()
    again.set_weights(model.get_weights())
    jax.tree.map(np.testing.assert_array_equal, again(x), model(x))
