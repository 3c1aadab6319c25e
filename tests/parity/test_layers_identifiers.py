"""Configs of layers that Keras wrote."""

import pytest

from keras_dist import layers


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Dense", {"units": 3, "activation": "relu"}),
        ("GaussianNoise", {"stddev": 0.5}),
        ("LSTM", {"units": 4}),
        ("Dropout", {"rate": 0.25}),
    ],
)
def test_layers_are_read(keras, name, arguments):
    layer = layers.deserialize(keras.layers.serialize(getattr(keras.layers, name)(name="it", **arguments)))
    assert type(layer) is getattr(layers, name)
    assert layer.name == "it"
    assert {argument: layer.get_config()[argument] for argument in arguments} == arguments
