"""The loss of preferences against its formula in float64: values, gradients, what it reports, and its mistakes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError
from keras_dist.losses.vocabulary import Projection

RANDOM = np.random.default_rng(0)
PAIRS, LENGTH, FEATURES, SIZE = 3, 6, 4, 22
INPUTS = RANDOM.normal(size=(PAIRS, 2, LENGTH, FEATURES)).astype("f4")
KERNEL = RANDOM.normal(size=(FEATURES, SIZE)).astype("f4")
TARGETS = np.where(RANDOM.uniform(size=(PAIRS, 2, LENGTH)) > 0.4, RANDOM.integers(0, SIZE, (PAIRS, 2, LENGTH)), -100)
TARGETS[:, :, -1] = 1
Y = {"targets": TARGETS.astype("i4"), "reference": RANDOM.normal(-9, 3, (PAIRS, 2)).astype("f4")}


def by_hand(logits, y, beta, smoothing=0.0):
    """A value and a margin for each pair."""
    logits = logits.astype("f8")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rewards = np.zeros((len(logits), 2))
    for pair, row in np.ndindex(rewards.shape):
        targets = y["targets"][pair, row]
        places = [place for place in range(1, len(targets)) if targets[place] >= 0]
        likely = sum(logs[pair, row, place - 1, targets[place]] for place in places)
        rewards[pair, row] = beta * (likely - y["reference"][pair, row])
    margin = rewards[:, 0] - rewards[:, 1]
    return (1 - smoothing) * np.log1p(np.exp(-margin)) + smoothing * np.log1p(np.exp(margin)), margin


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_values_weights_and_reports(smoothing):
    logits = INPUTS @ KERNEL
    expected, margin = by_hand(logits, Y, 0.3, smoothing)
    loss = losses.DPO(0.3, smoothing)
    np.testing.assert_allclose(losses.dpo(Y, logits, 0.3, smoothing), expected, rtol=1e-5)
    found, reported = loss.with_reported(Y, logits)
    np.testing.assert_allclose(found, expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(reported["reward_accuracy"], (margin > 0).mean())
    np.testing.assert_allclose(reported["reward_margin"], margin.mean(), rtol=1e-5)
    weights = np.array([1.0, 2.0, 0.0], "f4")
    np.testing.assert_allclose(loss(Y, logits, weights), (weights * expected).sum() / 3, rtol=1e-5)
    assert loss.divisor(Y, logits) == 3
    assert loss.count(Y, logits) == (TARGETS[..., 1:] >= 0).sum()


def test_a_projection_and_logits_have_equal_values_and_gradients():
    loss = losses.DPO(0.3, chunk_size=5)

    def of(inputs, kernel, projects):
        return loss(Y, Projection(inputs, kernel) if projects else inputs @ kernel)

    found, expected = (jax.jit(jax.value_and_grad(of, (0, 1)), static_argnums=2)(INPUTS, KERNEL, is_) for is_ in (1, 0))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), found, expected)
    assert loss.uses(Projection(jnp.asarray(INPUTS), jnp.asarray(KERNEL)))


def test_names_and_configs():
    assert losses.get("dpo") is losses.dpo
    again = losses.deserialize(losses.serialize(losses.DPO(beta=0.5, label_smoothing=0.1, chunk_size=64)))
    assert (again.beta, again.label_smoothing, again.chunk_size) == (0.5, 0.1, 64)


@pytest.mark.parametrize(
    ("y_true", "message"),
    [
        (None, "must be a dict of `targets` and `reference`"),
        (TARGETS, "must be a dict of `targets` and `reference`"),
        ({**Y, "targets": TARGETS.reshape(-1, LENGTH)}, r"do not fit\n.*\n.*\(pairs, 2, length\)"),
        ({**Y, "reference": np.zeros(PAIRS)}, "do not fit"),
        ({"targets": TARGETS[:, :1], "reference": Y["reference"]}, "do not fit"),
    ],
)
def test_targets_of_another_form_are_an_error(y_true, message):
    with pytest.raises(ModelError, match=message):
        losses.DPO()(y_true, INPUTS @ KERNEL)


def test_mistakes_in_arguments():
    for options in ({"beta": 0.0}, {"label_smoothing": 0.5}, {"chunk_size": 0}):
        with pytest.raises(ModelError, match=next(iter(options))):
            losses.DPO(**options)
