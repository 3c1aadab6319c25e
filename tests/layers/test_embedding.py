"""Embedding, ReversibleEmbedding, EinsumDense."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import layers, models
from keras_dist.variables import call_context

ROWS = np.array([[0, 4, 2]])


def test_one_table_both_ways_in_a_model() -> None:
    inputs = layers.Input((3,), dtype="int32")
    embedding = layers.ReversibleEmbedding(5, 4)
    model = models.Model(inputs, embedding(embedding(inputs), reverse=True))
    (table,) = model.get_weights()
    np.testing.assert_allclose(model.predict(ROWS, verbose=0), table[ROWS] @ table.T, rtol=1e-5)


def test_zeros_are_masked_and_the_mask_does_not_come_back() -> None:
    embedding = layers.ReversibleEmbedding(5, 3, mask_zero=True)
    with call_context.entered() as context:
        vectors = embedding(jnp.asarray(ROWS))
        assert context.mask_of(vectors).tolist() == [[False, True, True]]
        assert context.mask_of(embedding(vectors, reverse=True)) is None


def test_layouts_reach_the_weights() -> None:
    embedding = layers.ReversibleEmbedding(
        5, 3, tie_weights=False, embeddings_layout=("m", None), reverse_embeddings_layout=(None, "m")
    )
    embedding(ROWS)
    assert embedding.embeddings.get_metadata()["layout"] == ("m", None)
    assert embedding.reverse_embeddings.get_metadata()["layout"] == (None, "m")
    dense = layers.EinsumDense("ab,bc->ac", 4, bias_axes="c", kernel_layout=(None, "m"), bias_layout=("m",))
    dense(jnp.ones((2, 3)))
    assert dense.kernel.get_metadata()["layout"] == (None, "m")
    assert dense.bias.get_metadata()["layout"] == ("m",)


def test_large_integers_stay_themselves_in_half_precision() -> None:
    table = np.arange(1002, dtype="float32")[:, None]
    layer = layers.Embedding(1002, 1, weights=table, dtype="bfloat16")
    outputs = layer(jnp.array([1001.0, 999.0]))
    assert outputs.dtype == jnp.bfloat16
    np.testing.assert_array_equal(outputs, table[[1001, 999]].astype(jnp.bfloat16))


@pytest.mark.parametrize("as_list", [False, True])
def test_weights_that_are_given_come_into_a_model_and_not_into_configs(as_list: bool) -> None:
    table = np.arange(15, dtype="float32").reshape(5, 3)
    layer = layers.Embedding(5, 3, weights=[table] if as_list else table)
    np.testing.assert_array_equal(layer.get_weights()[0], table)
    model = models.Sequential([layers.Input((3,), dtype="int32"), layer])
    np.testing.assert_array_equal(model.predict(ROWS, verbose=0), table[ROWS])
    assert "weights" not in layer.get_config()


def test_fans_follow_from_the_equation() -> None:
    layer = layers.EinsumDense("abc,cde->abde", (None, 100, 10), kernel_initializer="he_normal")
    layer(jnp.ones((1, 1, 50)))
    assert np.std(layer.get_weights()[0]) == pytest.approx((2 / 50) ** 0.5, rel=0.05)
