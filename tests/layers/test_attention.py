"""Attention, AdditiveAttention, MultiHeadAttention, GroupQueryAttention."""

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
LISTED: dict[str, Any] = {
    "dot": lambda **options: layers.Attention(use_scale=True, **options),
    "concat": lambda **options: layers.Attention(score_mode="concat", **options),
    "additive": lambda **options: layers.AdditiveAttention(**options),
}


def draw(*shape: int, seed: int = 0) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_weights_have_the_paths_and_shapes_of_keras() -> None:
    layer = MADE["gate"]()
    layer.build((2, 3, 6), (2, 5, 7), (2, 5, 8))
    assert [(weight.path, weight.shape) for weight in layer.weights] == [
        ("query/kernel", (6, 4, 2)),
        ("query/bias", (4, 2)),
        ("key/kernel", (8, 4, 2)),
        ("key/bias", (4, 2)),
        ("gate/kernel", (6, 4, 3)),
        ("gate/bias", (4, 3)),
        ("value/kernel", (7, 4, 3)),
        ("value/bias", (4, 3)),
        ("attention_output/kernel", (4, 3, 6)),
        ("attention_output/bias", (6,)),
    ]
    grouped = MADE["group"](use_bias=False)
    grouped.build((2, 3, 6), (2, 5, 6))
    assert [(weight.path, weight.shape) for weight in grouped.weights] == [
        ("query/kernel", (6, 4, 2)),
        ("key/kernel", (6, 2, 2)),
        ("value/kernel", (6, 2, 2)),
        ("attention_output/kernel", (4, 2, 6)),
    ]
    for kind, expected in {
        "dot": [("scale", ())],
        "concat": [("concat_score_weight", ())],
        "additive": [("scale", (6,))],
    }.items():
        listed = LISTED[kind]()
        listed.build([(2, 3, 6), (2, 5, 6)])
        assert [(weight.path, weight.shape) for weight in listed.weights] == expected


def test_symbolic_shapes_keep_unknown_dims() -> None:
    query, value = layers.Input((None, 6)), layers.Input((5, 6))
    for make in MADE.values():
        assert make()(query, value).shape == (None, None, 6)
        outputs, scores = make()(value, value, return_attention_scores=True)
        assert (outputs.shape, scores.shape) == ((None, 5, 6), (None, 4, 5, 5))
    assert layers.MultiHeadAttention(4, 2, output_shape=(3, 2))(query, value).shape == (None, None, 3, 2)
    for make in LISTED.values():
        assert make()([query, value]).shape == (None, None, 6)


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


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("scores", [False, True])
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


def test_nothing_comes_from_masked_positions() -> None:
    query, value, other = draw(2, 3, 6), draw(2, 4, 6), draw(2, 4, 6, seed=1)
    mask = jnp.array([[True, True, False, False], [True, False, True, False]])
    mixed = jnp.where(mask[..., None], value, other)
    for make in MADE.values():
        for scores in (False, True):
            call = compiled(make(), query.shape, value.shape, value_mask=mask, return_attention_scores=scores)
            found = [call(query, tensor) for tensor in (value, mixed)]
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), *found)
    for make in LISTED.values():
        call = compiled(make(), [query.shape, value.shape], mask=[None, mask])
        np.testing.assert_allclose(call([query, value]), call([query, mixed]), rtol=1e-6, atol=1e-6)


def test_no_position_sees_a_later_one() -> None:
    x, grid = draw(1, 4, 6), draw(1, 3, 4, 6)
    columns = layers.MultiHeadAttention(2, 2, attention_axes=2)
    cases = [*((make(), x, np.s_[:, :2], 0.0) for make in MADE.values()), (columns, grid, np.s_[:, :, :3], 1e-6)]
    for layer, given, first, atol in cases:
        changed = np.zeros_like(given)
        changed[first] = given[first]
        call = compiled(layer, given.shape, given.shape, use_causal_mask=True)
        np.testing.assert_allclose(call(given, given)[first], call(changed, changed)[first], rtol=1e-5, atol=atol)


def test_a_window_reaches_so_far() -> None:
    x = draw(1, 5, 6)
    layer = layers.MultiHeadAttention(2, 2, sliding_window=2)
    _, scores = compiled(layer, x.shape, x.shape, return_attention_scores=True)(x, x)
    near = np.abs(np.arange(5)[:, None] - np.arange(5)) < 2
    np.testing.assert_array_equal(np.asarray(scores[0, 0]) > 0, near)


def test_a_given_mask_of_the_query_counts() -> None:
    x, mask = draw(1, 3, 6), jnp.array([[True, False, True]])
    call = compiled(layers.MultiHeadAttention(2, 2), x.shape, x.shape, query_mask=mask, return_attention_scores=True)
    _, scores = call(x, x)
    np.testing.assert_array_equal(scores[:, :, 1], 0)


def test_masks_of_tensors_reach_attention_and_go_on() -> None:
    query, value = draw(2, 3, 6), draw(2, 4, 6)
    query_mask, value_mask = jnp.array([[True, True, False]] * 2), jnp.array([[True, False, True, True]] * 2)
    for kind, make in {**MADE, **LISTED}.items():
        layer, is_apart = make(), kind in MADE
        layer.build(*[query.shape, value.shape] if is_apart else [[query.shape, value.shape]])
        parts = nnx.split(layer)
        names = {"query_mask": query_mask, "value_mask": value_mask} if is_apart else {"mask": [query_mask, value_mask]}

        @jax.jit
        def call(*inputs: Any, parts: Any = parts, is_apart: bool = is_apart, names: Any = names) -> Any:
            layer, given = nnx.merge(*parts, copy=True), inputs if is_apart else [list(inputs)]
            with call_context.entered(False) as context:
                context.set_mask(list(inputs), [query_mask, value_mask])
                outputs = layer(*given)
                assert context.mask_of(outputs) is query_mask
            return outputs, layer(*given, **names)

        np.testing.assert_array_equal(*call(query, value))


def test_regularizers_of_outputs_count_for_each_projection() -> None:
    layer = MADE["multi"](activity_regularizer=lambda outputs: jnp.float32(1))
    with call_context.entered(False) as context:
        layer(draw(2, 3, 6), draw(2, 3, 6))
        assert len(context.losses) == 4


X = np.ones((2, 3, 6), np.float32)


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
