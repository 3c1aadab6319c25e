"""`model.plan`: bytes that equal those of the live arrays, and reports as text and JSON."""

import json

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from tests import layouts

X, Y = np.zeros((8, 16), np.float32), np.zeros(8, int)


def compiled(distribution):
    with distribution.scope():
        model = kd.Sequential(
            [kd.Input((16,)), layers.Dense(32, name="d1"), layers.BatchNormalization(), layers.Dense(8, name="d2")]
        )
    model.compile("adam", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_it_prints_and_is_json():
    report = compiled(layouts.on("data=2,model=4")).plan(X, Y)
    text = str(report)
    for words in ("d1/kernel", "exact", "propagated", "all_reduce", "FLOPs of a step"):
        assert words in text
    assert "optimizer/" not in text
    found = json.loads(report.to_json())
    assert found["exact"]["nbytes_by_role"] == report.nbytes_by_role
    assert sum(each["nbytes"] * each["turns"] for each in found["propagated"]["collectives"]) == sum(
        report.step.nbytes_by_axes().values()
    )


def test_it_leaves_the_model_as_it_is():
    model, other = (compiled(layouts.on("data=2,model=4")) for _ in range(2))
    weights = [variable.numpy() for variable in other.weights]
    for variable, value in zip(model.weights, weights, strict=True):
        variable.assign(value)
    model.plan(X, Y)
    assert [type(layer) for layer in model.layers] == [type(layer) for layer in other.layers]
    assert model.train_on_batch(X, Y) == other.train_on_batch(X, Y)
    assert '"module ' not in model.lower_train_step(X, Y).as_text(debug_info=True)


def test_a_model_must_be_compiled():
    with pytest.raises(kd.errors.ModelError, match="compile"):
        kd.Sequential([kd.Input((16,)), layers.Dense(2)]).plan(X)
