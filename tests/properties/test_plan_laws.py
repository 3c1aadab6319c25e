"""Laws that hold for every mesh, shape and layout."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import keras_dist as kd
from tests.strategies import meshes, placed_shapes, shapes


def plan_of(mesh: kd.DeviceMesh, axes: tuple, shape: tuple[int, ...]) -> kd.LayoutPlan:
    rules = kd.LayoutMap(mesh)
    rules["w"] = axes
    return kd.ModelParallel(rules).plan({"w": jax.ShapeDtypeStruct(shape, "float32")})


@given(placed_shapes())
def test_shard_bytes_times_devices_is_total_times_replicas(case):
    mesh, axes, shape = case
    row = plan_of(mesh, axes, shape).row("w")
    shards = math.prod(mesh.axis_size(axis) for axis in axes)
    replicas = mesh.size // shards
    assert row.nbytes == 4 * math.prod(shape)
    assert row.nbytes_per_device * mesh.size == row.nbytes * replicas


@given(placed_shapes())
def test_the_plan_says_what_is_on_the_devices(case):
    mesh, axes, shape = case
    plan = plan_of(mesh, axes, shape)
    value = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    placed = plan.place({"w": value})["w"]
    assert {shard.device for shard in placed.addressable_shards} == set(mesh.backend_mesh.devices.flat)
    assert {shard.data.nbytes for shard in placed.addressable_shards} == {plan.row("w").nbytes_per_device}
    np.testing.assert_array_equal(placed, value)


SEEDS = st.integers(0, 2**32 - 1)
ON_FOUR = kd.DeviceMesh("data=4", devices=[f"cpu:{index}" for index in range(4)])


@pytest.mark.slow
@pytest.mark.soak
@example((ON_FOUR, ("data", None), (4, 3)), 1)  # whose last bits differed with jax 0.12
@given(placed_shapes(), SEEDS)
def test_birth_is_bitwise_the_same_on_every_mesh(case, seed):
    mesh, axes, shape = case

    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"w": jax.random.normal(key, shape)}

    key = jax.random.key(seed)
    one_device = plan_of(kd.DeviceMesh("data=1", devices=["cpu:0"]), (None,) * len(shape), shape)
    born, whole = plan_of(mesh, axes, shape).init(init, key), one_device.init(init, key)
    np.testing.assert_array_equal(np.asarray(born["w"]), np.asarray(whole["w"]))


@given(meshes(), st.dictionaries(st.sampled_from("abcd"), shapes, max_size=4))
def test_fully_sharded_never_takes_more_than_replicated(mesh, tree):
    structs = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in tree.items()}
    axis = mesh.axis_names[0]
    for row in kd.FullySharded(mesh, axis).plan(structs).rows:
        sharded = [dim for dim, entry in enumerate(row.axes) if entry is not None]
        divisible = [size for size in row.shape if size % mesh.axis_size(axis) == 0]
        assert [row.shape[dim] for dim in sharded] == ([max(divisible)] if divisible else [])
        shards = mesh.axis_size(axis) if divisible else 1
        assert row.nbytes_per_device * shards == row.nbytes


@given(placed_shapes(), st.data())
def test_a_layout_that_does_not_divide_never_gets_through(case, data):
    mesh, axes, shape = case
    sharded = [dim for dim, axis in enumerate(axes) if mesh.axis_size(axis) > 1]
    if not sharded:
        return
    dim = data.draw(st.sampled_from(sharded))
    uneven = tuple(size + (index == dim) for index, size in enumerate(shape))
    with pytest.raises(kd.errors.LayoutError, match=f"cannot shard dim {dim} of 'w'") as caught:
        plan_of(mesh, axes, uneven)
    found: Any = caught.value.problems
    assert [(problem.kind, problem.path) for problem in found] == [("indivisible", "w")]


@given(placed_shapes(), placed_shapes())
def test_values_survive_the_way_from_mesh_to_mesh(one, other):
    mesh, axes, shape = one
    value = jnp.arange(math.prod(shape), dtype=jnp.float32).reshape(shape)
    there = plan_of(mesh, axes, shape).place({"w": value})
    back = plan_of(other[0], (None,) * len(shape), shape).place(there)
    np.testing.assert_array_equal(back["w"], value)
