"""Batches that the mesh does not divide are exact: the numbers of one device, the rows in order, all of them."""

import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import optax
import pytest
from flax import nnx

from tests import by_hand, layouts
from tests.networks import FEATURES, LOSS, ForeignNorm, Plain, blobs
from tests.soak import LARGE, crossed, repeated

WEIGHT = np.random.default_rng(3).uniform(0, 2, 100).astype("f4")
X, Y = blobs(100)
MESHES = ["data=8,model=1", "data=4,model=2", "fully data=8"]


class Normalised(ForeignNorm):
    """Beside the foreign normalisation that of Flax, and Dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.norm = nnx.BatchNorm(FEATURES, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return super().__call__(self.drop(self.norm(x)))


def built(factory, name, loss=LOSS):
    model = layouts.model_on(name, factory, seed=2)
    model.compile("sgd", loss=loss, metrics=["accuracy"])
    model.optimizer.learning_rate = 0.1
    return model


@functools.cache
def run(name):
    """100 rows in batches of 32, with weights: the tail of 4 is smaller than the mesh."""
    model, options = built(Normalised, name), {"batch_size": 32, "sample_weight": WEIGHT, "verbose": 0}
    validated = X[:36], Y[:36], WEIGHT[:36]
    history = model.fit(X, Y, epochs=2, shuffle=False, validation_data=validated, **options).history
    scores = model.evaluate(X, Y, return_dict=True, **options)
    return history, scores, model.predict(X, batch_size=32, verbose=0)


@pytest.mark.slow
@repeated
@pytest.mark.parametrize("name", MESHES if LARGE else ["fully data=8"])
def test_100_rows_in_batches_of_32_give_the_numbers_of_one_device(name):
    expected_history, expected_scores, expected_rows = run("one device")
    history, scores, rows = run(name)
    for key, values in expected_history.items():
        np.testing.assert_allclose(history[key], values, atol=3e-6, rtol=0, err_msg=key)
    assert scores == pytest.approx(expected_scores, abs=3e-6)
    assert rows.shape == (100, 4)
    np.testing.assert_allclose(rows, expected_rows, atol=1e-5, rtol=0)


def test_one_device_gives_the_numbers_of_a_loop_by_hand():
    module = Normalised(nnx.Rngs(2))
    by_hand.train(module, optax.sgd(0.1), by_hand.batches_in_order(32, X, Y, WEIGHT) * 2)
    np.testing.assert_allclose(run("one device")[2][:32], by_hand.predict(module, X[:32]), atol=1e-5)


def test_every_row_counts_once_and_no_step_sees_another():
    seen = []

    class Watching(Plain):
        def __call__(self, x):
            seen.append(x.shape[0])
            return super().__call__(x)

    def loss(y_true, y_pred):
        seen.append(y_true.shape[0])
        return LOSS(y_true, y_pred)

    model = built(Watching, "data=8,model=1", loss)
    model.optimizer.learning_rate = 0.0
    options = {"batch_size": 32, "verbose": 0}
    rows = model.predict(X[:37], **options)
    exponentials = np.exp(rows)
    expected = -np.mean(np.log((exponentials / exponentials.sum(1, keepdims=True))[range(37), Y[:37]]))
    assert model.fit(X[:37], Y[:37], **options).history["loss"] == pytest.approx([expected], abs=1e-6)
    assert model.evaluate(X[:37], Y[:37], **options)[0] == pytest.approx(expected, abs=1e-6)
    # a batch size larger than the data makes one short batch
    assert len(model.fit(X[:5], Y[:5], batch_size=1000, verbose=0).history["loss"]) == 1
    np.testing.assert_allclose(model.predict(X[:5], batch_size=1000, verbose=0), rows[:5], atol=1e-6)
    assert set(seen) == {32, 5}


@functools.cache
def start(name):
    model = built(ForeignNorm, name)
    return model, model.module


@pytest.mark.filterwarnings("ignore::keras_dist.errors.RecompileWarning")
@pytest.mark.soak
@hypothesis.settings(max_examples=8 if LARGE else 2)
@hypothesis.given(rows=st.integers(1, 20), name=st.sampled_from(["data=8,model=1", "data=4,model=2"]))
def test_any_number_of_rows_is_exact(rows, name):
    model, initial = start(name)
    model.module = initial
    x, y = blobs(rows, seed=rows)
    module = ForeignNorm(nnx.Rngs(2))
    predicted = model.predict(x, verbose=0)
    assert predicted.shape == (rows, 4)
    np.testing.assert_allclose(predicted, by_hand.predict(module, x), atol=2e-5)
    (expected,) = by_hand.train(module, optax.sgd(0.1), [(x, y)])
    assert model.train_on_batch(x, y)[0] == pytest.approx(expected, abs=2e-6)
    np.testing.assert_allclose(model.module.mean[...], module.mean[...], atol=1e-6)
    np.testing.assert_allclose(model.module.d1.kernel[...], module.d1.kernel[...], atol=5e-6)


class Embedded(nnx.Module):
    """Its gradient is a scatter."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(20, 8, rngs=rngs)
        self.d2 = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, ids):
        return self.d2(self.embed(ids).mean(axis=1))


@functools.cache
def trained_embedding(name, axes):
    model = layouts.model_on(name, Embedded, {"embed/embedding": axes} if axes else {})
    model.compile("sgd", loss=LOSS)
    model.optimizer.learning_rate = 0.5
    rng = np.random.default_rng(0)
    model.fit(rng.integers(0, 20, (11, 6)), rng.integers(0, 4, 11), batch_size=8, shuffle=False, verbose=0)
    return next(v.numpy() for v in model.variables if v.path == "embed/embedding")


SPLIT = {"": (), "rows": ("model", None), "columns": (None, "model")}
REPEATING = [("", "data=4,model=2"), ("rows", "data=2,model=4"), ("columns", "data=4,model=2")]
"""Meshes whose model axis repeats the batch."""


@pytest.mark.first_cases(1)
@repeated
@pytest.mark.parametrize(
    ("split", "name"), crossed(SPLIT, ["data=4,model=2", "data=2,model=4", "data=8,model=1"]) if LARGE else REPEATING
)
def test_the_gradient_of_an_embedding_counts_no_padding(split, name):
    np.testing.assert_allclose(trained_embedding(name, SPLIT[split]), trained_embedding("one device", ()), atol=1e-6)
