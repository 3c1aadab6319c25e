"""Batches that the mesh does not divide are exact: the numbers of one device, the rows in order, all of them."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import keras_dist as kd
from tests import by_hand, layouts
from tests.networks import ForeignNorm, Noisy, Plain, blobs

LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
MESHES = ["data=8,model=1", "data=4,model=2", "fully data=8"]


def built(factory, name):
    with layouts.on(name).scope():
        model = kd.Model.from_nnx(factory, seed=2)
    model.compile("sgd", loss=LOSS, metrics=["accuracy"])
    model.optimizer.learning_rate = 0.1
    return model


@functools.cache
def run(factory, name):
    """100 rows in batches of 32, with weights: the tail of 4 is smaller than the mesh."""
    model = built(factory, name)
    x, y = blobs(100)
    weight = np.random.default_rng(3).uniform(0, 2, 100).astype("f4")
    history = model.fit(
        x, y, batch_size=32, epochs=2, sample_weight=weight, validation_data=(x[:30], y[:30], weight[:30]), verbose=0
    ).history
    scores = model.evaluate(x, y, batch_size=32, sample_weight=weight, verbose=0, return_dict=True)
    return history, scores, model.predict(x, batch_size=32, verbose=0)


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("factory", [Noisy, ForeignNorm])
def test_100_rows_in_batches_of_32_give_the_numbers_of_one_device(factory, name):
    expected_history, expected_scores, expected_rows = run(factory, "one device")
    history, scores, rows = run(factory, name)
    for key, values in expected_history.items():
        np.testing.assert_allclose(history[key], values, atol=3e-6, rtol=0, err_msg=key)
    assert scores == pytest.approx(expected_scores, abs=3e-6)
    assert rows.shape == (100, 4)
    np.testing.assert_allclose(rows, expected_rows, atol=1e-5, rtol=0)


def test_one_device_gives_the_numbers_of_a_loop_by_hand():
    model, module = built(ForeignNorm, "one device"), ForeignNorm(nnx.Rngs(2))
    x, y = blobs(100)
    weight = np.random.default_rng(3).uniform(0, 2, 100).astype("f4")
    model.fit(x, y, batch_size=32, sample_weight=weight, shuffle=False, verbose=0)
    by_hand.train(module, optax.sgd(0.1), by_hand.batches_in_order(32, x, y, weight))
    module.eval()
    np.testing.assert_allclose(model.predict_on_batch(x), module(x), atol=1e-5)


def test_the_loss_of_an_epoch_counts_every_row_once():
    model = built(Plain, "data=8,model=1")
    model.optimizer.learning_rate = 0.0
    x, y = blobs(100)
    expected = float(jnp.mean(by_hand.cross_entropy(y, model.module(x))))
    (loss,) = model.fit(x, y, batch_size=32, verbose=0).history["loss"]
    assert loss == pytest.approx(expected, abs=1e-6)
    assert model.evaluate(x, y, batch_size=32, verbose=0)[0] == pytest.approx(expected, abs=1e-6)


@functools.cache
def start(name):
    model = built(ForeignNorm, name)
    return model, model.module


@pytest.mark.filterwarnings("ignore::keras_dist.errors.RecompileWarning")
@hypothesis.settings(max_examples=8)
@hypothesis.given(rows=st.integers(1, 20), name=st.sampled_from(["data=8,model=1", "data=4,model=2"]))
def test_any_number_of_rows_is_exact(rows, name):
    model, initial = start(name)
    model.module = initial
    x, y = blobs(rows, seed=rows)
    module = ForeignNorm(nnx.Rngs(2))
    module.eval()
    predicted = model.predict(x, verbose=0)
    assert predicted.shape == (rows, 4)
    np.testing.assert_allclose(predicted, module(x), atol=2e-5)
    (expected,) = by_hand.train(module, optax.sgd(0.1), [(x, y)])
    assert model.train_on_batch(x, y)[0] == pytest.approx(expected, abs=2e-6)
    np.testing.assert_allclose(model.module.mean[...], module.mean[...], atol=1e-6)
    np.testing.assert_allclose(model.module.d1.kernel[...], module.d1.kernel[...], atol=5e-6)


def test_no_step_sees_a_row_that_does_not_exist():
    seen = []

    class Watching(Plain):
        def __call__(self, x):
            seen.append(x.shape[0])
            return super().__call__(x)

    def loss(y_true, y_pred):
        seen.append(y_true.shape[0])
        return LOSS(y_true, y_pred)

    with kd.DataParallel().scope():
        model = kd.Model.from_nnx(Watching, seed=0)
    model.compile("sgd", loss=loss)
    model.fit(*blobs(19), batch_size=16, verbose=0)
    model.evaluate(*blobs(19), batch_size=16, verbose=0)
    model.predict(blobs(19)[0], batch_size=16, verbose=0)
    assert set(seen) == {16, 3}


@pytest.mark.parametrize("name", ["one device", "data=8,model=1"])
def test_a_batch_size_larger_than_the_data_is_one_short_batch(name):
    model = built(Plain, name)
    x, y = blobs(5)
    losses = model.fit(x, y, batch_size=1000, verbose=0).history["loss"]
    assert len(losses) == 1
    assert model.predict(x, batch_size=1000, verbose=0).shape == (5, 4)


def test_several_outputs_come_back_in_order():
    class Echo(nnx.Module):
        def __init__(self, rngs):
            self.one = nnx.Param(jnp.ones(()))

        def __call__(self, x):
            return {"row": x, "pair": (x * self.one, x.sum(-1))}

    with kd.DataParallel().scope():
        model = kd.Model.from_nnx(Echo)
    x = np.arange(70, dtype="f4").reshape(35, 2)
    found = model.predict(x, batch_size=16, verbose=0)
    np.testing.assert_array_equal(found["row"], x)
    np.testing.assert_array_equal(found["pair"][1], x.sum(-1))


class Embedded(nnx.Module):
    """Its gradient is a scatter."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(20, 8, rngs=rngs)
        self.d2 = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, ids):
        return self.d2(self.embed(ids).mean(axis=1))


def trained_embedding(name, rules):
    with layouts.on(name, rules).scope():
        model = kd.Model.from_nnx(Embedded, seed=0)
    model.compile("sgd", loss=LOSS)
    model.optimizer.learning_rate = 0.5
    rng = np.random.default_rng(0)
    model.fit(rng.integers(0, 20, (11, 6)), rng.integers(0, 4, 11), batch_size=8, shuffle=False, verbose=0)
    return next(v.numpy() for v in model.variables if v.path == "embed/embedding")


@pytest.mark.parametrize("rules", [{}, {"embed/embedding": ("model", None)}, {"embed/embedding": (None, "model")}])
@pytest.mark.parametrize("name", ["data=4,model=2", "data=2,model=4", "data=8,model=1"])
def test_the_gradient_of_an_embedding_counts_no_padding(name, rules):
    np.testing.assert_allclose(trained_embedding(name, rules), trained_embedding("one device", {}), atol=1e-6)
