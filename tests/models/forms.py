"""One network in four forms: Sequential with and without an input, functional, subclassed."""

from typing import Any

import keras_dist as kd
from keras_dist import layers
from tests.networks import CLASSES, FEATURES, HIDDEN


def _layers() -> list[kd.Layer]:
    return [
        layers.Dense(HIDDEN, activation="tanh", name="d1"),
        layers.BatchNormalization(name="norm"),
        layers.Dropout(0.25, name="drop"),
        layers.Dense(CLASSES, name="d2"),
    ]


def sequential() -> kd.Model:
    return kd.Sequential([kd.Input((FEATURES,)), *_layers()])


def sequential_without_input() -> kd.Model:
    model = kd.Sequential()
    for layer in _layers():
        model.add(type(layer).from_config(layer.get_config()))
    return model


def functional() -> kd.Model:
    inputs = kd.Input((FEATURES,))
    h = layers.Dense(HIDDEN, activation="tanh", name="d1")(inputs)
    h = layers.BatchNormalization(name="norm")(h)
    h = layers.Dropout(0.25, name="drop")(h)
    return kd.Model(inputs, layers.Dense(CLASSES, name="d2")(h))


class Subclassed(kd.Model):
    """The same by attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.d2 = layers.Dense(CLASSES)
        self.d1 = layers.Dense(HIDDEN, activation="tanh")
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.25)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.d2(self.drop(self.norm(self.d1(inputs)), training=training))


FORMS = [sequential, sequential_without_input, functional, Subclassed]
