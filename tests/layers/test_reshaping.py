"""Flatten, Reshape, Permute, RepeatVector."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers

MADE: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
    (lambda **options: layers.Flatten("channels_first", **options), (3, 4), (None, 12)),
    (lambda **options: layers.Flatten(**options), (None, 4), (None, None)),
    (lambda **options: layers.Flatten(**options), (), (None, 1)),
    (lambda **options: layers.Reshape((2, -1), **options), (3, 4), (None, 2, 6)),
    (lambda **options: layers.Reshape([None, 2], **options), (None, 4), (None, None, 2)),
    (lambda **options: layers.Permute((2, 1), **options), (None, 4), (None, 4, None)),
    (lambda **options: layers.RepeatVector(3, **options), (4,), (None, 3, 4)),
]


@pytest.mark.parametrize(("make", "shape", "expected"), MADE)
def test_shapes_and_types(make: Any, shape: Any, expected: Any) -> None:
    assert make()(layers.Input(shape)).shape == expected
    x = jnp.ones((2, *(size or 3 for size in shape)), "int32")
    assert make()(x).dtype == jnp.int32


def test_an_empty_batch_can_be_flattened() -> None:
    assert layers.Flatten()(np.ones((0, 3, 4))).shape == (0, 12)
