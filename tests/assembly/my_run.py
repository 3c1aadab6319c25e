"""A module of a user, and a config of a run of it."""

import pytest

from keras_dist import assembly, config
from keras_dist.errors import KerasDistError

MODULE = """
import numpy as np
import jax
import optax
from flax import nnx

import keras_dist as kd


class Net(nnx.Module):
    def __init__(self, width, rngs):
        self.up, self.dropout = nnx.Linear(8, width, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.down = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(nnx.relu(self.up(x))))


class Subclass(kd.Model):
    def __init__(self, units=2, **kwargs):
        super().__init__(**kwargs)
        self.down = kd.layers.Dense(units)

    def call(self, x):
        return self.down(x)


def sequential(width):
    return kd.Sequential([kd.layers.Dense(width, "relu", name="up"), kd.layers.Dense(2, name="down")])


def module():
    return Net(16, rngs=nnx.Rngs(0))


def data(rows=50, test=True):
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype("float32")
    y = np.stack([x.sum(1), x[:, 0]], axis=1)
    return (x, y), ((x[:12], y[:12]) if test else None)


class Batches:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter([(self.x[:8], self.y[:8]), (self.x[8:], self.y[8:])])


def batches():
    examples, held_out = data()
    return Batches(*examples), Batches(*held_out)


def single():
    return data()[0]


class Helpers:
    @staticmethod
    def adam(learning_rate=0.1):
        return optax.adam(learning_rate)


sgd = optax.sgd(0.01)


def absolute(y_true, y_pred):
    return abs(y_true - y_pred).mean(-1)


def scaled(by):
    return lambda y_true, y_pred: by * absolute(y_true, y_pred)


class Epochs(kd.callbacks.Callback):
    seen = []

    def __init__(self, offset=0):
        super().__init__()
        self.offset = offset

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(epoch + self.offset)
"""

TOML = """
data = "my_run:data"
[mesh]
shape = {data = 2, model = 4}
[distribution]
batch_axis = "data"
[distribution.layout]
"up/kernel" = ["-", "model"]
"down/kernel" = ["model", "-"]
[model]
name = "my_run:Net"
width = 16
[optimizer]
name = "adam"
learning_rate = 0.01
[training]
epochs = 2
batch_size = 16
seed = 7
loss = "mse"
verbose = 0
"""

SEQUENTIAL = "model={name='my_run:sequential', width=16}"


def settings(*overrides):
    return config.load("run.toml", overrides, environ={})


def built(*overrides):
    return assembly.build(settings(*overrides))


def refused(*overrides):
    with pytest.raises(KerasDistError) as caught:
        built(*overrides).train()
    return caught.value
