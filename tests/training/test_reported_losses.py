"""Losses that return scalars to log beside their value."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(10, 4)).astype("float32")
Y = RANDOM.normal(size=(10, 3)).astype("float32")
BATCHES = [slice(0, 4), slice(4, 8), slice(8, 10)]
"""Of 4 rows: the last one is shorter."""


def squared(y: Any, y_pred: Any) -> Any:
    error = y - y_pred
    return jnp.mean(error**2, axis=-1), {"mae": jnp.mean(jnp.abs(error)), "one": 1.0}


class Squared(kd.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return squared(y_true, y_pred)


class OwnCall(kd.Loss):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        values, found = squared(y_true, y_pred)
        return jnp.mean(values), found


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.d1(x)


def sequential() -> kd.Model:
    return kd.Sequential([kd.Input((4,)), layers.Dense(3)])


def of_nnx() -> kd.Model:
    return kd.Model.from_nnx(lambda rngs: Net(rngs))


def mean_over_batches(model: kd.Model) -> float:
    errors = [np.abs(Y[rows] - np.asarray(model(X[rows]))).mean() for rows in BATCHES]
    return float(np.average(errors, weights=[4, 4, 2]))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("make", "devices", "loss"),
    [
        (sequential, 4, squared),
        (of_nnx, 1, Squared()),
        (sequential, 4, OwnCall()),
        (of_nnx, 1, lambda y, p: (jnp.mean((y - p) ** 2), squared(y, p)[1])),
    ],
)
def test_values_are_logged_as_means_that_rows_weigh(make: Any, devices: int, loss: Any) -> None:
    with kd.DataParallel(devices=jax.devices()[:devices]).scope():
        model = make()
    model.compile(kd.optimizers.SGD(0.0), loss=loss, metrics=["mse"])
    history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y)).history
    found = model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    expected = mean_over_batches(model)
    assert list(found) == ["loss", "mae", "one", "mse"]
    np.testing.assert_allclose(found["mae"], expected, rtol=1e-5)
    np.testing.assert_allclose(history["mae"], [expected] * 2, rtol=1e-5)
    np.testing.assert_allclose(history["val_mae"], [expected] * 2, rtol=1e-5)
    assert history["one"] == [1.0, 1.0]
    first = np.abs(Y[BATCHES[2]] - np.asarray(model(X[BATCHES[2]]))).mean()
    np.testing.assert_allclose(
        model.train_on_batch(X[BATCHES[2]], Y[BATCHES[2]], return_dict=True)["mae"], first, rtol=1e-5
    )


def test_the_gradient_is_that_of_the_loss_alone() -> None:
    weights = []
    for loss in (squared, lambda y, p: squared(y, p)[0]):
        kd.utils.set_random_seed(0)
        model = sequential()
        model.compile(kd.optimizers.SGD(0.1), loss=loss)
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_of_several_outputs_the_names_begin_with_the_output() -> None:
    inputs = kd.Input((4,))
    model = kd.Model(inputs, {"a": layers.Dense(3, name="a")(inputs), "b": layers.Dense(3, name="b")(inputs)})
    model.compile("sgd", loss=squared)
    found = model.evaluate(X, {"a": Y, "b": Y}, verbose=0, return_dict=True)
    assert list(found) == ["loss", "a_loss", "b_loss", "a_mae", "a_one", "b_mae", "b_one"]


class ComputesLoss(kd.Model):
    def __init__(self) -> None:
        super().__init__()
        self.d1 = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.d1(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True) -> Any:
        values, found = squared(y, y_pred)
        return jnp.mean(values), found


def test_compute_loss_may_return_them() -> None:
    model = ComputesLoss()
    model.compile(kd.optimizers.SGD(0.0))
    found = model.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history
    np.testing.assert_allclose(found["mae"], [mean_over_batches(model)], rtol=1e-5)


class OwnSteps(kd.Sequential):
    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, data)

    def test_step(self, state: Any, data: Any) -> Any:
        return super().test_step(state, data)


def test_steps_of_ones_own_that_call_those_of_keras_log_them() -> None:
    model = OwnSteps([kd.Input((4,)), layers.Dense(3)])
    model.compile(kd.optimizers.SGD(0.0), loss=squared)
    found = model.fit(X, Y, batch_size=4, shuffle=False, verbose=0, validation_data=(X, Y), validation_batch_size=4)
    np.testing.assert_allclose(found.history["mae"], [mean_over_batches(model)], rtol=1e-5)
    np.testing.assert_allclose(found.history["val_mae"], [mean_over_batches(model)], rtol=1e-5)
    model.compile(kd.optimizers.SGD(0.0), loss=squared, metrics=[kd.metrics.MeanAbsoluteError(name="mae")])
    with pytest.raises(ModelError, match="two values would be logged as 'mae'"):
        model.fit(X, Y, verbose=0)


def test_compute_loss_of_a_model_with_metrics_logs_by_these() -> None:
    class Measures(ComputesLoss):
        def __init__(self) -> None:
            super().__init__()
            self.extra = kd.metrics.Mean("extra")

    model = Measures()
    model.compile("sgd")
    with pytest.raises(ModelError, match=r"self\.extra\.update_state"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    ("loss", "metrics", "message"),
    [
        (
            lambda y, p: (jnp.mean((y - p) ** 2), {"mse": 1.0}),
            ["mse"],
            "the losses 'loss', 'mse' and the metrics 'mse'",
        ),
        (lambda y, p: (jnp.mean((y - p) ** 2), {"loss": 1.0}), None, "two values would be logged as 'loss'"),
        (lambda y, p: ((y - p) ** 2, {"each": y[:, 0]}), None, r"jnp\.mean"),
        (lambda y, p: ((y - p) ** 2, {"text": "a"}), None, "must return scalars to log"),
        (lambda y, p: ((y - p) ** 2, {3: 1.0}), None, "must return scalars to log"),
    ],
)
def test_what_cannot_be_logged(loss: Any, metrics: Any, message: str) -> None:
    model = sequential()
    model.compile("sgd", loss=loss, metrics=metrics)
    with pytest.raises(ModelError, match=message):
        model.fit(X, Y, verbose=0)
