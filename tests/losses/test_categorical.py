"""Crossentropies of classes against numpy, where Keras says something else, and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError

LOGITS = np.random.default_rng(0).normal(size=(6, 3)).astype("f4") * 3
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
LABELS = np.array([0, 2, 1, 1, 0, 2])
NLL = -np.log(PROBABILITIES[np.arange(6), LABELS])


def test_it_is_exact_for_logits_that_overflow_as_probabilities():
    @jax.jit
    def both(logits):
        found = losses.sparse_categorical_crossentropy(np.array([0, 0]), logits, from_logits=True)
        hot = np.array([[1, 0], [1, 0]])
        return found, losses.categorical_focal_crossentropy(hot, logits, alpha=1.0, from_logits=True)

    found, focal = both(np.array([[200.0, 0.0], [0.0, 200.0]], "f4"))
    np.testing.assert_allclose(found, [0.0, 200.0], atol=1e-5)
    np.testing.assert_allclose(focal, [0.0, 200.0], atol=1e-4)


@pytest.mark.parametrize("label", [3, 100, -1])
@pytest.mark.parametrize("from_logits", [True, False])
def test_a_class_out_of_range_is_nan_in_compiled_functions(label, from_logits):
    loss = jax.jit(losses.sparse_categorical_crossentropy, static_argnums=2)
    assert np.isnan(loss(np.array([label]), PROBABILITIES[:1], from_logits)).all()
    loss = jax.jit(losses.categorical_generalized_cross_entropy)
    assert np.isnan(loss(np.array([label]), PROBABILITIES[:1], 0.5)).all()


@pytest.mark.parametrize("from_logits", [True, False])
def test_ignored_classes_count_nowhere(from_logits):
    loss = losses.SparseCategoricalCrossentropy(from_logits, ignore_class=-1)
    y_pred, labels = PROBABILITIES.copy(), LABELS.copy()
    y_pred[1], labels[[1, 4]] = np.nan, -1
    counted = np.array([0, 2, 3, 5])

    @jax.jit
    def compiled(y_pred):
        expected = losses.SparseCategoricalCrossentropy(from_logits)(LABELS[counted], PROBABILITIES[counted])
        found = jax.value_and_grad(lambda z: loss(labels, z))(y_pred)
        return found, expected, loss(np.full(6, -1), y_pred)

    (value, gradient), expected, of_none = compiled(y_pred)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert not np.asarray(gradient)[[1, 4]].any() and np.isfinite(gradient).all()
    assert of_none == 0


def test_indices_in_a_column_are_those_of_the_rows():
    found = losses.categorical_generalized_cross_entropy(LABELS[:, None], PROBABILITIES, 0.5)
    np.testing.assert_allclose(found, (1 - np.exp(-NLL) ** 0.5) / 0.5, rtol=1e-5)


def test_factors_of_the_focal_loss_may_differ_from_class_to_class():
    loss = losses.CategoricalFocalCrossentropy(alpha=[1.0, 0.0, 2.0], gamma=0.0, reduction=None)
    np.testing.assert_allclose(loss(np.eye(3)[LABELS], PROBABILITIES), NLL * np.array([1, 0, 2])[LABELS], atol=1e-5)


@pytest.mark.parametrize("loss", [losses.categorical_crossentropy, losses.categorical_focal_crossentropy])
def test_a_single_class_is_warned_of(loss):
    with pytest.warns(SyntaxWarning, match=r"\(4, 1\).*binary_crossentropy") as caught:
        loss(jnp.ones((4, 1)), jnp.ones((4, 1)))
    assert caught[0].filename == __file__


_LOSS = losses.categorical_crossentropy


def _index(y_true, y_pred, **options):
    return lambda: losses.sparse_categorical_crossentropy(jnp.ones(y_true), jnp.ones(y_pred), **options)


MISUSE = {
    "one-hot": (
        _index((3, 3), (3, 3)),
        r"(?s)`y_true` must be class indices.*shape \(3,\).*loss='categorical_crossentropy'; or pass their argmax",
    ),
    "classes": (
        lambda: _LOSS(jnp.ones(2), jnp.ones((2, 3))),
        r"(?s)class indices.*loss='sparse_categorical_crossentropy'",
    ),
    "classes in a column": (
        lambda: losses.categorical_focal_crossentropy(jnp.ones((2, 1)), jnp.ones((2, 3))),
        r"(?s)class indices.*fix:      utils.to_categorical\(y, 3\)",
    ),
    "rows": (_index((4,), (3, 3)), "`y_true` must be class indices"),
    "axis": (_index((3,), (3, 3), axis=2), r"(?s)`axis` must be an integer from -2 to 1"),
    "axis as a flag": (_index((3,), (3, 3), axis=True), "`axis`"),
    "axis of logits": (lambda: losses.categorical_crossentropy(jnp.ones(3), jnp.ones(3), axis=1), "`axis`"),
    "shapes": (lambda: _LOSS(jnp.ones((3, 2)), jnp.ones((3, 3))), "must have the shape"),
    "q": (lambda: losses.CategoricalGeneralizedCrossEntropy(q=1), "`q` must be a number above 0 and below 1"),
}


@pytest.mark.parametrize(("misuse", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_ends_in_an_error_with_given_expected_and_remedy(misuse, message):
    with pytest.raises(ModelError, match=message) as caught:
        misuse()
    assert caught.value.given and caught.value.fix
