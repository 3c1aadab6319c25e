"""Zero padding, cropping, upsampling."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers

MADE: dict[str, Any] = {
    "ZeroPadding1D": lambda **options: layers.ZeroPadding1D((1, 2), **options),
    "ZeroPadding2D": lambda **options: layers.ZeroPadding2D((1, (0, 3)), **options),
    "ZeroPadding3D": lambda **options: layers.ZeroPadding3D(2, **options),
    "Cropping1D": lambda **options: layers.Cropping1D((1, 2), **options),
    "Cropping2D": lambda **options: layers.Cropping2D((1, (0, 3)), **options),
    "Cropping3D": lambda **options: layers.Cropping3D(1, **options),
    "UpSampling1D": lambda **options: layers.UpSampling1D(3, **options),
    "UpSampling2D": lambda **options: layers.UpSampling2D((2, 3), interpolation="bilinear", **options),
    "UpSampling3D": lambda **options: layers.UpSampling3D((1, 2, 3), **options),
}

SIZES = {
    "ZeroPadding1D": (9,),
    "ZeroPadding2D": (8, 9),
    "ZeroPadding3D": (10, 10, 10),
    "Cropping1D": (3,),
    "Cropping2D": (4, 3),
    "Cropping3D": (4, 4, 4),
    "UpSampling1D": (18,),
    "UpSampling2D": (12, 18),
    "UpSampling3D": (6, 12, 18),
}


def inputs_for(name: str) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, *(6,) * int(name[-2]), 4)), jnp.float32)


@pytest.mark.parametrize("name", MADE)
def test_symbolic_shapes_keep_unknown_dims(name: str) -> None:
    rank = int(name[-2])
    assert MADE[name]()(inputs_for(name)).shape == (2, *SIZES[name], 4)
    assert MADE[name]()(layers.Input((*(6,) * rank, 4))).shape == (None, *SIZES[name], 4)
    assert MADE[name]()(layers.Input((*(None,) * rank, 4))).shape == (None, *(None,) * rank, 4)
    if name not in ("Cropping1D", "UpSampling1D"):
        first = MADE[name](data_format="channels_first")
        assert first(layers.Input((4, *(6,) * rank))).shape == (None, 4, *SIZES[name])


def test_zeros_stand_where_they_should() -> None:
    padded = layers.ZeroPadding2D(((1, 0), (0, 2)))(jnp.ones((1, 1, 1, 1)))
    assert padded[0, :, :, 0].tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


def test_cropping_undoes_padding() -> None:
    x = inputs_for("Cropping2D")
    amounts = ((1, 0), (0, 2))
    np.testing.assert_array_equal(layers.Cropping2D(amounts)(layers.ZeroPadding2D(amounts)(x)), x)


def test_steps_are_repeated() -> None:
    x = jnp.array([1.0, 2.0]).reshape(1, 2, 1)
    assert layers.UpSampling1D(2)(x).ravel().tolist() == [1.0, 1.0, 2.0, 2.0]
    assert layers.UpSampling2D((1, 2))(x[..., None])[0, :, :, 0].tolist() == [[1.0, 1.0], [2.0, 2.0]]
