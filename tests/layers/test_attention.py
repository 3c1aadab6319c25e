"""MultiHeadAttention, GroupQueryAttention: layouts, meshes, edges; `tests/parity` compares values with Keras."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_dist import layers
from keras_dist.errors import ModelError
from keras_dist.variables import call_context
from tests.training.collectives import collectives_of

MADE: dict[str, Any] = {
    "multi": lambda **options: layers.MultiHeadAttention(4, 2, **options),
    "gate": lambda **options: layers.MultiHeadAttention(4, 2, value_dim=3, use_gate=True, **options),
    "group": lambda **options: layers.GroupQueryAttention(2, 4, 2, **options),
}


def draw(*shape: int, seed: int = 0) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("kind", MADE)
def test_layouts_reach_the_projections(kind: str) -> None:
    layer = MADE[kind](
        kernel_layout=(None, "model", None),
        bias_layout=("model", None),
        output_kernel_layout=("model", None, None),
        output_bias_layout=("data",),
    )
    layer.build((2, 3, 6), (2, 5, 6))
    for one in (layer.query_dense, layer.key_dense, layer.value_dense):
        assert one.kernel.get_metadata()["layout"] == (None, "model", None)
        assert one.bias.get_metadata()["layout"] == ("model", None)
    assert layer.output_dense.kernel.get_metadata()["layout"] == ("model", None, None)
    assert layer.output_dense.bias.get_metadata()["layout"] == ("data",)


@pytest.mark.parametrize(("kind", "scores"), [("multi", False), ("gate", True), ("group", False)])
def test_sharded_heads_cost_one_sum(kind: str, scores: bool) -> None:
    layer, x = MADE[kind](), draw(4, 3, 8)
    layer.build(x.shape, x.shape)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    specs = {"query": 1, "key": 1, "gate": 1, "value": 1, "attention_output": 0}

    def place(parts: Any, value: Any) -> Any:
        heads = specs[parts[1]] - (parts[-1] == "bias")
        axes = [None] * value.ndim
        if heads >= 0:
            axes[heads] = "model"
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes)))

    graph, state = nnx.split(layer)
    placed = nnx.from_flat_state(
        [(parts, leaf.replace(place(parts, leaf[...]))) for parts, leaf in nnx.to_flat_state(state)]
    )

    @jax.jit
    def call(state: Any, x: Any) -> Any:
        return nnx.merge(graph, state, copy=True)(x, x, use_causal_mask=True, return_attention_scores=scores)

    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    found, expected = call(placed, spread), call(state, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)
    assert [kind for kind, _ in collectives_of(call.lower(placed, spread))] == ["all-reduce"]


def compiled(layer: Any, *shapes: Any, **options: Any) -> Any:
    """Build a layer for these shapes, and return its call as one program."""
    layer.build(*shapes)
    graph, state = nnx.split(layer)
    return jax.jit(lambda *inputs: nnx.merge(graph, state, copy=True)(*inputs, **options))


def test_a_given_mask_of_the_query_counts() -> None:
    x, mask = draw(1, 3, 6), jnp.array([[True, False, True]])
    call = compiled(layers.MultiHeadAttention(2, 2), x.shape, x.shape, query_mask=mask, return_attention_scores=True)
    _, scores = call(x, x)
    np.testing.assert_array_equal(scores[:, :, 1], 0)


def test_regularizers_of_outputs_count_for_each_projection() -> None:
    layer = MADE["multi"](activity_regularizer=lambda outputs: jnp.float32(1))
    with call_context.entered(False) as context:
        layer(draw(2, 3, 6), draw(2, 3, 6))
        assert len(context.losses) == 4


def test_a_call_that_lacks_an_input_names_layer_and_input() -> None:
    with pytest.raises(ModelError, match=r"(?s)the call of layer 'multi_head_attention' lacks 'value'.*query, value"):
        layers.MultiHeadAttention(2, 2)(np.ones((1, 2, 3)))


def test_a_built_layer_can_be_called_in_a_compiled_function() -> None:
    layer = layers.MultiHeadAttention(2, 2, dropout=0.5, seed=0)
    layer.build((2, 3, 4), (2, 3, 4))
    assert all(member.built for member in layer._members.values())
    x = draw(2, 3, 4)
    compiled = jax.jit(lambda x: layer(x, x))(x)
    np.testing.assert_allclose(compiled, layer(x, x), rtol=1e-5)
