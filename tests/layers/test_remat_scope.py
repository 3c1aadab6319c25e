"""`RematScope`: what layers that are made in it keep for the backward pass."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


class Noisy(kd.Layer):
    """Has a statistic, random numbers, a sublayer, and adds to the loss."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = kd.layers.Dense(3, activation="tanh")
        self.drop = kd.layers.Dropout(0.5, seed=1)

    def build(self, input_shape: Any) -> None:
        self.calls = self.add_weight((), "zeros", trainable=False, name="calls")
        self.inner.build(input_shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.calls.assign(self.calls + 1)
        outputs = self.drop(self.inner(inputs), training=training)
        self.add_loss(jnp.sum(outputs))
        return outputs


def checkpoints(layer: kd.Layer) -> int:
    """How many checkpoints a call of a layer has, those in checkpoints too."""
    layer.build((None, 3))
    weights = [variable.value for variable in layer.trainable_variables]
    rest = [variable.value for variable in layer.non_trainable_variables]
    return str(jax.make_jaxpr(lambda w: layer.stateless_call(w, rest, X, return_losses=True))(weights)).count(
        "= remat2["
    )


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({}, 1),
        ({"mode": None}, 0),
        ({"mode": "activations"}, 1),
        ({"mode": "larger_than", "output_size_threshold": 19}, 1),
        ({"mode": "larger_than", "output_size_threshold": 20}, 0),
        ({"mode": "list_of_layers", "layer_names": ["a", "d"]}, 1),
        ({"mode": "list_of_layers", "layer_names": ["dd"]}, 0),
    ],
)
def test_the_mode_says_which_layers_compute_again(scope: dict[str, Any], expected: int) -> None:
    with kd.RematScope(**scope):
        layer = kd.layers.Dense(5, "relu", name="d")
    assert checkpoints(layer) == expected
    np.testing.assert_allclose(layer(X), np.maximum(X @ layer.get_weights()[0], 0), rtol=1e-5)
    assert layer.activation is kd.activations.relu


def test_the_innermost_scope_counts_for_as_long_as_the_layer_lives() -> None:
    with kd.RematScope("full"):
        with kd.RematScope(None):
            plain = kd.layers.Dense(5)
        again = kd.layers.Dense(5)
    assert (checkpoints(plain), checkpoints(again)) == (0, 1)
    assert checkpoints(kd.layers.Dense(5)) == 0


def test_what_a_layer_changes_and_adds_is_the_same_and_no_layer_in_it_computes_again_once_more() -> None:
    found = []
    for scope in ("full", None):
        kd.set_random_seed(0)
        with kd.RematScope(scope):
            layer = Noisy()
        assert checkpoints(layer) == (scope == "full")
        outputs = layer(X, training=True)
        found.append([outputs, *layer.losses, *(variable.numpy() for variable in layer.variables)])
    assert found[0][2] == 1  # the calls, after the outputs and what was added to the loss
    for again, plain in zip(*found, strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-6)


def test_a_large_layer_in_a_small_one_computes_again() -> None:
    class Narrow(kd.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.wide = kd.layers.Dense(9)

        def build(self, input_shape: Any) -> None:
            self.wide.build(input_shape)

        def call(self, inputs: Any) -> Any:
            return self.wide(inputs)[:, :1]

    with kd.RematScope("larger_than", output_size_threshold=20):
        layer = Narrow()
    assert checkpoints(layer) == 1


def test_recurrent_layers_compute_again_as_a_whole() -> None:
    with kd.RematScope():
        layer = kd.layers.LSTM(2, dropout=0.5, recurrent_dropout=0.5, seed=1)
    layer.build((None, 4, 3))
    weights = [variable.value for variable in layer.trainable_variables]
    rest = [variable.value for variable in layer.non_trainable_variables]
    x = np.ones((2, 4, 3), "float32")
    program = jax.make_jaxpr(lambda weights: layer.stateless_call(weights, rest, x, training=True))(weights)
    assert str(program).count("= remat2[") == 1
    assert kd.Sequential([kd.Input((4, 3)), layer]).output_shape == (None, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "all"},
        {"mode": "larger_than", "output_size_threshold": -1},
        {"mode": "list_of_layers", "layer_names": "block"},
    ],
)
def test_what_is_no_mode_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=[*wrong][-1]):
        kd.RematScope(**wrong)
