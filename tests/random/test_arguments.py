"""Mistakes in the arguments of random functions, and what the functions make of odd ones."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import random
from keras_dist.errors import ModelError


@pytest.mark.parametrize(
    ("draw", "argument", "given"),
    [
        (lambda: random.normal(3), "shape", "shape=3"),
        (lambda: random.uniform((2, -1)), "shape", "shape=(2, -1)"),
        (lambda: random.truncated_normal((2, None)), "shape", "shape=(2, None)"),
        (lambda: random.randint("ab", 0, 2), "shape", "shape='ab'"),
        (lambda: random.normal((2,), dtype="int32"), "dtype", "dtype='int32'"),
        (lambda: random.gamma((2,), 1.0, dtype="float31"), "dtype", "dtype='float31'"),
        (lambda: random.randint((2,), 0, 2, dtype="float32"), "dtype", "dtype='float32'"),
        (lambda: random.randint((2,), 0, 2, dtype=bool), "dtype", "dtype=<class 'bool'>"),
        (lambda: random.dropout(jnp.ones(2), 1.5), "rate", "rate=1.5"),
        (lambda: random.dropout(jnp.ones((2, 3)), 0.5, (3, 1)), "noise_shape", "noise_shape=(3, 1)"),
        (lambda: random.dropout(jnp.ones((2, 3)), 0.5, (1,)), "noise_shape", "inputs of shape (2, 3)"),
        (lambda: random.categorical(jnp.zeros(3), 2), "logits", "shape (3,)"),
        (lambda: random.categorical(jnp.zeros((1, 3)), -2), "num_samples", "num_samples=-2"),
        (lambda: random.shuffle(jnp.zeros((2, 3)), 2), "axis", "axis=2, x of shape (2, 3)"),
    ],
)
def test_mistakes_are_named(draw, argument, given):
    with pytest.raises(ModelError, match=f"`{argument}`") as caught:
        draw()
    assert given in caught.value.given
    assert caught.value.given and caught.value.fix


def test_nothing_is_drawn_where_nothing_depends_on_it():
    generator = random.SeedGenerator(7)
    np.testing.assert_array_equal(random.dropout(jnp.ones(3), 0, seed=generator), np.ones(3))
    np.testing.assert_array_equal(random.dropout(jnp.ones(3), 1, seed=generator), np.zeros(3))
    np.testing.assert_array_equal(generator.state[...], [7, 0])


def test_dims_of_1_are_dropped_together():
    dropped = random.dropout(jnp.ones((50, 3)), 0.5, (None, 1), seed=1)
    assert set(map(tuple, np.asarray(dropped).tolist())) == {(0.0, 0.0, 0.0), (2.0, 2.0, 2.0)}


def test_shuffling_keeps_the_elements():
    x = np.arange(60).reshape(20, 3)
    shuffled = np.asarray(random.shuffle(x, seed=1))
    np.testing.assert_array_equal(np.sort(shuffled, axis=0), x)
    assert (shuffled != x).any()


@pytest.mark.parametrize("shape", [(), [2], (np.int64(2), 3), (0, 2)])
def test_shapes(shape):
    assert random.uniform(shape, seed=1).shape == tuple(shape)
