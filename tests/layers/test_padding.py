"""Zero padding, cropping, upsampling."""

from typing import Any

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


@pytest.mark.parametrize("name", MADE)
def test_symbolic_shapes_keep_unknown_dims(name: str) -> None:
    rank = int(name[-2])
    assert MADE[name]()(layers.Input((*(6,) * rank, 4))).shape == (None, *SIZES[name], 4)
    assert MADE[name]()(layers.Input((*(None,) * rank, 4))).shape == (None, *(None,) * rank, 4)
    if name not in ("Cropping1D", "UpSampling1D"):
        first = MADE[name](data_format="channels_first")
        assert first(layers.Input((4, *(6,) * rank))).shape == (None, 4, *SIZES[name])
