"""Layers that are first called inside of a function that JAX traces build themselves outside of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import keras_dist as kd
from keras_dist import layers
from tests.layers.test_every_layer import LAYERS, ROW, ROWS, made


class HasModule(layers.Layer):
    """A layer with modules of Flax, made in the constructor and in `build`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    def build(self, input_shape):
        self.second = nnx.Linear(3, 2, rngs=nnx.Rngs(1))

    def call(self, inputs):
        return self.second(self.first(inputs))


class Steps(layers.Layer):
    """One step of a cell."""

    def __init__(self, cell, **kwargs):
        super().__init__(**kwargs)
        self.cell = cell

    def call(self, inputs):
        return self.cell(inputs, self.cell.get_initial_state(inputs.shape[0]))[0]


def init_of_matrix(rng, inputs):
    return jax.random.normal(rng, (inputs.shape[-1], 3))


TABLE = LAYERS | {
    "ConvLSTM1D": ((2, 3), (3, 6, 2)),
    "ConvLSTM2D": ((2, 3), (3, 6, 5, 2)),
    "ConvLSTM3D": ((2, 2), (2, 4, 4, 4, 2)),
    "Discretization": (([0.5],), ROW),
    "FlaxLayer": (lambda: layers.FlaxLayer(linen.Dense(3)), ROW),
    "GRUCell": (lambda: Steps(layers.GRUCell(3)), ROW),
    "HasModule": (HasModule, ROW),
    "JaxLayer": (lambda: layers.JaxLayer(lambda params, inputs: inputs @ params, init_fn=init_of_matrix), ROW),
    "LSTMCell": (lambda: Steps(layers.LSTMCell(3)), ROW),
    "LoRA": (lambda: layers.Dense(3, lora_rank=2), ROW),
    "NNXLayer": (lambda: layers.NNXLayer(nnx.Linear(4, 3, rngs=nnx.Rngs(0))), ROW),
    "Pipeline": (lambda: layers.Pipeline([layers.Rescaling(2.0), layers.Dense(3)]), ROW),
    "Sequential": (lambda: kd.Sequential([layers.Dense(5), layers.BatchNormalization(), layers.Dense(3)]), ROW),
    "SimpleRNNCell": (lambda: Steps(layers.SimpleRNNCell(3)), ROW),
    "Stack": (lambda: layers.Stack(layers.Dense(4, "tanh"), 4, repeats=2, remat=True), ROW),
    "StackedRNNCells": (lambda: layers.RNN(layers.StackedRNNCells([layers.GRUCell(3), layers.LSTMCell(2)])), ROWS),
}

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


NAMES = list(TABLE)
UNCALLED = {"Hashing", "InputLayer", "IntegerLookup", "Layer", "StringLookup", "TextVectorization", "Wrapper"}
"""Base classes, and layers that run on the host."""


def test_every_exported_layer_is_in_the_table():
    exported = [value for value in map(vars(layers).get, layers.__all__) if isinstance(value, type)]
    names = {value.__name__ for value in exported if issubclass(value, layers.Layer)}
    assert names - {*TABLE} == UNCALLED


def total(tree):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


@pytest.mark.first_cases(len(NAMES))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_a_layer_is_built_once_and_outside(name, way):
    layer, shapes = made(name, TABLE), TABLE[name][1]
    rng = np.random.default_rng(0)
    several = shapes if isinstance(shapes, list) else [shapes]
    x = [jnp.asarray(rng.integers(0, 2, (2, *shape)), "float32") for shape in several]
    apart = name in ("MultiHeadAttention", "GroupedQueryAttention")
    options = {"training": False} if name.startswith("Random") else {}  # else they draw in every call
    call = (lambda x: layer(*x)) if apart else (lambda x: layer(x if len(x) > 1 else x[0], **options))
    if name == "Discretization" and way == "grad":
        way = "jit"  # it returns integers
    found = WAYS[way](call)(x)
    assert layer.built and not any(isinstance(variable.value, jax.core.Tracer) for variable in layer.variables)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(call(x)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("transform", [nnx.jit, nnx.grad, nnx.remat])
def test_a_copy_that_flax_makes_builds_itself_in_its_trace_and_flax_returns_the_weights(transform):
    layer, x = layers.Dense(3), jnp.ones((2, 4))
    transform(lambda layer, x: jnp.sum(layer(x)))(layer, x)
    assert layer.built and layer.kernel.shape == (4, 3) and not isinstance(layer.kernel.value, jax.core.Tracer)
