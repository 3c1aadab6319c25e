"""Batches of many lengths: after some, programs are shared, and the numbers are those of programs of their own."""

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist.training import compiled
from tests import layouts

LENGTHS = [8, 3, 11, 2, 7, 1, 6]
generator = np.random.default_rng(0)
BATCHES = [
    (
        generator.normal(size=(rows, 4, 3)).astype(np.float32),
        generator.integers(0, 5, (rows, 4)),
        generator.uniform(0.5, 2, rows).astype(np.float32),
    )
    for rows in LENGTHS
]
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)

pytestmark = pytest.mark.filterwarnings("ignore::keras_dist.errors.RecompileWarning")


class AddsLoss(layers.Layer):
    """Adds to the loss what depends on the rows."""

    def call(self, inputs):
        self.add_loss(jnp.mean(inputs**2))
        return inputs


class OwnLoss(kd.Model):
    """Computes its loss itself, from all rows."""

    def __init__(self):
        super().__init__()
        self.out = layers.Dense(5)

    def call(self, inputs):
        return self.out(inputs)

    def compute_loss(self, x, y, y_pred, sample_weight):
        return jnp.mean(y_pred**2)


class CountsRows(kd.metrics.Metric):
    """A metric that takes no weights."""

    def __init__(self, name="rows"):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred):
        self.total.assign_add(jnp.float32(len(y_pred)))

    def result(self):
        return self.total.value


def sequential(*between):
    return kd.Sequential([kd.Input((4, 3)), layers.Dense(8, "relu"), *between, layers.Dense(5)])


def trained(make, mesh, many, monkeypatch, batches=BATCHES, **options):
    """Weights, logs and how many train programs there are, with programs shared after so many lengths."""
    monkeypatch.setattr(compiled, "MANY_SHAPES", many)
    kd.set_random_seed(3)
    with layouts.on(mesh, {}).scope():
        model = make()
    options = {"optimizer": kd.optimizers.SGD(0.1), "loss": LOSS} | options
    model.compile(**options)
    logs = [model.fit(iter(batches), verbose=0).history]
    logs += [model.evaluate(iter(batches), verbose=0, return_dict=True)]
    logs += [{"outputs": model.predict(iter([x for x, *_ in batches]), verbose=0)}]
    keys = model._session.trainer._compiled._programs
    return model.get_weights(), logs, {mode: [key[2] for key in keys if key[0] == mode] for mode in ("train", "test")}


def assert_same(found, expected, rtol=2e-6):
    for mine, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=1e-6)
    for mine, other in zip(found[1], expected[1], strict=True):
        assert mine.keys() == other.keys()
        for name in other:
            np.testing.assert_allclose(mine[name], other[name], rtol=rtol, atol=2e-6, err_msg=name)


METRICS = {"metrics": ["accuracy"], "weighted_metrics": ["sparse_categorical_crossentropy"]}


@pytest.mark.parametrize("mesh", ["one device", "data=4,model=2"])
def test_programs_are_shared_and_the_numbers_are_the_same(mesh, monkeypatch):
    def make():
        return sequential(layers.Dropout(0.4), layers.LayerNormalization())

    expected = trained(make, mesh, 1000, monkeypatch, **METRICS)
    found = trained(make, mesh, 2, monkeypatch, **METRICS)
    assert_same(found, expected)
    assert expected[2]["train"].count("single") == len(LENGTHS)
    for mode in ("train", "test"):
        assert found[2][mode].count("single") == 2 and 1 <= found[2][mode].count("counted") <= 4


CASES = {
    "weights by place": (sequential, METRICS, [(x, y, np.tile(w[:, None], (1, 4))) for x, y, w in BATCHES]),
    "a masked input": (lambda: sequential_of_masked(), METRICS, BATCHES),
    "a sum": (sequential, {"loss": kd.losses.MeanSquaredError(reduction="sum")}, None),
    "a mean by weights": (sequential, {"loss": kd.losses.MeanSquaredError(reduction="mean_with_sample_weight")}, None),
    "accumulated": (
        sequential,
        {"optimizer": kd.optimizers.SGD(0.1, gradient_accumulation_steps=5)},
        BATCHES,
    ),
    "regularized": (
        lambda: sequential(layers.Dense(8, kernel_regularizer="l2")),
        METRICS,
        BATCHES,
    ),
}


def sequential_of_masked():
    return kd.Sequential([kd.Input((4, 3)), layers.Masking(), layers.Dense(8), layers.Dense(5)])


@pytest.mark.parametrize("case", CASES)
def test_losses_weights_and_masks_leave_the_rows_out(case, monkeypatch):
    make, options, batches = CASES[case]
    if batches is None:
        batches = [(x, generator.normal(size=(len(x), 4, 5)).astype(np.float32), w) for x, _, w in BATCHES]
    if case == "a masked input":
        batches = [(x * (np.arange(4) % 3 > 0)[None, :, None], y, None) for x, y, _ in batches]
    expected = trained(make, "one device", 1000, monkeypatch, batches, **options)
    found = trained(make, "one device", 2, monkeypatch, batches, **options)
    assert_same(found, expected, 1e-5)
    assert "counted" in found[2]["train"]


WHOLE = {
    "batch statistics": (lambda: sequential(layers.BatchNormalization()), {}),
    "a layer that adds to the loss": (lambda: sequential(AddsLoss()), {}),
    "a loss of the model's own": (OwnLoss, {}),
    "a metric without weights": (sequential, {"metrics": [CountsRows()]}),
    "a loss that is a scalar": (sequential, {"loss": lambda y_true, y_pred: jnp.mean(y_pred**2)}),
}


@pytest.mark.parametrize("case", WHOLE)
def test_where_rows_cannot_be_left_out_each_length_has_its_program(case, monkeypatch):
    make, options = WHOLE[case]
    batches = [(x, y) for x, y, _ in BATCHES]
    expected = trained(make, "one device", 1000, monkeypatch, batches, **options)
    found = trained(make, "one device", 2, monkeypatch, batches, **options)
    for mine, other in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
        np.testing.assert_equal(mine, other)
    assert found[2]["train"] == ["single"] * len(LENGTHS)


def test_a_step_of_ones_own_sees_every_row_that_exists_and_no_other(monkeypatch):
    def train_step(state, batch, rngs):
        seen.append(len(batch[0]))
        return state, {"loss": jnp.mean(batch[0])}

    monkeypatch.setattr(compiled, "MANY_SHAPES", 2)
    with layouts.one_device().scope():
        model = sequential()
    model.compile("sgd", train_step=train_step)
    seen: list[int] = []
    model.fit(iter(BATCHES), verbose=0)
    assert set(LENGTHS) <= set(seen)
    assert [key[2] for key in model._session.trainer._compiled._programs] == ["single"] * len(LENGTHS)


def test_it_is_said_once(monkeypatch):
    monkeypatch.setattr(compiled, "MANY_SHAPES", 3)
    with layouts.one_device().scope():
        model = sequential()
    for rows in (1, 2):
        model.predict(BATCHES[0][0][:rows], verbose=0)
    with pytest.warns(kd.errors.RecompileWarning, match="single batches of other lengths are filled up"):
        model.predict(BATCHES[0][0][:3], verbose=0)
    for rows in range(4, 9):
        assert len(model.predict(BATCHES[0][0][:rows], verbose=0)) == rows
    kinds = [key[2] for key in model._session.trainer._compiled._programs]
    assert kinds == ["single"] * 3 + ["counted"] * 2
