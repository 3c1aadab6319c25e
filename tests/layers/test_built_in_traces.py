"""Layers that are first called inside of a function that JAX traces build themselves outside of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from keras_dist import layers
from tests.layers.test_every_layer import LAYERS, made

WAYS = {
    "all": lambda call: lambda x: jax.jit(jax.vmap(jax.checkpoint(call)))(jax.tree.map(lambda a: a[None], x))[0],
    "jit": lambda call: jax.jit(call),
    "grad": lambda call: lambda x: jax.value_and_grad(lambda x: (total(out := call(x)), out), has_aux=True)(x)[0][1],
    "vmap": lambda call: lambda x: jax.tree.map(lambda y: y[0], jax.vmap(call)(jax.tree.map(lambda a: a[None], x))),
    "scan": lambda call: (
        lambda x: jax.tree.map(
            lambda y: y[0], jax.lax.scan(lambda carry, x: (carry, call(x)), 0, jax.tree.map(lambda a: a[None], x))[1]
        )
    ),
    "remat": lambda call: jax.checkpoint(call),
}


NAMES = [name for name in LAYERS if not name.startswith("Random")]  # these draw in every call


def total(tree):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


@pytest.mark.first_cases(len(NAMES))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_a_layer_is_built_once_and_outside(name, way):
    layer, shapes = made(name, LAYERS), LAYERS[name][1]
    rng = np.random.default_rng(0)
    several = shapes if isinstance(shapes, list) else [shapes]
    x = [jnp.asarray(rng.integers(0, 2, (2, *shape)), "float32") for shape in several]
    apart = name in ("MultiHeadAttention", "GroupedQueryAttention")
    call = (lambda x: layer(*x)) if apart else (lambda x: layer(x if len(x) > 1 else x[0]))
    found = WAYS[way](call)(x)
    assert layer.built and not any(isinstance(weight.value, jax.core.Tracer) for weight in layer.weights)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(call(x)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("transform", [nnx.jit, nnx.grad, nnx.remat])
def test_a_copy_that_flax_makes_builds_itself_in_its_trace_and_flax_returns_the_weights(transform):
    layer, x = layers.Dense(3), jnp.ones((2, 4))
    transform(lambda layer, x: jnp.sum(layer(x)))(layer, x)
    assert layer.built and layer.kernel.shape == (4, 3) and not isinstance(layer.kernel.value, jax.core.Tracer)
