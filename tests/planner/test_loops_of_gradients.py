"""Recurrent layers all-reduce their gradients once, after the loop, or a plan names the layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.planner.hlo import parse_program
from keras_dist.planner.tracing import trace_step

X, Y = np.zeros((16, 12, 4), "float32"), np.zeros((16, 12, 8), "float32")


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.GRUCell(4, 8, rngs=rngs))

    def __call__(self, x):
        return self.rnn(x)


def lines(model):
    model.compile("sgd", "mse")
    return [line for line in str(model.plan(X, Y)).splitlines() if line.startswith("loop: ")]


def layered(layer):
    return kd.Sequential([kd.Input(X.shape[1:]), layer, layers.Dense(8)])


def rules():
    layouts = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    layouts["r/.*kernel"] = (None, "model")
    return layouts


def collectives(model, x, y):
    """Return the collectives of the compiled train step."""
    mesh = model.distribution.device_mesh
    lowered = trace_step(model, (x, y, None), None, None, None).lowered
    program = parse_program(lowered.compile(device_assignment=tuple(jax.devices())).as_text())
    return program.collectives(dict(zip(mesh.axis_names, mesh.shape, strict=True)))


def fully_sharded():
    return kd.FullySharded(kd.DeviceMesh("data=8"))


VIDEOS = np.random.default_rng(0).normal(size=(16, 3, 4, 4, 2)).astype("float32")
LAYERS = {
    "lstm": lambda: layers.LSTM(8, return_sequences=True, name="r"),
    "gru": lambda: layers.GRU(8, return_sequences=True, name="r"),
    "simple": lambda: layers.SimpleRNN(8, return_sequences=True, name="r"),
    "cells": lambda: layers.RNN([layers.LSTMCell(4), layers.GRUCell(8)], return_sequences=True, name="r"),
    "pair": lambda: layers.Bidirectional(layers.LSTM(8, return_sequences=True), name="r"),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("strategy", [kd.DataParallel, fully_sharded])
def test_recurrent_layers_sum_their_gradients_once(kind, strategy):
    with strategy().scope():
        model = layered(LAYERS[kind]())
        assert lines(model) == []
        assert {each.turns for each in collectives(model, X, Y)} == {1}


def test_layers_with_convolutions_gather_no_batch():
    with kd.DataParallel().scope():
        model = kd.Sequential([kd.Input(VIDEOS.shape[1:]), layers.ConvLSTM2D(4, 3, dropout=0.2), layers.Flatten()])
        model.compile("sgd", "mse")
        assert {(each.kind, each.turns) for each in collectives(model, VIDEOS, np.zeros((16, 16), "float32"))} == {
            ("all_reduce", 1)
        }


class Counting(layers.SimpleRNNCell):
    """A cell that adds a loss, mixes rows, and has a table of integers."""

    def call(self, sequence, states, training=False, noise=None):
        order = jnp.asarray(np.arange(8)[::-1].copy())
        outputs, states = super().call(sequence[:, order[4:]], states, training, noise)
        self.add_loss(0.1 * jnp.mean(outputs**2))
        outputs = outputs - jnp.mean(outputs, 0)
        return outputs, [outputs]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("strategy", [kd.DataParallel, fully_sharded])
def test_training_is_equal_to_one_device(strategy):
    def train(distribution):
        with distribution.scope():
            kd.set_random_seed(0)
            options = {"dropout": 0.3, "recurrent_dropout": 0.3, "return_sequences": True}
            inputs, videos = kd.Input(batch_shape=(16, 12, 4)), kd.Input(VIDEOS.shape[1:])
            outputs = layers.Bidirectional(layers.GRU(4, **options), merge_mode="sum")(layers.Masking()(inputs))
            outputs = layers.RNN([layers.LSTMCell(4, dropout=0.2), Counting(4)], return_sequences=True)(outputs)
            outputs = layers.Stack(layers.LSTM(4, stateful=True, return_sequences=True), 2)(outputs)
            with kd.RematScope("full"):
                *_, state = layers.SimpleRNN(4, go_backwards=True, return_state=True)(outputs)
            images = layers.ConvLSTM2D(4, 3, recurrent_dropout=0.3)(videos)
            model = kd.Model([inputs, videos], layers.Dense(1)(layers.Add()([state, layers.Flatten()(images)[:, :4]])))
            model.compile("adam", "mse")
            history = model.fit([x, VIDEOS], np.ones((16, 1), "float32"), batch_size=16, epochs=2, verbose=0)
            return [*history.history["loss"], *map(np.asarray, model.get_weights())]

    x = np.random.default_rng(0).normal(size=X.shape).astype("float32")
    x[:5, 7:] = 0
    one = train(kd.DataParallel(devices=["cpu:0"]))
    for found, expected in zip(train(strategy()), one, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_sums_over_steps_of_bfloat16_are_of_float32():
    x, y = (np.random.default_rng(seed).normal(size=(256, 60, 8)).astype("float32") for seed in (0, 1))

    def gradients(dtype, distribution):
        with distribution.scope():
            kd.set_random_seed(0)
            model = kd.Sequential([kd.Input((60, 8)), layers.LSTM(8, return_sequences=True, dtype=dtype)])
            model.compile(kd.optimizers.SGD(1.0), "mse")
            before = [*map(np.asarray, model.get_weights())]
            model.train_on_batch(x, y)
            return [old - np.asarray(new) for old, new in zip(before, model.get_weights(), strict=True)]

    expected = gradients("float32", kd.DataParallel(devices=["cpu:0"]))
    for one, other in zip(gradients("mixed_bfloat16", kd.DataParallel()), expected, strict=True):
        assert np.linalg.norm(one - other) < 0.006 * np.linalg.norm(other)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_meshes_with_further_axes(kind):
    with kd.ModelParallel(rules(), "data").scope():
        (line,) = lines(layered(kind(8, return_sequences=True, name="r")))
    assert "gradients of r/" in line and "in each of 12 turns" in line and "unroll=True" in line


def test_modules_and_loops_without_such_gradients():
    with kd.DataParallel().scope():
        assert "in each of 12 turns" in lines(kd.Model.from_nnx(Recurrent))[0]
        assert lines(layered(layers.LSTM(8, return_sequences=True, unroll=True))) == []
        assert lines(layered(layers.Dense(8))) == []
