"""Values of losses by hand, and where their formulas end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError

REGIONS = (
    jnp.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]),
    jnp.array([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]),
)

BY_HAND = {
    "log_cosh, large": (([[0.0]], [[1000.0]]), {}, [1000 - np.log(2)]),
    "hinge, zeros and ones are signs": (([[0, 1]], [[-0.4, 0.2]]), {}, [(0.6 + 0.8) / 2]),
    "hinge, unless there are other targets": (([[0.0, 1.0], [0.5, 1.0]], jnp.zeros((2, 2))), {}, [1, 1]),
    "dice": (REGIONS, {"axis": 1}, [1 - 2 / 5, 1]),
    "tversky": (REGIONS, {"alpha": 0.2, "beta": 0.9, "axis": 1}, [1 - 1 / (1 + 0.2 + 1.8), 1]),
}
"""Where formulas end; in between Keras says what is expected (`tests/parity`)."""


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    arguments, options, expected = BY_HAND[name]
    found = getattr(losses, name.partition(",")[0])(*arguments, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("loss", "y_true", "y_pred"),
    [
        (losses.binary_crossentropy, [[1, 0]], [[0.0, 1.0]]),
        (losses.kl_divergence, [[0.0, 1.0]], [[1.0, 0.0]]),
        (losses.poisson, [[1.0]], [[0.0]]),
    ],
)
def test_probabilities_of_zero_and_one_are_finite(loss, y_true, y_pred):
    assert np.isfinite(loss(y_true, y_pred)).all()


@pytest.mark.parametrize("loss", [losses.binary_crossentropy, losses.binary_focal_crossentropy])
def test_logits_that_are_far_off_keep_their_gradient(loss):
    far = np.full((1, 1), -50.0, "float32")
    value, gradient = jax.jit(jax.value_and_grad(lambda z: loss(np.ones((1, 1)), z, from_logits=True)[0]))(far)
    np.testing.assert_allclose((value, gradient.item()), (50, -1), rtol=1e-6)


def test_the_cosine_of_a_zero_vector_is_zero_and_has_a_gradient():
    loss = losses.CosineSimilarity()
    value, gradient = jax.jit(jax.value_and_grad(lambda z: loss(np.ones((1, 3)), z)))(np.zeros((1, 3), "float32"))
    assert value == 0 and np.isfinite(gradient).all()


@pytest.mark.parametrize("loss", [losses.Dice, losses.Tversky])
def test_weights_of_regions_need_a_value_for_each_example(loss):
    y_true, y_pred = REGIONS
    weight = jnp.array([1.0, 0.0])
    np.testing.assert_allclose(loss(axis=1)(y_true[:, :2], y_pred[:, :2], weight), 1 / 6, rtol=1e-5)
    with pytest.raises(ModelError, match="`sample_weight` does not fit the loss"):
        loss()(y_true, y_pred, weight)
