"""Losses against numpy, their names, and their reduction with weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import errors, losses

LOGITS = np.random.default_rng(0).normal(size=(6, 3)).astype("f4") * 3
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
LABELS = np.array([0, 2, 1, 1, 0, 2])
NLL = -np.log(PROBABILITIES[np.arange(6), LABELS])


@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None], LABELS.astype("f4"), LABELS.astype("u1")])
def test_sparse_categorical_crossentropy_of_logits_and_probabilities(labels):
    labels = jnp.asarray(labels)
    from_logits = losses.SparseCategoricalCrossentropy(from_logits=True)
    np.testing.assert_allclose(from_logits(labels, jnp.asarray(LOGITS)), NLL, rtol=1e-5)
    np.testing.assert_allclose(
        losses.SparseCategoricalCrossentropy()(labels, jnp.asarray(PROBABILITIES)), NLL, rtol=1e-4
    )


def test_it_is_exact_for_logits_that_overflow_as_probabilities():
    logits = jnp.array([[200.0, 0.0], [0.0, 200.0]])
    found = losses.sparse_categorical_crossentropy(jnp.array([0, 0]), logits, from_logits=True)
    np.testing.assert_allclose(found, [0.0, 200.0], atol=1e-5)


def test_it_takes_a_label_for_each_position_of_a_sequence():
    labels, logits = LABELS.reshape(2, 3), LOGITS.reshape(2, 3, 3)
    found = losses.sparse_categorical_crossentropy(jnp.asarray(labels), jnp.asarray(logits), from_logits=True)
    np.testing.assert_allclose(found, NLL.reshape(2, 3), rtol=1e-5)


@pytest.mark.parametrize("label", [-1, 3, 100])
def test_a_label_out_of_range_is_not_counted_as_another_class(label):
    found = losses.sparse_categorical_crossentropy(jnp.array([label]), jnp.asarray(LOGITS[:1]), from_logits=True)
    assert np.isnan(found).all()


def test_one_hot_labels_are_refused_with_the_remedy():
    with pytest.raises(errors.ModelError, match="does not fit") as caught:
        losses.sparse_categorical_crossentropy(jnp.eye(3), jnp.ones((3, 3)))
    assert "argmax" in caught.value.fix


@pytest.mark.parametrize("shapes", [((6, 3), (6, 3)), ((6, 1), (6,)), ((6,), (6, 1)), ((6,), (6,)), ((2, 3, 4),) * 2])
def test_mean_squared_error(shapes):
    random = np.random.default_rng(1)
    y_true, y_pred = (random.normal(size=shape).astype("f4") for shape in shapes)
    full = shapes[1] if len(shapes[1]) == len(shapes[0]) else (6,)
    squared = (y_true.reshape(full) - y_pred.reshape(full)) ** 2
    expected = squared if squared.ndim == 1 else squared.mean(-1)
    np.testing.assert_allclose(losses.get("mse")(jnp.asarray(y_true), jnp.asarray(y_pred)), expected, rtol=1e-5)


def test_it_never_broadcasts_targets_against_predictions():
    with pytest.raises(errors.ModelError, match="do not have the shape") as caught:
        losses.mean_squared_error(jnp.ones((8, 1)), jnp.ones((8, 3)))
    assert "(8, 1)" in caught.value.given and "(8, 3)" in caught.value.given


def test_names():
    assert losses.get("mse") is losses.get("mean_squared_error") is losses.mean_squared_error
    assert losses.get("sparse_categorical_crossentropy") is losses.sparse_categorical_crossentropy
    assert losses.get(losses.MeanSquaredError())(jnp.ones(2), jnp.zeros(2)).tolist() == [1, 1]


def test_a_typo_names_the_nearest():
    with pytest.raises(errors.UnknownNameError, match=r"unknown loss 'mes' \(did you mean 'mse'\?\)") as caught:
        losses.get("mes")
    assert "mse" in caught.value.expected and caught.value.fix


@pytest.mark.parametrize("given", [3, ["mse"]])
def test_what_is_no_loss_is_refused(given):
    with pytest.raises(errors.ModelError, match="`loss` is neither"):
        losses.get(given)


class TestReduction:
    VALUES = np.arange(6, dtype="f4").reshape(3, 2)

    def test_without_weights_it_is_the_mean(self):
        assert losses.reduce_mean(jnp.asarray(self.VALUES), None) == 2.5
        assert losses.reduce_mean(jnp.float32(7), None) == 7

    @pytest.mark.parametrize("shape", [(3,), (3, 2)])
    def test_weights_multiply_each_example_and_the_number_of_values_divides(self, shape):
        weight = np.array([1.0, 0.0, 2.0], "f4")
        weight = weight if shape == (3,) else np.repeat(weight[:, None], 2, 1)
        assert losses.reduce_mean(jnp.asarray(self.VALUES), jnp.asarray(weight)) == pytest.approx((0 + 1 + 8 + 10) / 6)

    def test_weights_may_be_a_column(self):
        assert losses.reduce_mean(jnp.array([1.0, 3.0]), jnp.array([[1.0], [0.0]])) == 0.5

    @pytest.mark.parametrize("values", [jnp.float32(1), jnp.ones(4)])
    def test_weights_that_do_not_fit_are_refused(self, values):
        with pytest.raises(errors.ModelError, match="`sample_weight` does not fit the loss"):
            losses.reduce_mean(values, jnp.ones(3))


def test_losses_have_gradients():
    grad = jax.grad(lambda z: losses.sparse_categorical_crossentropy(jnp.asarray(LABELS), z, True).mean())
    expected = (PROBABILITIES - np.eye(3)[LABELS]) / 6
    np.testing.assert_allclose(grad(jnp.asarray(LOGITS)), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (((6,), (6, 1)), ((6, 1), (6, 1))),
        (((6, 1), (6,)), ((6, 1), (6, 1))),
        (((6, 2, 1), (6, 2)), ((6, 2), (6, 2))),
        (((6,), (6, 3)), ((6,), (6, 3))),
        (((6, 1), (6, 3)), ((6, 1), (6, 3))),
    ],
)
def test_ranks_are_aligned_as_in_keras(given, expected):
    aligned = losses.align_ranks(*(jnp.zeros(shape) for shape in given))
    assert tuple(array.shape for array in aligned) == expected


def test_values_for_each_pair_are_taken_when_targets_have_pairs():
    pairs = jnp.zeros((6, 6))
    assert losses.check_values(pairs, pairs, jnp.zeros((6, 6, 3)), 6) is pairs
    with pytest.raises(errors.ModelError, match="`loss` returned no value for each example"):
        losses.check_values(pairs, jnp.zeros(6), jnp.zeros((6, 3)), 6)
