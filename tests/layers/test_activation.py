"""Activation, ReLU, LeakyReLU, PReLU, ELU, Softmax."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.variables import call_context

MADE: list[Any] = [
    lambda: layers.Activation("tanh"),
    lambda: layers.ReLU(2.0, 0.1, 0.5),
    lambda: layers.LeakyReLU(0.2),
    lambda: layers.PReLU(shared_axes=[1], alpha_initializer="ones"),
    lambda: layers.ELU(0.5),
]


def images() -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)


@pytest.mark.parametrize("make", MADE)
def test_masks_go_on(make: Any) -> None:
    x, mask = images(), jnp.array([[True, False, True]] * 2)
    with call_context.entered() as context:
        context.set_mask(x, mask)
        assert context.mask_of(make()(x)) is mask


def test_alpha_has_the_shape_of_the_input_but_for_shared_dims() -> None:
    layer = layers.PReLU(shared_axes=[2], alpha_layout=("m", None))
    layer(images())
    assert [(weight.path, weight.shape) for weight in layer.weights] == [("alpha", (3, 1))]
    assert layer.alpha.get_metadata()["layout"] == ("m", None)
    layer(images()[:, :, :2])
    with pytest.raises(ModelError, match="3 in dim 1"):
        layer(images()[:, :2])


def test_softmax_gives_nothing_where_all_is_masked() -> None:
    mask = jnp.array([[True, False, False, True]] * 3).at[1].set(False)
    outputs = layers.Softmax()(images(), mask=mask)
    np.testing.assert_allclose(outputs.sum(-1), [[1, 0, 1]] * 2, rtol=1e-6)
    assert not outputs[:, 0, 1:3].any()
