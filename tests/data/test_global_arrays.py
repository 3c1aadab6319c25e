"""Global batches: in one process placed as by `jax.device_put`, in memory of their own; and in two processes."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import data
from keras_dist.errors import DataError, KerasDistError
from tests import processes
from tests.jobs import sharding_on


def aligned(rows):
    """Rows in memory that lies so well that XLA would use it as it is."""
    buffer = np.zeros(rows * 4 + 16, "f4")
    start = (-buffer.ctypes.data % 64) // 4
    array = buffer[start : start + rows * 4].reshape(rows, 4)
    array[:] = np.arange(rows * 4).reshape(rows, 4)
    return array


@pytest.mark.parametrize("mesh", ["data=8,model=1", "data=4,model=2", "data=1,model=8"])
def test_in_one_process_a_batch_is_placed_as_by_device_put(mesh):
    distribution = kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh(mesh)), "data")
    tree = {"x": np.random.default_rng(0).normal(size=(16, 3)), "y": (np.arange(16), None), "z": jax.numpy.ones((16,))}
    placed = data.global_batch(tree, distribution, 16)
    expected = jax.tree.map(
        lambda leaf: jax.device_put(leaf, distribution.get_data_layout(leaf.shape).backend_layout), tree
    )
    assert jax.tree.structure(placed) == jax.tree.structure(tree)
    for one, other in zip(jax.tree.leaves(placed), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype, one.sharding) == (other.shape, other.dtype, other.sharding)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("devices", [1, 8])
def test_a_batch_never_shares_the_callers_memory(devices):
    distribution = kd.DataParallel(devices=kd.list_devices()[:devices])
    for make in (aligned, lambda rows: jax.device_put(aligned(rows))):
        rows = make(16)
        expected = np.array(rows)
        placed = data.global_batch(rows, distribution, 16)
        if isinstance(rows, np.ndarray):
            rows[:] = -1
        else:
            rows.delete()
        np.testing.assert_array_equal(placed, expected)


def test_layouts_by_leaf():
    mesh = kd.DeviceMesh("data=4,model=2")
    layouts = {"x": kd.TensorLayout(("data", "model"), mesh), "y": sharding_on("data=4,model=2")}
    placed = data.global_batch({"x": np.ones((8, 2)), "y": [np.ones(8), np.ones((8, 3))]}, layouts, 8)
    assert placed["x"].sharding.spec == PartitionSpec("data", "model")
    assert [leaf.sharding.shard_shape(leaf.shape) for leaf in placed["y"]] == [(2,), (2, 3)]


@pytest.mark.parametrize(
    ("arrays", "layouts", "title"),
    [
        (np.ones(8), {"x": sharding_on}, "layouts must be a prefix"),
        (np.float32(1), sharding_on, "must have rows"),
        ([1, 2], sharding_on, r"batch\[0\] must have rows"),
        (np.ones(8), lambda mesh: kd.TensorLayout(("data", None), kd.DeviceMesh(mesh)), "at most 1 entries"),
        (np.ones(8), "data", "a layout of a batch must be"),
    ],
)
def test_batches_that_cannot_be_placed(arrays, layouts, title):
    layouts = jax.tree.map(lambda layout: layout("data=4,model=2") if callable(layout) else layout, layouts)
    with pytest.raises(DataError, match=title):
        data.global_batch(arrays, layouts, 8)


def test_all_arrays_with_other_rows_are_named():
    tree = {"x": np.ones((8, 2)), "y": np.ones(4), "z": np.ones(16)}
    with pytest.raises(KerasDistError, match=re.escape("4 rows of batch['y'], 16 rows of batch['z']")) as error:
        data.global_batch(tree, sharding_on("data=4,model=2"), 8)
    assert "8 of the 8 rows: 0-7" in error.value.summary


PROGRAM = """
import keras_dist as kd
from keras_dist import data
from keras_dist.errors import DataError

names = kd.list_devices()
assert len(names) == 8 and jax.process_index() == process
orders = {
    "contiguous": names,
    "interleaved": [name for pair in zip(names[:4], names[4:]) for name in pair],
    "odd": names[:3] + names[4:7] + [names[3], names[7]],
}
for mesh in ("data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"):
    for order, devices in orders.items():
        sizes = tuple(int(part.split("=")[1]) for part in mesh.split(","))
        distribution = kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh(sizes, ("data", "model"), devices)), "data")
        whole = np.random.default_rng(0).normal(size=(24, 2))  # float64
        own = data.process_rows(distribution, 24)
        for local in (whole[own], (whole[own], None, whole[own, 0])):
            placed = data.global_batch(local, distribution, 24)
            leaves = jax.tree.leaves(placed)
            for leaf, expected in zip(leaves, (whole, whole[:, 0])):
                assert leaf.shape == expected.shape and leaf.dtype == np.float32, (leaf.shape, leaf.dtype)
                for shard in leaf.addressable_shards:
                    np.testing.assert_array_equal(shard.data, expected[shard.index].astype("f4"))
        if order == "interleaved":  # a collective over both
            total = jax.jit(lambda x: (x * np.arange(24.0)[:, None]).sum())(leaves[0])
            np.testing.assert_allclose(total, (whole * np.arange(24.0)[:, None]).sum(), rtol=1e-4)
        half = whole[:12] if len(own) == 24 else whole
        try:
            data.global_batch(half, distribution, 24)
        except DataError as error:
            assert f"process {process}" in str(error) and f"{len(own)} of the 24 rows" in str(error), error
        else:
            raise AssertionError(f"{mesh}, {order}: not noticed")

"""


@pytest.mark.multiprocess
def test_two_processes_make_the_batches_of_one():
    processes.run(PROGRAM, devices=4)
