from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.errors import LayoutError

X = np.arange(64, dtype=np.float32).reshape(8, 8)
FORMS = ["layout", "sharding", "format"]


def in_form(form: str, mesh: kd.DeviceMesh) -> Any:
    """`("data", None)` as keras_dist's layout, or as what JAX takes in its place."""
    sharding = NamedSharding(mesh.backend_mesh, P("data", None))
    return {"layout": kd.TensorLayout(("data", None), mesh), "sharding": sharding, "format": Format(sharding=sharding)}[
        form
    ]


def assert_cut_over_data(array: jax.Array) -> None:
    np.testing.assert_array_equal(array, X)
    assert {shard.data.shape for shard in array.addressable_shards} == {(4, 8)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tensor", [X, jnp.asarray(X)], ids=["numpy", "jax"])
def test_eagerly(mesh: kd.DeviceMesh, form: str, tensor: Any) -> None:
    assert_cut_over_data(kd.distribute_tensor(tensor, in_form(form, mesh)))


@pytest.mark.parametrize("form", FORMS)
def test_inside_jit(mesh: kd.DeviceMesh, form: str) -> None:
    layout = in_form(form, mesh)
    assert_cut_over_data(jax.jit(lambda x: kd.distribute_tensor(x, layout))(X))


@pytest.mark.parametrize("form", FORMS)
def test_an_array_that_lies_there_already_is_returned(mesh: kd.DeviceMesh, form: str) -> None:
    placed = kd.distribute_tensor(X, in_form(form, mesh))
    assert kd.distribute_tensor(placed, in_form("layout", mesh)) is placed


def test_a_layout_without_a_mesh() -> None:
    with pytest.raises(LayoutError, match="device mesh is not set"):
        kd.distribute_tensor(X, kd.TensorLayout(("data", None)))
