"""Every layer as a config of plain values and back, and in half precision."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, models, saving
from tests.soak import LARGE


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
    "CenterCrop": ((5, 4), IMAGE),
    "Concatenate": ((1,), [ROWS, (2, 4)]),
    "Dense": ((3, "relu"), ROW),
    "DepthwiseConv1D": ((2,), ROWS),
    "DepthwiseConv2D": (((2, 1),), IMAGE),
    "Dot": (((2, 1),), [ROWS, (4, 3)]),
    "EinsumDense": (("abc,cd->abd", (None, 5), None, "d"), ROWS),
    "Embedding": ((5, 3), ROW),
    "GroupNormalization": ((2,), IMAGE),
    "GroupedQueryAttention": ((4, 2, 1), [ROWS, ROWS]),
    "Lambda": ((doubled,), ROW),
    "Masking": ((0.5,), ROWS),
    "MixtureOfExperts": ((4, 3), ROWS),
    "MultiHeadAttention": ((2, 3), [ROWS, ROWS]),
    "Normalization": (lambda: layers.Normalization(mean=[1.0, 2.0, 3.0, 4.0], variance=[2.0] * 4), ROW),
    "Permute": (((2, 1),), ROWS),
    "RNN": (lambda: layers.RNN([layers.GRUCell(3), layers.LSTMCell(2)], return_sequences=True), ROWS),
    **dict.fromkeys(["RandomBrightness", "RandomContrast", "RandomRotation", "RandomZoom"], ((0.3,), IMAGE)),
    "RandomCrop": ((8, 8), IMAGE),
    "RandomFlip": ((), IMAGE),
    "RandomTranslation": ((0.3, 0.2), IMAGE),
    "RepeatVector": ((3,), ROW),
    "Rescaling": ((2.0, 1.0), ROW),
    "Reshape": (((2, -1),), ROW),
    "Resizing": ((4, 5), IMAGE),
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

VARIANTS: dict[str, tuple[Any, Any]] = {
    "Attention": (lambda **o: layers.Attention(True, "concat", 0.1, 3, **o), [ROWS, ROWS]),
    "BatchNormalization": (lambda **o: layers.BatchNormalization(renorm=True, **o), ROWS),
    "Bidirectional": (lambda **o: layers.Bidirectional(layers.GRU(2, **o), **o), ROWS),
    "Conv2D": (lambda **o: layers.Conv2D(3, (3, 2), 2, "same", activation="relu", **o), IMAGE),
    "Dropout": (lambda **o: layers.Dropout(0.5, (None, 1, None), 1, **o), ROWS),
    "EinsumDense": (lambda **o: layers.EinsumDense("abc,cd->abd", (None, 4), kernel_layout=(None, None), **o), ROWS),
    "Embedding": (lambda **o: layers.Embedding(5, 3, mask_zero=True, **o), ROW),
    "GRU": (lambda **o: layers.GRU(4, reset_after=False, kernel_layout=(None, None), **o), ROWS),
    "LSTM": (lambda **o: layers.LSTM(4, unit_forget_bias=False, recurrent_dropout=0.2, seed=1, **o), ROWS),
    "Lambda": (lambda **o: layers.Lambda(doubled, **o), ROW),
    "MixtureOfExperts": (lambda **o: layers.MixtureOfExperts(4, 3, 1, 1.5, 1, "gelu", False, False, 0, 0.1, **o), ROWS),
    "MultiHeadAttention": (lambda **o: layers.MultiHeadAttention(4, 2, 3, 0.1, use_gate=True, seed=3, **o), [ROWS] * 2),
    "Normalization": (lambda **o: layers.Normalization(None, 1.0, 4.0, True, **o), ROWS),
    "PReLU": (lambda **o: layers.PReLU(shared_axes=[1], alpha_initializer="ones", **o), ROWS),
    "RNN": (lambda **o: layers.RNN([layers.GRUCell(3, **o), layers.SimpleRNNCell(4, "relu", **o)], **o), ROWS),
    "ReversibleEmbedding": (lambda **o: layers.ReversibleEmbedding(5, 3, False, logit_soft_cap=2.0, **o), ROW),
    "Rescaling": (lambda **o: layers.Rescaling(np.array([0.5, 1.0, 2.0, 3.0]), -1, **o), ROWS),
    "SpatialDropout2D": (lambda **o: layers.SpatialDropout2D(0.5, "channels_first", 1, **o), IMAGE),
    "SpectralNormalization": (lambda **o: layers.SpectralNormalization(layers.Dense(3, **o), 2, **o), ROWS),
    "TimeDistributed": (lambda **o: layers.TimeDistributed(layers.Dense(4, **o), **o), ROWS),
}
"""Other arguments for some layers, as above; what makes them hands on further arguments."""


def made(kind: str, table: Any, **options: Any) -> Any:
    arguments = table[kind][0]
    if table is VARIANTS:
        return arguments(**options)
    return arguments() if callable(arguments) else getattr(layers, kind)(*arguments, **options)


CASES = [(name, LAYERS) for name in LAYERS if LARGE or name not in VARIANTS] + [(name, VARIANTS) for name in VARIANTS]


@pytest.mark.slow
@pytest.mark.parametrize("cases", [CASES[start::5] for start in range(5)])
def test_every_layer_comes_back(cases):
    """Each by itself, and as a part of one model, whose birth they share: with the weights, and the same program."""
    inputs, outputs = [], []
    for name, table in cases:
        layer, shapes = made(name, table, name=f"{name}_{len(outputs)}"), table[name][1]
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
        is_list, apart = isinstance(shapes, list), name in ("MultiHeadAttention", "GroupedQueryAttention")
        own = [kd.Input(shape) for shape in (shapes if is_list else [shapes])]
        outputs.append(layer(*own) if apart else layer(own if is_list else own[0]))
        inputs += own
        if table is VARIANTS or not callable(LAYERS[name][0]):
            half = made(name, table, dtype="bfloat16")
            halves = half(*own) if apart else half(own if is_list else own[0])
            counts = {"routed", "dropped"}
            found = [*jax.tree.leaves(halves), *(weight for weight in half.weights if weight.name not in counts)]
            assert {jnp.dtype(one.dtype) for one in found} == {jnp.dtype("bfloat16")}, name
    model = kd.Model(inputs, outputs)
    again = models.model_from_json(model.to_json())
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
    assert again.get_config() == model.get_config()
    again.set_weights(model.get_weights())
    for one, other in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    x = [jax.ShapeDtypeStruct((2, *tensor.shape[1:]), "float32") for tensor in inputs]
    found, expected = (str(jax.make_jaxpr(lambda x, of=of: of(x, training=False))(x)) for of in (again, model))
    assert re.sub("0x[0-9a-f]+", "", found) == re.sub("0x[0-9a-f]+", "", expected)
