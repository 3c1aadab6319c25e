"""Pooling over windows, over all, and to a given size; `tests/parity` compares values with Keras."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Max", "Average"])
def test_integers_stay_integers_unless_a_mean_is_taken(kind: str, rank: int) -> None:
    pixels = jnp.asarray(np.random.default_rng(0).integers(-100, 100, (2, *(6,) * rank, 4)), jnp.int32)
    for prefix, sizes in (("", (2,)), ("Global", ()), ("Adaptive", (3,))):
        layer = getattr(layers, f"{prefix}{kind}Pooling{rank}D")(*sizes)
        outputs = layer(pixels)
        assert outputs.dtype == (jnp.int32 if kind == "Max" else jnp.float32)
        np.testing.assert_allclose(outputs, layer(pixels.astype(jnp.float32)), rtol=1e-5)


def test_the_global_mean_of_no_steps_is_zero() -> None:
    outputs = layers.GlobalAveragePooling1D()(jnp.ones((1, 3, 2)), mask=jnp.zeros((1, 3), bool))
    assert outputs.tolist() == [[0.0, 0.0]]
