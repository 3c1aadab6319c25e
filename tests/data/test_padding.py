"""`pad_batch`: batches of many lengths as batches of a few, with the same loss and gradients."""

from typing import Any

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers, losses
from keras_dist.data import pad_batch
from keras_dist.errors import DataError, ModelError
from tests import layouts

generator = np.random.default_rng(0)
X = generator.normal(size=(5, 3)).astype(np.float32)
Y = generator.integers(0, 4, 5)
WEIGHTS = generator.uniform(0.5, 2, 5).astype(np.float32)
TOKENS = generator.integers(1, 6, (4, 7), np.int32)
NEXT = generator.integers(0, 6, (4, 7))
PER_STEP = generator.uniform(0.5, 2, (4, 7)).astype(np.float32)


def step(make, batch, loss):
    """Loss, weighted metrics and weights after one step of gradient descent."""
    kd.set_random_seed(1)
    with layouts.one_device().scope():
        model = make()
    model.compile(kd.optimizers.SGD(0.5), loss=loss, weighted_metrics=["accuracy"])
    logs = model.train_on_batch(*batch, return_dict=True)
    return logs, model.get_weights()


def assert_same_step(make, batch, padded, reduction):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    logs, weights = step(make, batch, loss)
    found, after = step(make, padded, loss)
    assert found == pytest.approx(logs, rel=1e-5)
    for mine, other in zip(after, weights, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("reduction", "more"), [("sum_over_batch_size", ()), ("sum", (WEIGHTS,)), ("mean_with_sample_weight", (WEIGHTS,))]
)
def test_more_rows_give_the_same_loss_and_gradients(reduction, more):
    padded = pad_batch((X, Y, *more), multiple_of=4, reduction=reduction)
    assert [len(array) for array in padded] == [8, 8, 8]
    assert_same_step(lambda: kd.Sequential([kd.Input((3,)), layers.Dense(4)]), (X, Y, *more), padded, reduction)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("reduction", "more"),
    [("sum_over_batch_size", ()), ("sum", (WEIGHTS[:4],)), ("mean_with_sample_weight", (PER_STEP,))],
)
def test_more_steps_give_the_same_loss_and_gradients(reduction, more):
    padded = pad_batch((TOKENS, NEXT, *more), lengths=(4, 16, 8), dim=1, pads_targets=True, reduction=reduction)
    assert [array.shape for array in padded] == [(4, 8)] * 3

    def make():
        return kd.Sequential([kd.Input((None,), dtype="int32"), layers.Embedding(6, 3), layers.Dense(6)])

    assert_same_step(make, (TOKENS, NEXT, *more), padded, reduction)


def test_more_steps_that_a_mask_leaves_out_give_the_same_loss_and_gradients():
    """Their weights must not grow: the loss divides by the steps that the mask leaves."""
    ragged = np.where(np.arange(7) < [[7], [3], [5], [1]], TOKENS, 0)
    padded = pad_batch((ragged, NEXT), multiple_of=16, dim=1, pads_targets=True, reduction=None)

    def make():
        embedding = layers.Embedding(6, 3, mask_zero=True)
        return kd.Sequential([kd.Input((None,), dtype="int32"), embedding, layers.Dense(6)])

    assert_same_step(make, (ragged, NEXT), padded, "sum_over_batch_size")
    words = " ".join(str(pad_batch.__doc__).split())
    assert "`Embedding(mask_zero=True)` or `Masking`: `reduction=None`" in words


def test_the_loss_of_several_batches_counts_added_rows_and_a_weighted_metric_does_not():
    with layouts.one_device().scope():
        model = kd.Sequential([kd.Input((3,)), layers.Dense(1)])
    exact = kd.metrics.MeanSquaredError(name="exact")
    model.compile("sgd", loss="mse", weighted_metrics=[exact], steps_per_execution=1)
    y = X.sum(1) * np.array([1, 1, 1, 1, 9], np.float32)
    whole = model.evaluate(X, y, batch_size=5, verbose=0, return_dict=True)["loss"]
    one, other = (pad_batch(batch, multiple_of=4, reduction=None) for batch in ((X[:4], y[:4]), (X[4:], y[4:])))
    found = model.evaluate(iter([one, other]), verbose=0, return_dict=True)
    assert found["exact"] == pytest.approx(whole, rel=1e-5)
    kernel, bias = model.get_weights()
    squares = ((X @ kernel + bias)[:, 0] - y) ** 2
    parts = (pad_batch(batch, multiple_of=4) for batch in ((X[:4], y[:4]), (X[4:], y[4:])))
    found = model.evaluate(parts, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx((np.mean(squares[:4]) + squares[4]) / 2, rel=1e-5)


def test_added_rows_repeat_the_last_one_in_all_arrays_and_have_weight_0():
    batch = ({"a": X, "b": TOKENS[[0, 1, 2, 3, 3]]}, [Y, Y * 2])
    x, y, weights = pad_batch(batch, lengths=[64, 6, 32], reduction="sum")
    assert {name: leaf.shape for name, leaf in x.items()} == {"a": (6, 3), "b": (6, 7)}
    assert all((leaf[5] == leaf[4]).all() for leaf in [*x.values(), *y])
    assert weights.tolist() == [1, 1, 1, 1, 1, 0]
    assert pad_batch(batch, multiple_of=6)[2].tolist() == pytest.approx([1.2] * 5 + [0])
    each = pad_batch((*batch, [WEIGHTS, WEIGHTS > 1]), multiple_of=7, reduction="sum")[2]
    assert each[0].tolist() == [*WEIGHTS.tolist(), 0, 0] and each[1].tolist() == [*(WEIGHTS > 1), 0, 0]


def test_what_has_the_length_stays_as_it_is():
    for batch in ((X, Y, WEIGHTS), (X, Y), X):
        given = (*batch, None)[:3] if isinstance(batch, tuple) else (batch, None, None)
        found = pad_batch(batch, multiple_of=5)
        for mine, other in zip(found, given, strict=True):
            expected: Any = np.ones(5) if mine is found[2] and other is None else other
            assert mine is expected is None or np.array_equal(mine, expected)


def test_steps_of_x_alone():
    x, y, weights = pad_batch(({"tokens": TOKENS, "next": TOKENS[:, 1:]}, Y[:4]), multiple_of=7, dim=1, value=-1)
    assert x["tokens"] is not None and x["next"].shape == (4, 7) and (x["next"][:, -1] == -1).all()
    assert np.array_equal(y, Y[:4]) and weights is None


def test_one_hot_targets_of_steps():
    _, y, weights = pad_batch((TOKENS, np.eye(6)[NEXT]), multiple_of=8, dim=1, pads_targets=True, reduction="sum")
    assert y.shape == (4, 8, 6) and not y[:, 7].any()
    assert weights.shape == (4, 8) and weights[:, :7].all() and not weights[:, 7].any()


@pytest.mark.parametrize(
    ("batch", "options", "parts"),
    [
        ((X, Y), {}, ["multiple_of=None, lengths=None", "either"]),
        ((X, Y), {"multiple_of": 2, "lengths": (4,)}, ["multiple_of=2, lengths=(4,)"]),
        ((X, Y), {"multiple_of": True}, ["`multiple_of`", "True"]),
        ((X, Y), {"lengths": [8, 2.5]}, ["`lengths`", "2.5"]),
        ((X, Y), {"lengths": (2, 4)}, ["longer than all lengths", "length 5", "(2, 4)"]),
        ((X, Y), {"multiple_of": 2, "dim": 2}, ["x has no dim 2", "(5, 3)"]),
        ((X, Y), {"multiple_of": 2, "dim": 1, "pads_targets": True}, ["y has no dim 1", "(5,)"]),
        ((X, Y), {"multiple_of": 2, "pads_targets": True}, ["`pads_targets`", "other than the rows"]),
        (X, {"multiple_of": 2, "dim": 1, "pads_targets": True}, ["`pads_targets`", "without y"]),
        (TOKENS, {"multiple_of": 8, "dim": 1, "value": 0.5}, ["`value`", "int32"]),
        (X, {"multiple_of": 8, "dim": 1, "value": None}, ["`value`", "None"]),
        ((TOKENS, NEXT), {"multiple_of": 8, "dim": 1, "pads_targets": "yes"}, ["`pads_targets`", "'yes'"]),
        (
            (TOKENS, NEXT, WEIGHTS[:4, None] * np.ones(6, np.float32)),
            {"multiple_of": 8, "dim": 1, "pads_targets": True},
            ["`sample_weight` must be a weight for each row", "(4, 6)", "(4, 7)"],
        ),
        ((X, Y), {"multiple_of": 2**40}, ["`multiple_of`", str(2**31 - 1)]),
        ((X, Y[:4]), {"multiple_of": 2}, ["5 rows", "4 rows"]),
        (
            (X, [Y, Y], [WEIGHTS]),
            {"multiple_of": 2},
            ["`sample_weight` must be one array for all outputs, or a tree like y"],
        ),
        ((X, Y, WEIGHTS, 1), {"multiple_of": 2}, ["a tuple of 4"]),
    ],
)
def test_mistakes_are_named(batch, options, parts):
    with pytest.raises(DataError) as error:
        pad_batch(batch, **options)
    for part in parts:
        assert part in str(error.value)


def test_a_reduction_that_does_not_exist():
    with pytest.raises(ModelError, match="`reduction` must be one of"):
        pad_batch((X, Y), multiple_of=2, reduction="total")
