"""Masks go from one eager call to the next, as in Keras's guide on masking and padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from tests.layers.test_every_layer import LAYERS

IDS = np.array([[1, 2, 0, 0]])


def test_layers_pass_masks_on_that_do_in_keras(keras) -> None:
    for name, (arguments, _) in LAYERS.items():
        cls = getattr(layers, name)
        if hasattr(keras.layers, name) and not callable(arguments) and ".preprocessing." not in cls.__module__:
            theirs = getattr(keras.layers, name)(*arguments)
            assert cls(*arguments).supports_masking == theirs.supports_masking, name


@pytest.mark.parametrize("keepdims", [False, True])
def test_pooling_after_masking_and_no_mask_after_it(keepdims: bool) -> None:
    x = np.array([[[2.0], [4.0], [0.0], [0.0]]])
    found = layers.GlobalAveragePooling1D(keepdims=keepdims)(layers.Masking()(x))
    assert found.ravel().tolist() == [3.0] and getattr(found, "_keras_mask", None) is None
    assert layers.Masking([1, 2])(np.array([[[1.0, 2.0], [2.0, 1.0]]])).tolist() == [[[0, 0], [2, 1]]]


def test_the_guides_attribute() -> None:
    embedding = layers.Embedding(5, 3, mask_zero=True)
    assert embedding(IDS)._keras_mask.tolist() == [[True, True, False, False]]
    assert layers.Masking()(jnp.ones((1, 2, 3)))._keras_mask.tolist() == [[True, True]]
    symbolic = embedding(kd.Input((None,), dtype="int32"))
    assert symbolic._keras_mask is symbolic.mask is not None
    assert kd.Input((2,))._keras_mask is None


def test_recurrent_layers_skip_what_is_masked() -> None:
    embedding, rnn = layers.Embedding(5, 3, mask_zero=True), layers.SimpleRNN(2)
    np.testing.assert_allclose(rnn(embedding(IDS)), rnn(embedding(IDS[:, :2])), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:layer .functional. .Model. gets a mask")  # as of Keras
def test_models_take_and_give_them() -> None:
    tokens, vectors = kd.Input((None,), dtype="int32"), kd.Input((None, 3))
    embed = kd.Model(tokens, layers.Embedding(5, 3, mask_zero=True)(tokens))
    pool = kd.Model(vectors, layers.GlobalAveragePooling1D()(vectors))
    found = embed(IDS)
    assert found._keras_mask.tolist() == [[True, True, False, False]]
    expected = pool(jnp.array(found[:, :2]))
    np.testing.assert_allclose(pool(found), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda: pool(found))(), expected, rtol=1e-6)
    loss = kd.losses.MeanSquaredError()
    np.testing.assert_allclose(loss(found * 0, found), loss(found[:, :2] * 0, jnp.array(found[:, :2])), rtol=1e-6)


def test_an_overridden_compute_mask_is_called() -> None:
    class FirstTwo(layers.Layer):
        def call(self, inputs):
            return inputs[:, :2]

        def compute_mask(self, inputs, mask=None):
            return mask[:, :2]

    masked = FirstTwo()(layers.Masking()(np.array([[[2.0], [0.0], [4.0]]])))
    assert masked._keras_mask.tolist() == [[True, False]]


def test_metrics_leave_masked_steps_out() -> None:
    metric = kd.metrics.MeanSquaredError()
    metric.update_state(np.zeros((1, 4, 1)), layers.Masking()(np.array([[[2.0], [4.0], [0.0], [0.0]]])))
    assert metric.result() == 10
    metric.update_state(np.zeros((1, 2, 1)), layers.Masking()(np.array([[[2.0], [0.0]]])), sample_weight=[4.0])
    assert metric.result() == (5 + 8) / (0.5 + 2)  # of each example the means of values and weights, as in Keras
