"""Random numbers outside of training, of models that are called with `rngs`: each batch and each run has its own."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.callbacks import BackupAndRestore, LambdaCallback
from keras_dist.errors import ModelError
from tests import layouts
from tests.sources import Batches

X = np.zeros((21, 2), np.float32)
"""In batches of 8 two full ones and one of 5, which no mesh divides."""


class Scaled(nnx.Module):
    def __init__(self, rngs):
        self.scale = nnx.Param(np.ones((), np.float32))

    def __call__(self, x):
        return self.scale * x


def noisy(module, x, training, rngs):
    return module(x) + jax.random.normal(rngs(), x.shape)


def made(where="one device", call: Any = noisy, **options: Any) -> kd.Model:
    model = layouts.model_on(where, Scaled, rules={}, seed=3, call=call)
    model.compile("sgd", loss=lambda y_true, y_pred: y_pred, **options)
    return model


@pytest.fixture(scope="module")
def model() -> kd.Model:
    return made()


def predicted(model: kd.Model, **options: Any) -> np.ndarray:
    return model.predict(X, 8, verbose=0, **options)


def evaluated(model: kd.Model, data: Any = (X, X), **options: Any) -> float:
    arrays = data if isinstance(data, tuple) else (data,)
    return model.evaluate(*arrays, **{"batch_size": 8 if len(arrays) == 2 else None, "verbose": 0} | options)


@pytest.mark.parametrize(
    "options",
    [{}, {"seed": 7}, {"call": noisy}, {"call": noisy, "seed": 7}],
    ids=lambda options: "+".join(options) or "none",
)
def test_no_two_batches_have_the_same_numbers(model, options):
    assert len(np.unique(predicted(model, **options))) == X.size


def test_a_seed_fixes_them_and_without_one_two_calls_differ(model):
    runs = [predicted(model, seed=7), predicted(model, seed=7), predicted(model, seed=8)]
    runs += [predicted(model), predicted(model), model.predict_on_batch(X), model.predict_on_batch(X), model(X)]
    runs += [np.asarray(model(X)), np.asarray(model(X, training=True))]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len(np.unique(np.concatenate(runs[1:]))) == (len(runs) - 1) * X.size
    losses = [evaluated(model), evaluated(model), model.test_on_batch(X, X), model.test_on_batch(X, X)]
    assert len({*losses}) == 4 and evaluated(model, seed=7) == evaluated(model, seed=7) != evaluated(model, seed=8)


def test_without_a_seed_they_follow_from_that_of_the_model():
    one, other = made(), made()
    np.testing.assert_array_equal(predicted(one), predicted(other))
    assert evaluated(one) == evaluated(other)


def test_training_steps_have_others(model):
    seen = []

    def look(module, x, training, rngs):
        numbers = jax.random.normal(rngs(), x.shape)
        jax.debug.callback(lambda numbers: seen.extend(np.unique(numbers)), numbers)
        return module(x) + numbers

    watched = made(call=look)
    watched.fit(X, X, batch_size=8, epochs=2, verbose=0, validation_data=(X, X))
    evaluated(watched)
    predicted(watched)
    jax.effects_barrier()
    assert len(seen) == len({*seen}) == 6 * X.size


@pytest.fixture(scope="module")
def validations() -> list[float]:
    """Of three epochs on one device, step by step."""
    return fitted(made(steps_per_execution=1), (X, X))


def fitted(model: kd.Model, data: Any, **options: Any) -> list[float]:
    options = {"batch_size": 8, "epochs": 3, "verbose": 0} | options
    return model.fit(X, X, validation_data=data, **options).history["val_loss"]


BATCHES = Batches((X, X), 8)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("where", "options", "data"),
    [("data=4,model=2", {"steps_per_execution": 2}, (X, X)), ("fully data=8", {}, BATCHES), ("one device", {}, (X, X))],
    ids=["data=4 two at once", "fully batches", "one device"],
)
def test_they_are_equal_on_every_mesh_and_however_many_steps_are_an_execution(model, validations, where, options, data):
    other, expected = made(where, **options), predicted(model, seed=7)
    np.testing.assert_allclose(predicted(other, seed=7), expected, atol=1e-6)
    assert evaluated(other, data, seed=7) == pytest.approx(expected.mean(), abs=1e-6)
    np.testing.assert_allclose(fitted(other, data), validations, atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_test_batch_end"])
def test_each_validation_has_its_own_also_where_training_is_resumed(tmp_path, validations, hook):
    count = 0

    def fail(batch, logs):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyError("stopped")

    assert len({*validations}) == 3
    backup = BackupAndRestore(tmp_path, save_freq=1, delete_checkpoint=False)
    with pytest.raises(KeyError):
        fitted(made(steps_per_execution=1), (X, X), callbacks=[backup, LambdaCallback(**{hook: fail})])
    found = fitted(made(steps_per_execution=1), (X, X), callbacks=[backup])
    assert found == validations, "with those before, which the history keeps"


def layered() -> kd.Model:
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dropout(0.5)])
    model.compile("sgd", loss="mse")
    return model


@pytest.mark.parametrize(
    "use",
    [
        lambda: layered().evaluate(X, X, seed=1),
        lambda: layered().predict(X, seed=1),
        lambda: made(call=None).predict(X, seed=1),
    ],
)
def test_a_seed_without_effect_is_refused(use):
    with pytest.raises(ModelError, match=r"(?s)`seed` has no effect.*seed_generator\.state\.assign"):
        use()


def test_what_is_no_seed(model):
    for seed in (-1, 1.5, "a", True):
        for use in (predicted, evaluated):
            with pytest.raises(ModelError, match="seed"):
                use(model, seed=seed)
    assert predicted(layered(), call=noisy, seed=1).shape == X.shape
