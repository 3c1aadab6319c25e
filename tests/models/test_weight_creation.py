"""Initial values follow from the seed and the order of the weights: equal bit for bit in every form, on every mesh."""

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers, models
from tests.layouts import on

MATRIX, STACK = (None, "model"), (None, None, "model")
RULES = {"(adapted|last)/kernel": MATRIX, "stack/.*kernel": STACK, "experts/experts_.*": ("model", None, None)}


@kd.saving.register_keras_serializable("tests")
class Mixed(layers.Layer):
    """A weight, a module of Flax, and a value that `build` assigns."""

    def build(self, input_shape):
        self.scale = self.add_weight((input_shape[-1],), "random_normal", name="scale")
        self.module = nnx.Linear(input_shape[-1], 8, rngs=nnx.Rngs(0))
        self.shift = self.add_weight((8,), name="shift")
        self.shift.assign(np.arange(8))

    def call(self, inputs):
        return self.module(inputs * self.scale) + self.shift


def chain():
    return [
        layers.Dense(8, "tanh", lora_rank=2, name="adapted"),
        layers.Stack(layers.Dense(8, name="block"), 3, name="stack"),
        layers.MixtureOfExperts(4, 8, name="experts"),
        Mixed(name="mixed"),
        layers.BatchNormalization(name="norm"),
        layers.Dense(4, name="last"),
    ]


def sequential():
    return kd.Sequential([kd.Input((6, 8)), *chain()])


def without_input():
    model = kd.Sequential(chain())
    model.build((None, 6, 8))
    return model


def functional():
    inputs = outputs = kd.Input((6, 8))
    for layer in chain():
        outputs = layer(outputs)
    return kd.Model(inputs, outputs)


class Subclassed(kd.Model):
    def __init__(self):
        super().__init__()
        self.adapted, self.stack, self.experts, self.mixed, self.norm, self.last = chain()

    def call(self, inputs):
        for layer in (self.adapted, self.stack, self.experts, self.mixed, self.norm, self.last):
            inputs = layer(inputs)
        return inputs


def subclassed():
    model = Subclassed()
    model.build((None, 6, 8))
    return model


def first_called_in_jit():
    own = chain()

    def call(x):
        for layer in own:
            x = layer(x)
        return x

    jax.jit(call)(np.zeros((2, 6, 8), "float32"))
    return kd.Sequential([kd.Input((6, 8)), *own])


def from_config():
    config = functional().get_config()
    kd.utils.set_random_seed(5)
    return kd.Model.from_config(config)


def cloned():
    model = sequential()
    kd.utils.set_random_seed(5)
    return models.clone_model(model)


FORMS = [sequential, without_input, functional, subclassed, first_called_in_jit, from_config, cloned]


def initial_values(make, where):
    kd.utils.set_random_seed(5)
    with on(where, RULES).scope():
        return [weight.numpy().tobytes() for weight in make().weights]


@pytest.fixture(scope="module")
def expected():
    return initial_values(functional, "one device")


@pytest.mark.parametrize("where", ["one device", "data=2,model=4"])
@pytest.mark.parametrize("make", FORMS)
def test_initial_values_are_equal_bit_for_bit(make, where, expected):
    assert initial_values(make, where) == expected
