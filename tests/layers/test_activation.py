"""Activation, ReLU, LeakyReLU, PReLU, ELU, Softmax."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.errors import ModelError, UnknownNameError
from keras_dist.layers import call_context

MADE: list[Any] = [
    lambda **options: layers.Activation("tanh", **options),
    lambda **options: layers.ReLU(2.0, 0.1, 0.5, **options),
    lambda **options: layers.LeakyReLU(0.2, **options),
    lambda **options: layers.PReLU(shared_axes=[1], alpha_initializer="ones", **options),
    lambda **options: layers.ELU(0.5, **options),
    lambda **options: layers.Softmax([-1, -2], **options),
]


def images() -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)


@pytest.mark.parametrize("make", MADE)
def test_configs_shapes_and_half_precision(make: Any) -> None:
    layer = make(name="act")
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    np.testing.assert_array_equal(again(images()), layer(images()))
    assert make()(layers.Input((3, 4))).shape == (None, 3, 4)
    half = make(dtype="bfloat16")(images())
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), layer(images()), atol=0.03)


@pytest.mark.parametrize("make", MADE[:-1])
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


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: layers.ReLU(max_value=-1), ["`max_value`", "'re_lu'", "-1"]),
        (lambda: layers.ReLU(negative_slope=None), ["`negative_slope`"]),  # type: ignore[arg-type]
        (lambda: layers.ReLU(threshold=-0.1), ["`threshold`"]),
        (lambda: layers.LeakyReLU(-0.1), ["`negative_slope`", "'leaky_re_lu'"]),
        (lambda: layers.ELU("steep"), ["`alpha`", "'steep'"]),  # type: ignore[arg-type]
        (lambda: layers.PReLU(shared_axes=[0]), ["`shared_axes`", "batch"]),
        (lambda: layers.PReLU(shared_axes="1"), ["`shared_axes`"]),
        (lambda: layers.PReLU(shared_axes=[3])(images()), ["`shared_axes`", "(2, 3, 4)"]),
        (lambda: layers.Softmax("last"), ["`axis`"]),  # type: ignore[arg-type]
        (lambda: layers.Softmax()(images(), mask=jnp.ones((2, 3))), ["`mask`", "(2, 3)", "(2, 3, 4)"]),
        (lambda: layers.Softmax()(images(), mask=jnp.ones((1, 2, 3, 4))), ["`mask`", "dims"]),
        (lambda: layers.Activation("tanhh"), ["tanhh", "did you mean 'tanh'"]),
    ],
)
def test_mistakes_are_named(make: Any, parts: list[str]) -> None:
    with pytest.raises((ModelError, UnknownNameError)) as error:
        make()
    for part in parts:
        assert part in str(error.value)
