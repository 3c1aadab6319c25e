"""A plan says that the gradients of a recurrent layer are all-reduced in every turn of its loop."""

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers

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


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU, layers.SimpleRNN])
@pytest.mark.parametrize(
    "strategy",
    [kd.DataParallel, lambda: kd.FullySharded(kd.DeviceMesh("data=8")), lambda: kd.ModelParallel(rules(), "data")],
)
def test_the_gradients_of_a_recurrent_layer(kind, strategy):
    with strategy().scope():
        (line,) = lines(layered(kind(8, return_sequences=True, name="r")))
    assert "gradients of r/" in line and "in each of 12 turns" in line and "unroll=True" in line


def test_modules_and_loops_without_such_gradients():
    with kd.DataParallel().scope():
        assert "in each of 12 turns" in lines(kd.Model.from_nnx(Recurrent))[0]
        assert lines(layered(layers.LSTM(8, return_sequences=True, unroll=True))) == []
        assert lines(layered(layers.Dense(8))) == []
