"""Pooling over windows, over all, and to a given size."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers

WINDOWS = [f"{kind}Pooling{rank}D" for kind in ("Max", "Average") for rank in (1, 2, 3)]
GLOBAL = [f"Global{name}" for name in WINDOWS]
ADAPTIVE = [f"Adaptive{name}" for name in WINDOWS]


def make(name: str, /, **options: Any) -> Any:
    if name in WINDOWS:
        options.setdefault("pool_size", 2)
    if name in ADAPTIVE:
        options.setdefault("output_size", 3)
    return getattr(layers, name)(**options)


def inputs_for(name: str) -> jnp.ndarray:
    shape = (2, *(6,) * int(name[-2]), 4)
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("name", WINDOWS + GLOBAL + ADAPTIVE)
def test_symbolic_shapes_keep_unknown_dims(name: str) -> None:
    rank = int(name[-2])
    unknown = layers.Input((*(None,) * rank, 4))
    pooled = 3 if name in ADAPTIVE else None
    expected = (None, 4) if name in GLOBAL else (None, *(pooled,) * rank, 4)
    assert make(name)(unknown).shape == expected
    first = (None, 4) if name in GLOBAL else (None, 4, *(3,) * rank)
    assert make(name, data_format="channels_first")(layers.Input((4, *(6,) * rank))).shape == first
    if name in GLOBAL:
        assert make(name, keepdims=True)(unknown).shape == (None, *(1,) * rank, 4)


@pytest.mark.parametrize("name", WINDOWS + GLOBAL + ADAPTIVE)
def test_integers_stay_integers_unless_a_mean_is_taken(name: str) -> None:
    pixels = (inputs_for(name) * 100).astype(jnp.int32)
    outputs = make(name)(pixels)
    assert outputs.dtype == (jnp.int32 if "Max" in name else jnp.float32)
    np.testing.assert_allclose(outputs, make(name)(pixels.astype(jnp.float32)), rtol=1e-5)


class Marking(layers.Layer):
    """Gives its inputs a mask: steps that are not 0."""

    supports_masking = True

    def call(self, inputs: Any) -> Any:
        return inputs * 1.0

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return jnp.any(inputs != 0, axis=-1)


class Recording(layers.Layer):
    """Returns whether its inputs have a mask."""

    supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        return jnp.array(mask is not None)


class Chain(layers.Layer):
    """Calls layers one after the other."""

    def __init__(self, *chain: Any) -> None:
        super().__init__()
        self.chain = list(chain)

    def call(self, inputs: Any) -> Any:
        for layer in self.chain:
            inputs = layer(inputs)
        return inputs


def test_the_global_mean_counts_the_steps_of_the_mask_and_ends_it() -> None:
    x = jnp.array([[[2.0], [4.0], [0.0], [0.0]], [[1.0], [2.0], [3.0], [6.0]]])
    assert Chain(Marking(), layers.GlobalAveragePooling1D())(x).tolist() == [[3.0], [3.0]]
    assert layers.GlobalAveragePooling1D()(x).tolist() == [[1.5], [3.0]]
    kept = Chain(Marking(), layers.GlobalAveragePooling1D(keepdims=True))(x)
    assert kept.tolist() == [[[3.0]], [[3.0]]]
    assert bool(Chain(Marking(), Recording())(x))
    assert not bool(Chain(Marking(), layers.GlobalAveragePooling1D(), Recording())(x))


def test_the_global_mean_of_no_steps_is_zero() -> None:
    outputs = layers.GlobalAveragePooling1D()(jnp.ones((1, 3, 2)), mask=jnp.zeros((1, 3), bool))
    assert outputs.tolist() == [[0.0, 0.0]]


def test_pools_know_their_mode() -> None:
    assert (layers.MaxPooling1D().pool_mode, layers.AveragePooling2D(2).pool_mode) == ("max", "average")
