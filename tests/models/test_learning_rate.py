"""The learning rate of named optimizers is read and set without compiling a step again."""

from typing import Any

import numpy as np
import optax
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from tests import layouts
from tests.networks import LOSS, Noisy, blobs

X, Y = blobs(32)


def built(optimizer: Any = "sgd"):
    model = layouts.plain_on("data=2,model=4")
    model.compile(optimizer, loss=LOSS)
    return model


def test_setting_it_counts_from_the_next_step():
    model = built("sgd")
    before = [variable.numpy() for variable in model.variables]
    changes = []
    for value in (0.0, 1, np.float32(0.25), np.float64(0.125)):
        for variable, initial in zip(model.variables, before, strict=True):
            variable.assign(initial)
        model.optimizer.learning_rate = value
        assert model.optimizer.learning_rate == float(value)
        model.train_on_batch(X, Y)
        changes.append([v.numpy() - old for v, old in zip(model.variables, before, strict=True)])
    for none, whole, quarter, eighth in zip(*changes, strict=True):
        assert not none.any() and whole.any()
        np.testing.assert_allclose(quarter, whole / 4, atol=1e-7)
        np.testing.assert_allclose(eighth, whole / 8, atol=1e-7)


class SetRate(kd.callbacks.Callback):
    """Another rate for every step, from within fit."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (batch + 1)


def test_a_step_is_compiled_once_for_each_length_of_batch(compiled_names):
    model = layouts.model_on("data=2,model=4", Noisy)
    model.compile("adam", loss=LOSS)
    x, y = blobs(50)
    model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[SetRate()])
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[SetRate()])
    model.optimizer.learning_rate = 0.3
    model.train_on_batch(x[:16], y[:16])
    assert compiled_names.count("jit(train)") == 2, "16 rows, and the last 2"


def test_a_rate_set_while_fit_runs_counts():
    model = built("sgd")
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[SetRate()])
    found = model.get_weights()
    model = built("sgd")
    for batch in range(4):
        model.optimizer.learning_rate = 0.1 / (batch + 1)
        model.train_on_batch(X[8 * batch : 8 * batch + 8], Y[8 * batch : 8 * batch + 8])
    for a, b in zip(found, model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


@pytest.mark.parametrize("optimizer", [optax.adam(1e-3), optax.sgd(optax.cosine_decay_schedule(0.1, 5))])
def test_one_that_is_not_in_state_is_refused_with_the_remedy(optimizer):
    handle = built(optimizer).optimizer
    with pytest.raises(kd.errors.ModelError, match="does not keep its learning rate in state") as caught:
        handle.learning_rate = 0.1
    assert "with_learning_rate" in caught.value.fix
    with pytest.raises(kd.errors.ModelError):
        _ = handle.learning_rate


def test_each_of_several_optimizers_has_its_own():
    model = built({"d1": "adam", "d2": kd.optimizers.get("sgd", 0.5)})
    model.optimizers["d1"].learning_rate = 0.25
    assert {name: handle.learning_rate for name, handle in model.optimizers.items()} == {"d1": 0.25, "d2": 0.5}
    with pytest.raises(kd.errors.ModelError, match="several optimizers") as caught:
        _ = model.optimizer
    assert "model.optimizers['d1']" in caught.value.fix


def test_a_rate_that_is_no_number_is_refused_by_name():
    model = built("adam")
    for value in (None, "a", np.ones(3), optax.constant_schedule(0.1), np.nan):
        with pytest.raises(ModelError, match="`learning_rate` must be a finite number") as caught:
            model.optimizer.learning_rate = value
        assert caught.value.given and "compile" in caught.value.fix
        assert model.optimizer.learning_rate == pytest.approx(1e-3)


def test_a_schedule_is_read_and_not_set():
    model = built(kd.optimizers.SGD(kd.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)))
    found = [model.optimizer.learning_rate]
    for _ in range(2):
        model.train_on_batch(X, Y)
        found.append(model.optimizer.learning_rate)
    assert found == pytest.approx([0.5, 0.25, 0.125])
    with pytest.raises(kd.errors.ModelError, match="follows a schedule") as caught:
        model.optimizer.learning_rate = 0.1
    assert caught.value.given and caught.value.fix
    assert model.optimizer.learning_rate == pytest.approx(0.125)
