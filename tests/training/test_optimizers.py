"""Optimizers of Keras in training: sharded slots, averages at the end, scaled losses."""

import copy
from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import optimizers
from keras_dist.errors import ModelError
from tests import by_hand, layouts
from tests.networks import blobs
from tests.soak import LARGE, repeated

X, Y = blobs(96)
EVERYTHING: Any = {
    "weight_decay": 0.1,
    "global_clipnorm": 1.0,
    "use_ema": True,
    "ema_overwrite_frequency": 2,
    "gradient_accumulation_steps": 2,
}
SLOTS: dict[str, Any] = {
    "Adadelta": optimizers.Adadelta(1.0, **EVERYTHING),
    "Adagrad": optimizers.Adagrad(0.05, **EVERYTHING),
    "Adam": optimizers.Adam(0.05, amsgrad=True, **EVERYTHING),
    "AdamW": optimizers.AdamW(0.05, **EVERYTHING),
    "Adamax": optimizers.Adamax(0.05, **EVERYTHING),
    "Ftrl": optimizers.Ftrl(0.05, **EVERYTHING),
    "Lamb": optimizers.Lamb(0.05, **EVERYTHING),
    "Lion": optimizers.Lion(0.05, **EVERYTHING),
    "Muon": optimizers.Muon(0.05, **EVERYTHING),
    "Nadam": optimizers.Nadam(0.05, **EVERYTHING),
    "RMSprop": optimizers.RMSprop(0.05, momentum=0.5, centered=True, **EVERYTHING),
    "SGD": optimizers.SGD(0.05, momentum=0.9, **EVERYTHING),
    "Adafactor": optimizers.Adafactor(0.05, **EVERYTHING),
}


def built(optimizer: Any, name: str = "data=2,model=4") -> kd.Model:
    model = layouts.plain_on(name, seed=4)
    model.compile(copy.deepcopy(optimizer), loss=by_hand.cross_entropy)  # each trains one model
    return model


def values(model: kd.Model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in model.trainable_variables}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for path in found:
        np.testing.assert_allclose(found[path], expected[path], atol=atol, err_msg=path)


@pytest.mark.parametrize("name", SLOTS)
def test_every_slot_lies_as_its_parameter(name: str) -> None:
    model = built(SLOTS[name])
    axes = {row.path: row.axes for row in model.layout_plan.rows}
    shapes = {row.path: row.shape for row in model.layout_plan.rows}
    found = 0
    for row in model.state_plan.rows:
        if row.role != "slot" or not row.shape:
            continue
        owner = next(path for path in axes if row.path.endswith(path))
        if row.shape == shapes[owner]:
            assert row.axes == axes[owner], row.path
            found += row.path.endswith("d1/kernel")
        else:
            assert name == "Adafactor", row.path
            kept = zip(row.shape, shapes[owner], axes[owner], strict=True)
            assert row.axes == tuple(axis if size == whole else None for size, whole, axis in kept), row.path
            assert row.shape[0] == 1 or row.shape[-1] == 1, row.path
    assert found == {"Adafactor": 2, "Adam": 5, "RMSprop": 5, "Muon": 3, "SGD": 3, "Adagrad": 3, "Lion": 3}.get(name, 4)


@pytest.mark.first_cases(1)
@repeated
@pytest.mark.parametrize("name", ["Adafactor", "Muon", *["Adam", "Lamb"] * LARGE])
def test_the_same_numbers_on_a_mesh(name: str) -> None:
    one, many = (built(SLOTS[name], layout) for layout in ("one device", "data=2,model=4"))
    for model in (one, many):
        model.fit(X, Y, batch_size=24, shuffle=False, verbose=0)
    assert_equal(values(many), values(one), atol=2e-4)
    state, plan = many._built.cell.state, many.state_plan
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(plan.shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


class Weights(kd.callbacks.Callback):
    """The weights after each step, and when training has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.after_steps: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.after_steps.append(values(self.model))

    def on_train_end(self, logs: Any = None) -> None:
        self.at_end = values(self.model)


def test_fit_ends_with_the_average_and_goes_on_from_there() -> None:
    model = built(optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
    weights, before = Weights(), values(model)
    model.fit(X, Y, epochs=1, initial_epoch=1, verbose=0)
    assert_equal(values(model), before, atol=0)  # no epoch changes nothing
    model.fit(X, Y, batch_size=48, verbose=0, callbacks=[weights])
    first, second = weights.after_steps
    expected = {path: 0.5 * first[path] + 0.5 * second[path] for path in first}
    assert_equal(values(model), expected)
    assert_equal(weights.at_end, expected)
    assert np.abs(second["d1/kernel"] - expected["d1/kernel"]).max() > 1e-5
    model.fit(X, Y, batch_size=48, verbose=0)
    model.train_on_batch(X[:48], Y[:48])
    assert all(np.isfinite(value).all() for value in values(model).values())


def test_only_the_optimizer_with_an_average_ends_with_it() -> None:
    model = built({"d1": optimizers.SGD(0.1, use_ema=True), "d2": optimizers.SGD(0.1)}, "one device")
    weights = Weights()
    model.fit(X, Y, batch_size=48, verbose=0, callbacks=[weights])
    last = weights.after_steps[-1]
    changed = {path for path, value in values(model).items() if not np.array_equal(value, last[path])}
    assert changed == {"d1/kernel", "d1/bias"}
    model.fit(X, Y, batch_size=48, verbose=0)


def test_a_scaled_loss_is_reported_and_trained_as_it_is() -> None:
    found = []
    for factor in (None, 1024.0):
        model = built(optimizers.SGD(0.1, loss_scale_factor=factor), "one device")
        found.append((model.train_on_batch(X, Y), values(model)))
    assert found[0][0] == pytest.approx(found[1][0])
    assert_equal(found[1][1], found[0][1])


def test_different_scales_of_one_loss_are_refused() -> None:
    pair = {"d1": optimizers.SGD(0.1, loss_scale_factor=2.0), "d2": optimizers.SGD(0.1)}
    with pytest.raises(ModelError, match="scale one loss by different factors") as caught:
        built(pair)
    assert "d1: loss_scale_factor=2.0" in caught.value.given
