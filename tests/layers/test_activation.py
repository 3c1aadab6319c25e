"""PReLU and Softmax; `tests/parity` compares activations with Keras's."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.errors import ModelError

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")


def test_alpha_has_the_shape_of_the_input_but_for_shared_dims() -> None:
    layer = layers.PReLU(shared_axes=[2], alpha_layout=("m", None))
    layer(X)
    assert [(weight.path, weight.shape) for weight in layer.weights] == [("alpha", (3, 1))]
    assert layer.alpha.get_metadata()["layout"] == ("m", None)
    layer(X[:, :, :2])
    with pytest.raises(ModelError, match="3 in dim 1"):
        layer(X[:, :2])


def test_softmax_gives_nothing_where_all_is_masked() -> None:
    mask = jnp.array([[True, False, False, True]] * 3).at[1].set(False)
    outputs = layers.Softmax()(X, mask=mask)
    np.testing.assert_allclose(outputs.sum(-1), [[1, 0, 1]] * 2, rtol=1e-6)
    assert not outputs[:, 0, 1:3].any()
