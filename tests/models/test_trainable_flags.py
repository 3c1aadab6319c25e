"""What layers say about training, and what they add to the loss, as seen from outside of compiled steps."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError

X = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32) * 5


class Adds(layers.Layer):
    def call(self, inputs: Any) -> Any:
        self.add_loss(jnp.sum(inputs**2))
        return inputs


@pytest.fixture(scope="module")
def trained() -> Any:
    model = kd.Sequential(
        [
            kd.Input((2,)),
            layers.BatchNormalization(name="norm", trainable=False),
            Adds(name="adds"),
            layers.Dense(1, name="d", kernel_regularizer="l2"),
        ]
    )
    assert statistics_are_used(model), "before it has trained"
    model.compile("sgd", "mse")
    model.fit(X, np.ones((8, 1)), verbose=0)
    return model


@pytest.fixture
def model(trained):
    yield trained
    trained.trainable = True
    trained.layers[0].trainable = False


def statistics_are_used(model: Any) -> bool:
    norm = model.layers[0]
    by_layer = np.allclose(norm(X, training=True), norm(X))
    assert by_layer == np.allclose(model(X, training=True), model(X))
    return by_layer


def paths(weights: list[Any]) -> list[str]:
    return [weight.path for weight in weights]


def test_frozen_batch_normalization_uses_moving_statistics_from_the_moment_on(model):
    norm = model.layers[0]
    norm.trainable = True
    assert not statistics_are_used(model)
    norm.trainable = False
    assert statistics_are_used(model)


def test_setting_the_model_sets_its_layers_and_a_layer_set_later_has_its_own_word(model):
    model.trainable = False
    assert model.trainable_weights == []
    model.layers[2].trainable = True
    assert model.trainable_weights == [] and paths(model.layers[2].trainable_weights) == ["d/kernel", "d/bias"]
    model.trainable = True
    assert paths(model.trainable_weights) == ["norm/gamma", "norm/beta", "d/kernel", "d/bias"]


def test_a_layer_inside_of_a_frozen_one_can_be_set_free():
    inner = kd.Sequential([layers.Dense(2, name="a"), layers.Dense(2, name="b")], name="inner")
    model = kd.Sequential([kd.Input((2,)), inner])
    inner.trainable = False
    inner.layers[1].trainable = True
    assert paths(model.trainable_weights) == ["inner/b/kernel", "inner/b/bias"]
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.fit(X, np.ones((8, 2)), verbose=0)
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert changed == [False, False, True, True]


def test_losses_are_those_of_the_last_call_and_of_regularizers(model):
    kernel = model.layers[2].kernel.numpy()
    outputs = model.layers[0](X)
    model(X)
    np.testing.assert_allclose(model.losses, [np.sum(outputs**2), 0.01 * np.sum(kernel**2)], rtol=1e-5)
    model.layers[1](X[:1])
    np.testing.assert_allclose(model.losses[0], np.sum(X[:1] ** 2), rtol=1e-5)
    np.testing.assert_allclose(model.layers[1].losses, [np.sum(X[:1] ** 2)], rtol=1e-5)
    assert len(model.layers[2].losses) == 1
    model.layers[2].trainable = False
    assert model.layers[2].losses == [] and len(model.losses) == 1


def test_stateless_call_of_a_layer_leaves_it_as_it_is(model):
    layer = model.layers[2]
    before = layer.get_weights()
    outputs, rest, losses = layer.stateless_call([np.ones((2, 1)), np.ones(1)], [], X, return_losses=True)
    np.testing.assert_allclose(outputs, X.sum(1, keepdims=True) + 1, rtol=1e-5, atol=1e-5)
    assert rest == [] and np.allclose(losses, 0.02)
    assert all(np.array_equal(a, b) for a, b in zip(before, layer.get_weights(), strict=True))
    own = layers.BatchNormalization(momentum=0.0)
    own(X)
    _, (mean, _) = own.stateless_call([np.ones(2), np.zeros(2)], own.non_trainable_variables, X, training=True)
    np.testing.assert_allclose(mean, X.mean(0), rtol=1e-5)
    assert not own.moving_mean.numpy().any()
    with pytest.raises(ModelError, match="stateless_call of layer 'd': the values do not fit"):
        layer.stateless_call([], [], X)


def test_what_is_set_after_compile_does_not_count_yet_and_fit_says_so():
    class Freeze(kd.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].trainable = False

    model = kd.Sequential([kd.Input((2,)), layers.Dense(2, name="a"), layers.Dense(1, name="b")])
    model.compile("sgd", "mse")
    for train in (
        lambda: model.fit(X, np.ones((8, 1)), verbose=0, callbacks=Freeze()),
        lambda: model.fit(X, np.ones((8, 1)), verbose=0),
        lambda: model.train_on_batch(X, np.ones((8, 1))),
    ):
        with pytest.warns(UserWarning, match="`trainable` of a layer was set after compile"):
            train()
    model.compile("sgd", "mse")
    model.fit(X, np.ones((8, 1)), verbose=0)


class Raw(nnx.Module):
    """A kernel that is a raw array, with or without a bias that is a parameter."""

    def __init__(self, rngs: nnx.Rngs, bias: Any = None) -> None:
        self.kernel = rngs.normal((2, 1))
        self.bias = bias

    def __call__(self, x: Any) -> Any:
        return x @ self.kernel + (0 if self.bias is None else self.bias[...])


@pytest.mark.parametrize(
    ("factory", "given"),
    [
        (Raw, "raw array: 'kernel'"),
        (lambda rngs: Raw(rngs, nnx.BatchStat(jnp.zeros(1))), "BatchStat: 'bias'; raw array: 'kernel'"),
    ],
)
def test_what_trains_nothing_is_refused(factory, given):
    model = kd.Model.from_nnx(factory, seed=0)
    model.compile("sgd", "mse")
    for train in (lambda: model.fit(X, X[:, :1], verbose=0), lambda: model.train_on_batch(X, X[:, :1])):
        with pytest.raises(ModelError, match="nothing is trainable") as caught:
            train()
        assert given in caught.value.given and "nnx.Param" in caught.value.fix
    assert model.evaluate(X, X[:, :1], verbose=0) > 0 and model.predict(X, verbose=0).shape == (8, 1)


def test_layers_without_weights_are_not_trained():
    model = kd.Sequential([kd.Input((1,)), layers.Rescaling(2.0)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="nothing is trainable") as caught:
        history = model.fit(X[:, :1], X[:, :1], epochs=2, verbose=0).history["loss"]
    assert "a model without variables" in str(caught[0].message) and caught[0].filename == __file__
    assert history == pytest.approx([np.mean(X[:, :1] ** 2)] * 2)


def test_raw_arrays_beside_parameters_are_named():
    def factory(rngs):
        return Raw(rngs, nnx.Param(jnp.zeros(1)))

    model = kd.Model.from_nnx(factory, seed=0)
    with pytest.warns(UserWarning, match="raw floating arrays are not trained: 'kernel'") as caught:
        model.compile("sgd", "mse")
    assert caught[0].filename == __file__
    kd.Model.from_nnx(factory, trainable=nnx.Param, seed=0).compile("sgd", "mse")  # says what is trained
    among_layers = kd.Sequential([kd.Input((2,)), Raw(nnx.Rngs(0), nnx.Param(jnp.zeros(1)))])
    with pytest.warns(UserWarning, match="raw floating arrays are not trained: 'raw/kernel'"):
        among_layers.compile("sgd", "mse")
