"""Flatten, Reshape, Permute, RepeatVector."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers
from keras_dist.errors import ModelError

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
def test_configs_shapes_and_types(make: Any, shape: Any, expected: Any) -> None:
    layer = make(name="other")
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again(layers.Input(shape)).shape == expected
    x = jnp.ones((2, *(size or 3 for size in shape)))
    assert make(dtype="bfloat16")(x).dtype == jnp.bfloat16
    assert layer(x.astype("int32")).dtype == jnp.int32


def test_an_empty_batch_can_be_flattened() -> None:
    assert layers.Flatten()(np.ones((0, 3, 4))).shape == (0, 12)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: layers.Flatten("channels"), ["`data_format`", "'channels_first'"]),
        (lambda: layers.Flatten()(jnp.ones(())), ["rank 1 at least"]),
        (lambda: layers.Reshape(12), ["`target_shape`", "target_shape=12"]),  # type: ignore[arg-type]
        (lambda: layers.Reshape((-1, -1)), ["`target_shape`", "one of them may be -1"]),
        (lambda: layers.Reshape((-1, None)), ["`target_shape`"]),
        (lambda: layers.Reshape((-2, 3)), ["`target_shape`"]),
        (lambda: layers.Reshape((2.0, 3)), ["`target_shape`"]),  # type: ignore[arg-type]
        (lambda: layers.Reshape((5,))(jnp.ones((2, 3, 4))), ["(5,)", "(2, 3, 4)", "12"]),
        (lambda: layers.Reshape((5, -1))(jnp.ones((2, 3, 4))), ["(5, -1)", "divides"]),
        (lambda: layers.Reshape((0, -1))(jnp.ones((2, 3, 4))), ["(0, -1)"]),
        (lambda: layers.Permute((0, 1)), ["`dims`", "(0, 1)"]),
        (lambda: layers.Permute((1, 1)), ["`dims`"]),
        (lambda: layers.Permute(2), ["`dims`"]),  # type: ignore[arg-type]
        (lambda: layers.Permute((2, 1))(jnp.ones((2, 3))), ["rank 3"]),
        (lambda: layers.RepeatVector(0), ["`n`"]),
        (lambda: layers.RepeatVector(2)(jnp.ones((2, 3, 4))), ["rank 2"]),
    ],
)
def test_mistakes_are_named(make: Any, parts: list[str]) -> None:
    with pytest.raises(ModelError) as error:
        make()
    for part in parts:
        assert part in str(error.value)
