"""Circle loss: references, and what does not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError

EMBEDDINGS = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.8, -0.6]])


def test_embeddings_are_references_of_each_other():
    labels = np.array([0, 0, 1, 1])
    both = jax.jit(lambda z: (losses.circle(labels[:, None], z), losses.circle(labels, z, labels, z)))
    found, given = both(EMBEDDINGS)
    np.testing.assert_array_equal(found, given)
    assert found.shape == (4,) and (found > 0).all()


def test_references_may_be_others():
    labels = np.array([0, 1]), np.array([1, 0, 1])
    call = jax.eval_shape(
        lambda z: losses.circle(labels[0], z[:2], labels[1], z[1:], remove_diagonal=False), EMBEDDINGS
    )
    assert call.shape == (2,)


def test_what_has_no_other_of_its_class_does_not_count():
    labels = np.array([0, 0, 1, 2])
    loss = jax.value_and_grad(lambda z: losses.Circle()(labels, z))
    values, (value, gradient) = jax.jit(lambda z: (losses.circle(labels, z), loss(z)))(EMBEDDINGS)
    np.testing.assert_array_equal(values > 0, [True, True, False, False])
    np.testing.assert_allclose(value, values[:2].mean(), rtol=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((jnp.ones(3), EMBEDDINGS), r"(?s)`y_true` must be .* and `y_pred` .*\(3,\).*\(4, 2\)"),
        ((jnp.ones(4), jnp.ones(4)), "`y_true` must be .* and `y_pred` "),
        ((jnp.ones(4), EMBEDDINGS, None, EMBEDDINGS[:2]), "`ref_labels` must be .* and `ref_embeddings` "),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message) as caught:
        losses.circle(*arguments)
    assert caught.value.given and caught.value.fix
