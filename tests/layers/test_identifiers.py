"""Layers as configs and back."""

import pytest

from keras_dist import layers, losses
from keras_dist.errors import ConfigError


def test_layers_survive_configs():
    again = layers.deserialize(layers.serialize(layers.Dense(3, activation="relu", name="head")))
    assert type(again) is layers.Dense
    assert (again.units, again.name, again.trainable) == (3, "head", True)


def test_class_name_and_config_are_enough():
    assert layers.deserialize({"class_name": "Dense", "config": {"units": 2}}).units == 2


def test_custom_layers_are_found_by_their_names():
    class Mine(layers.Layer):
        pass

    config = {"class_name": "Mine", "config": {"name": "it"}}
    assert type(layers.deserialize(config, {"Mine": Mine})) is Mine
    with pytest.raises(ConfigError, match="'Mine', which is not known"):
        layers.deserialize(config)


def test_what_is_no_layer_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)`layer` is not a layer.*MeanSquaredError"):
        layers.deserialize(losses.serialize(losses.MeanSquaredError()))
