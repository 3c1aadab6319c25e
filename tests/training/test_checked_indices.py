"""Integers that layers and losses look up: out of range they are an error, eagerly and with `compile(check=True)`."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, losses, metrics
from keras_dist.errors import DataError

IDS, Y = np.arange(32).reshape(8, 4) % 10, np.arange(8) % 5
ABOVE, BELOW = IDS.copy(), IDS.copy()
ABOVE[5, 2], BELOW[5, 2] = 12, -1
NO_CLASS = np.where(Y == 3, 5, Y)
OF_LAYER = r"layer 'tokens': index out of range for `embeddings`\n  given:    {}\n  expected: integers from 0 to 9\n"
OF_LOSS = r"sparse_categorical_crossentropy: class index in `y_true` out of range.*\n  given:    5(.0)?\n.* 0 to 4\n"


@functools.cache
def compiled(devices: int, **options: Any) -> Any:
    with kd.DataParallel(devices=kd.distribution.list_devices()[:devices]).scope():
        layers_of_it = [layers.Embedding(10, 3, name="tokens"), layers.Flatten(), layers.Dense(5)]
        model = kd.Sequential([kd.Input((4,), dtype="int32"), *layers_of_it])
        model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("devices", "options"),
    [(1, {"run_eagerly": True}), (8, {"check": True}), (1, {"check": True, "steps_per_execution": 1, "remat": "full"})],
)
def test_steps(devices: int, options: dict[str, Any]) -> None:
    rows = 6 if devices == 8 else 8  # of the 8 that each batch is padded to
    model = compiled(devices, **options)
    before = model.get_weights()
    for x, y, message in ((ABOVE, Y, OF_LAYER.format(12)), (BELOW, Y, OF_LAYER.format(-1)), (IDS, NO_CLASS, OF_LOSS)):
        with pytest.raises(DataError, match=message):
            model.fit(x[:rows], y[:rows], batch_size=8, verbose=0)
        with pytest.raises(DataError, match=message):
            model.evaluate(x[:rows], y[:rows], batch_size=8, verbose=0)
    with pytest.raises(DataError, match=OF_LAYER.format(12)):
        model.predict(ABOVE[:rows], batch_size=8, verbose=0)
    for old, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)
    assert np.isfinite(model.fit(IDS[:rows], Y[:rows], batch_size=8, verbose=0).history["loss"][0])
    assert model.get_compile_config().get("check", False) == options.get("check", False)


def test_checks_change_no_number() -> None:
    found, weights = [], compiled(8).get_weights()
    for options in ({}, {"check": True}):
        model = compiled(8, **options)
        model.set_weights(weights)
        found.append(model.fit(IDS[:6], Y[:6], batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
    assert found[0] == found[1]


def test_calls_of_models() -> None:
    model = compiled(8)
    with pytest.raises(DataError, match=OF_LAYER.format(12)):
        model(ABOVE)
    assert np.isnan(model.predict(ABOVE, verbose=0)[5]).all()  # compiled, and not asked to check


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.Embedding(10, 3, name="{tokens}")(ABOVE), r"layer '\{tokens\}'.*\n.*12\n.* 0 to 9"),
        (lambda: layers.ReversibleEmbedding(10, 3)(BELOW), r"layer 'reversible_embedding'.*\n.*-1\n.* 0 to 9"),
        (lambda: losses.SparseCategoricalCrossentropy()(NO_CLASS, np.ones((8, 5))), OF_LOSS),
        (lambda: losses.sparse_categorical_crossentropy(NO_CLASS, np.ones((8, 5))), OF_LOSS),
        (lambda: losses.SparseCategoricalCrossentropy()([np.nan], np.ones((1, 5))), "nan\n"),
        (lambda: losses.CategoricalGeneralizedCrossEntropy()(NO_CLASS, np.ones((8, 5))), r"5.0\n.* 0 to 4"),
        (lambda: losses.CTC()([[9]], np.ones((1, 3, 5))), r"ctc: .*\n.*9.0\n.* 0 to 4"),
        (lambda: metrics.SparseCategoricalCrossentropy()(NO_CLASS, np.ones((8, 5))), OF_LOSS),
        (lambda: kd.utils.to_categorical(jnp.array([3]), 2), r"to_categorical: .*\n.*3\n.* 0 to 1"),
    ],
)
def test_eager_calls(call: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


def test_what_does_not_count_may_be_anything() -> None:
    scores, counts = np.ones((8, 5)), NO_CLASS < 5
    expected = np.log(5)
    assert np.isclose(losses.SparseCategoricalCrossentropy()(NO_CLASS, scores, mask=counts), expected)
    assert np.isclose(losses.SparseCategoricalCrossentropy(ignore_class=5)(NO_CLASS, scores), expected)
    assert np.isclose(metrics.SparseCategoricalCrossentropy()(NO_CLASS, scores, counts), expected)
    assert metrics.SparseTopKCategoricalAccuracy(k=1)([-1], np.array([[0.0, 1.0]])) == 0
