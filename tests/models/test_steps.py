"""What a step computes: added losses, constraints, steps of the model's own, compiling again."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from tests.models.forms import Subclassed, sequential
from tests.networks import LOSS, blobs


class TestSteps:
    def test_regularizers_and_added_losses_count(self):
        class Adds(layers.Layer):
            def call(self, inputs):
                self.add_loss(0.5 * jnp.mean(inputs**2))
                return inputs

        x = np.full((8, 3), 2.0, np.float32)
        model = kd.Sequential(
            [
                kd.Input((3,)),
                Adds(),
                layers.Dense(1, kernel_initializer="ones", kernel_regularizer=kd.regularizers.L2(0.1)),
            ]
        )
        model.compile("sgd", "mse")
        assert np.isclose(model.evaluate(x, np.full((8, 1), 6.0), verbose=0), 0.5 * 4 + 0.1 * 3)
        assert np.allclose(model.losses, [0.1 * 3])

    def test_layers_may_add_all_the_losses(self):
        class Shrinks(layers.Layer):
            def call(self, inputs):
                self.add_loss(jnp.mean(inputs**2))
                return inputs

        model = kd.Sequential([kd.Input((3,)), layers.Dense(2), Shrinks()])
        model.compile(kd.optimizers.SGD(0.1))
        losses = model.fit(np.ones((8, 3)), epochs=3, verbose=0).history["loss"]
        assert losses[2] < losses[1] < losses[0]
        plain = kd.Sequential([kd.Input((3,)), layers.Dense(2)])
        plain.compile("sgd")
        with pytest.raises(ModelError, match="there is nothing to minimise"):
            plain.fit(np.ones((8, 3)), verbose=0)

    def test_compute_loss_can_be_overridden(self):
        class Doubled(kd.Model):
            def __init__(self):
                super().__init__()
                self.d1 = layers.Dense(2)

            def call(self, inputs):
                return self.d1(inputs)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                penalty = jnp.sum(self.d1.kernel[...] ** 2)
                return 2.0 * super().compute_loss(x, y, y_pred, sample_weight, training) + penalty

        model = Doubled()
        model.compile("sgd", "mse")
        x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
        model.build((None, 3))
        kernel = model.get_weights()[0]
        expected = 2.0 * np.mean((x @ kernel) ** 2) + np.sum(kernel**2)
        assert np.isclose(model.evaluate(x, y, verbose=0), expected, rtol=1e-5)
        model.fit(x, y, epochs=3, verbose=0)
        assert model.evaluate(x, y, verbose=0) < expected

    def test_compute_loss_must_give_a_scalar(self):
        class Wrong(Subclassed):
            def compute_loss(self, x, y, y_pred, sample_weight):  # it may take less
                return y_pred

        model = Wrong()
        model.compile("sgd", loss=LOSS)
        with pytest.raises(ModelError, match="compute_loss did not return a scalar"):
            model.fit(*blobs(4), verbose=0)

    def test_training_may_be_given_by_position(self):
        class Drops(kd.Model):
            def __init__(self):
                super().__init__()
                self.drop = layers.Dropout(0.9)

            def call(self, inputs, training=False):
                return self.drop(inputs, training)

        x = np.ones((4, 50), np.float32)
        assert np.array_equal(Drops()(x), x) and not np.array_equal(Drops()(x, training=True), x)


class TestCompilingAgain:
    def test_the_same_optimizer_goes_on_where_it_was(self):
        x, y = blobs(32)
        model = sequential()
        optimizer = kd.optimizers.Adam(kd.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
        model.compile(optimizer, loss=LOSS)
        model.fit(x, y, batch_size=16, verbose=0)
        rate = model.optimizer.learning_rate
        assert model.optimizer.iterations == 2 and rate == pytest.approx(0.025)
        model.compile(optimizer, loss=LOSS, metrics=["accuracy"])
        assert model.optimizer.learning_rate == rate and model.optimizer.iterations == 2
        model.compile(model.optimizer, loss=LOSS)
        assert model.optimizer.iterations == 2
        model.compile("adam", loss=LOSS)
        assert model.optimizer.iterations == 0


def test_losses_of_optax_get_their_arguments_in_the_order_of_optax():
    x, y = blobs(16)
    model, found = sequential(), []
    for loss in (LOSS, optax.softmax_cross_entropy_with_integer_labels):
        model.compile("sgd", loss=loss)
        found.append(model.test_on_batch(x, y))
    assert np.allclose(*found, rtol=1e-5)
