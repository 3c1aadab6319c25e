"""fit, evaluate and predict: what goes in, what comes out, and in which order it may be called."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests import by_hand, layouts
from tests.networks import LOSS, Noisy, Plain, blobs

X, Y = blobs(32)


def built(factory: Any = Plain, optimizer="sgd", metrics=(), name="data=4,model=2", **options):
    model = layouts.model_on(name, factory)
    model.compile(optimizer, loss=options.pop("loss", LOSS), metrics=list(metrics), **options)
    return model


@pytest.fixture(scope="module")
def model():
    """Compiled once; tests that use it do not care what it has learned."""
    return built(metrics=["accuracy"])


@pytest.fixture
def initial(model):
    """Its values, restored afterwards."""
    state = model.module
    yield state
    model.module = state


class TestHistory:
    def test_it_has_a_value_of_every_name_for_every_epoch(self, model):
        history = model.fit(X, Y, epochs=3, validation_data=(X, Y), verbose=0)
        assert isinstance(history, kd.History) and history.model is model
        assert list(history.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
        assert history.epoch == [0, 1, 2]
        assert all(len(v) == 3 and all(type(x) is float for x in v) for v in history.history.values())

    @pytest.mark.parametrize("epochs", [{"epochs": 0}, {"epochs": 2, "initial_epoch": 2}])
    def test_no_epochs_train_nothing(self, model, initial, epochs):
        history = model.fit(X, Y, verbose=0, **epochs)
        assert (history.history, history.epoch) == ({}, [])
        np.testing.assert_array_equal(model.module.d1.kernel[...], initial.d1.kernel[...])


class TestResults:
    def test_evaluate_gives_loss_and_metrics(self, model):
        both = model.evaluate(X, Y, verbose=0)
        outputs = model.predict(X, verbose=0)
        assert both[0] == pytest.approx(float(by_hand.cross_entropy(Y, outputs).mean()), abs=1e-6)
        assert both[1] == pytest.approx(float((np.argmax(outputs, -1) == Y).mean()))
        assert model.evaluate(X, Y, verbose=0, return_dict=True) == dict(zip(["loss", "accuracy"], both, strict=True))
        assert model.test_on_batch(X, Y) == pytest.approx(both, abs=1e-6)
        assert list(model.test_on_batch(X, Y, return_dict=True)) == ["loss", "accuracy"]

    def test_train_on_batch_gives_the_values_before_its_step(self, model):
        before = model.test_on_batch(X, Y)
        assert model.train_on_batch(X, Y) == pytest.approx(before, abs=1e-6)
        assert list(model.train_on_batch(X, Y, return_dict=True)) == ["loss", "accuracy"]
        assert model.test_on_batch(X, Y)[0] < before[0]

    def test_predictions_are_the_modules(self, model):
        expected = np.asarray(model.module(X))
        np.testing.assert_allclose(model.predict(X, verbose=0), expected, atol=1e-5)
        np.testing.assert_allclose(model.predict(X, batch_size=5, verbose=0), expected, atol=1e-5)
        np.testing.assert_allclose(model.predict_on_batch(X[:3]), expected[:3], atol=1e-5)


class TestInputs:
    def test_the_same_numbers_in_another_array_are_the_same_data(self, model):
        expected = model.evaluate(X, Y, verbose=0)
        placed = jax.device_put(X, model.distribution.get_data_layout(X.shape).backend_layout)
        swapped, arrays = X.astype(">f4"), (X.astype("f8"), X[::-1][::-1], np.asfortranarray(X))
        for x in (placed, swapped, *arrays):
            assert model.evaluate(x, Y.astype("i8"), verbose=0) == pytest.approx(expected, abs=1e-6)
        model.fit(placed, Y, verbose=0)
        assert np.asarray(placed).tobytes() == X.tobytes()
        np.testing.assert_array_equal(model(swapped), model(X))
        assert kd.layers.Flatten()(swapped).shape == X.shape and kd.losses.MeanSquaredError()(swapped, X) == 0

    def test_numbers_of_every_kind_train(self):
        class Widening(Plain):
            def __call__(self, x):
                seen.append(x.dtype)
                return super().__call__(x.astype(jnp.float32))

        seen = []
        model = built(Widening)
        for dtype in (bool, "i4", "u1", "f8", ml_dtypes.bfloat16):
            seen.clear()
            model.compile("sgd", LOSS)
            assert np.isfinite(model.train_on_batch((X > 0).astype(dtype), Y))
            assert seen[0] == (np.dtype("f4") if dtype == "f8" else np.dtype(dtype))

    def test_several_inputs_and_targets(self):
        class Sum(Plain):
            def __call__(self, inputs):
                return super().__call__(inputs["a"] + inputs["b"][0])

        def loss(y_true, y_pred):
            return LOSS(y_true[1], y_pred) + y_true[0]["bonus"]

        model = built(Sum, loss=loss)
        x = {"a": X, "b": [X]}
        expected = float(by_hand.cross_entropy(Y, model.predict(x, verbose=0)).mean()) + 1
        assert model.evaluate(x, ({"bonus": np.ones(32, "f4")}, Y), verbose=0) == pytest.approx(expected, abs=1e-6)

    def test_sample_weights_count_in_training_and_validation(self, model):
        weight = np.random.default_rng(0).uniform(0, 3, 32).astype("f4")
        values = np.asarray(by_hand.cross_entropy(Y, model.predict(X, verbose=0)))
        found = model.evaluate(X, Y, sample_weight=weight, verbose=0)
        assert found[0] == pytest.approx((weight * values).mean(), abs=1e-6)
        history = model.fit(X, Y, sample_weight=0 * weight, validation_data=(X, Y, weight), verbose=0).history
        assert history["loss"] == [0.0]
        assert history["val_loss"][0] == pytest.approx(found[0], abs=1e-6), "weights of zero train nothing"


class TestLosses:
    def test_objects_names_and_callables_with_values_for_each_example_or_one(self):
        model = kd.Model.from_nnx(Plain, seed=0)
        scores = model.predict(X, verbose=0)
        probabilities = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        entropy = float(-np.log(probabilities[np.arange(32), Y]).mean())
        for loss, expected in (
            (LOSS, entropy),
            (by_hand.cross_entropy, entropy),
            (lambda y, z: by_hand.cross_entropy(y, z).mean(), entropy),
            (lambda y, z: kd.losses.sparse_categorical_crossentropy(y, nnx.softmax(z)), entropy),
            ("mse", float(((scores - Y[:, None]) ** 2).mean())),
        ):
            model.compile("sgd", loss, metrics=[loss] if loss == "mse" else None)
            y = Y[:, None].repeat(4, 1).astype("f4") if loss == "mse" else Y
            found = model.test_on_batch(X, y)
            assert found == pytest.approx([expected] * 2 if loss == "mse" else expected, abs=1e-5)
            assert loss == "mse" or type(found) is float

    @pytest.mark.filterwarnings("ignore:the loss is nan")
    def test_one_that_needs_no_targets_and_one_of_nan_train_on(self):
        model = built(loss=lambda y_true, y_pred: (y_pred**2).mean(-1))
        history = model.fit(X, epochs=3, verbose=0).history["loss"]
        assert history[-1] < history[0]
        assert type(model.train_on_batch(X)) is float
        x = X.copy()
        x[3] = np.nan
        history = model.fit(x, epochs=2, verbose=0).history["loss"]
        assert len(history) == 2 and np.isnan(history).all()


def test_evaluation_between_epochs_does_not_disturb_training():
    plain, validated = built(Noisy), built(Noisy)
    expected = plain.fit(X, Y, epochs=2, batch_size=16, verbose=0).history["loss"]
    found = validated.fit(X, Y, epochs=2, batch_size=16, verbose=0, validation_data=(X, Y)).history["loss"]
    assert found == expected


def test_evaluation_and_prediction_can_be_ended_too(model):
    class Stop(kd.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 1

        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch == 2

    whole = model.predict(X, batch_size=8, verbose=0)
    assert np.array_equal(model.predict(X, batch_size=8, verbose=0, callbacks=Stop()), whole[:24])
    assert np.array_equal(model.predict(X, batch_size=8, verbose=0), whole), "the next run starts afresh"
    found = model.evaluate(X, Y, batch_size=8, verbose=0, callbacks=Stop())
    assert found == model.evaluate(X[:16], Y[:16], batch_size=8, verbose=0)
    history = model.fit(X, Y, epochs=2, verbose=0, validation_data=(X, Y), validation_batch_size=8, callbacks=Stop())
    assert history.epoch == [0, 1], "the end of a validation is none of the training"


def test_two_models_train_in_two_threads_at_once_and_fit_goes_on_where_it_was():
    def train(model, times, **options):
        for _ in range(times):
            model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, **options)

    once, twice = built(optimizer="adam"), built(optimizer="adam")
    threads = [
        threading.Thread(target=train, args=(once, 1), kwargs={"epochs": 2}),
        threading.Thread(target=train, args=(twice, 2)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(once.state.step) == int(twice.state.step) == 8
    for a, b in zip(once.variables, twice.variables, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
        assert np.isfinite(a.numpy()).all()
