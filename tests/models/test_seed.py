"""One seed owns initial values and Dropout; that of fit shuffles only."""

from typing import Any

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist._support import ambient
from tests.networks import LOSS, Noisy, Plain, blobs


@pytest.fixture(autouse=True)
def forget_seed(monkeypatch):
    monkeypatch.setattr(ambient.process, "seeds", type(ambient.process.seeds)())


def initial(**options):
    return {v.path: v.numpy().tobytes() for v in kd.Model.from_nnx(Noisy, **options).variables}


def test_set_random_seed_fixes_models_built_later_unless_they_have_a_seed():
    assert initial() != initial()
    kd.utils.set_random_seed(5)
    models = [initial(), initial(), initial(seed=5)]
    assert models[0] == models[2] != models[1]
    assert initial(seed=1) not in models
    kd.utils.set_random_seed(5)
    assert [initial(), initial()] == models[:2]
    assert kd.utils.set_random_seed is kd.set_random_seed


def test_plans_take_no_seeds():
    def factory():
        model = kd.Model.from_nnx(Noisy)
        model.compile("sgd", loss=LOSS)
        return model

    kd.set_random_seed(5)
    x, y = blobs(8)
    kd.plan(factory, (x, y), compiles=False)
    assert initial() == initial(seed=5)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "7", True, None])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(kd.errors.ModelError, match="seed") as caught:
        kd.set_random_seed(seed)
    assert repr(seed) in caught.value.given


def compiled(factory: Any, seed: int):
    model = kd.Model.from_nnx(factory, seed=seed)
    model.compile("sgd", loss=LOSS)
    return model


def losses(model, **options):
    return model.fit(*blobs(24), batch_size=8, epochs=2, verbose=0, **options).history["loss"]


def test_fits_seed_fixes_the_order_of_rows_and_changes_no_dropout():
    model = compiled(Noisy, 1)
    module = nnx.clone(model.module)

    def again(**options):
        model.module = module
        return losses(model, **options)

    assert again(seed=10, shuffle=False) == again(seed=11, shuffle=False)
    assert again(seed=10) == again(seed=10) != again(seed=11)


def test_the_order_follows_from_the_models_seed_and_changes_from_epoch_to_epoch_and_fit_to_fit():
    orders = []

    def recording_model():
        model = kd.Model.from_nnx(Plain, seed=1)
        model.compile("sgd", loss=lambda y_true, y_pred: y_pred.mean(-1) * 0 + y_true)
        return model

    class Order(kd.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs: Any = None):
            orders.append([])

        def on_train_batch_end(self, batch, logs: Any = None):
            orders[-1].append(round(logs["loss"] * (batch + 1)))

    x, y = blobs(12)[0], 2.0 ** np.arange(12)
    for model in (recording_model(), recording_model()):
        for _ in range(2):
            model.fit(x, y.astype("f4"), batch_size=1, epochs=2, verbose=0, callbacks=[Order()])
    assert len({tuple(order) for order in orders[:4]}) == 4
    assert orders[:4] == orders[4:]
    assert all(order[-1] == 2**12 - 1 for order in orders), "every row once"
