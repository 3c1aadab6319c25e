"""Which rows of a global batch each process owns."""

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import data
from keras_dist.data import ReplicaGroup
from keras_dist.errors import DataError
from tests.jobs import CONTIGUOUS, INTERLEAVED, MESHES, ORDERS, place_of, sharding_on


def rows_by_hand(mesh, processes, global_rows, process):
    """The rows of a process, from the positions of its devices in the mesh: shard 0 is along the first row of it."""
    grid = np.arange(8).reshape([int(size[5:].strip("=")) for size in mesh.split(",")])
    each = global_rows // len(grid)
    held = [shard for shard, devices in enumerate(grid) if any(processes[device] == process for device in devices)]
    return [row for shard in held for row in range(shard * each, (shard + 1) * each)]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_process_owns_the_rows_of_its_devices(mesh, order, count):
    processes = ORDERS[order][count]
    for process in range(count):
        rows = data.process_rows(sharding_on(mesh), 16, process, place_of(processes))
        assert rows.tolist() == rows_by_hand(mesh, processes, 16, process)


def test_a_batch_over_several_axes():
    processes = place_of(CONTIGUOUS[2])
    assert data.process_rows(sharding_on("data=2,model=4", ("data", "model")), 8, 0, processes).tolist() == [0, 1, 2, 3]
    assert data.process_rows(sharding_on("data=2,model=4", ("model", "data")), 8, 0, processes).tolist() == [0, 2, 4, 6]


@hypothesis.given(
    mesh=st.sampled_from(MESHES),
    batch=st.sampled_from(["data", "model", ("data", "model"), ("model", "data"), None]),
    processes=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    each=st.integers(1, 3),
)
def test_processes_of_any_order_own_what_jax_puts_on_their_devices(mesh, batch, processes, each):
    sharding = sharding_on(mesh, batch)
    array = jax.device_put(np.arange(8 * each), sharding)
    for process in range(4):
        held = {row for shard in array.addressable_shards if processes[shard.device.id] == process
                for row in np.asarray(shard.data).tolist()}  # fmt: skip
        assert data.process_rows(sharding, 8 * each, process, place_of(processes)).tolist() == sorted(held)


def test_layouts_of_every_kind_say_the_same():
    mesh = kd.DeviceMesh("data=4,model=2")
    kinds = [
        sharding_on("data=4,model=2"),
        jax.sharding.NamedSharding(mesh.backend_mesh, PartitionSpec("data", "model")),
        kd.TensorLayout(("data", None, "model"), mesh),
        kd.ModelParallel(kd.LayoutMap(mesh), "data"),
    ]
    for layout in kinds:
        assert data.process_rows(layout, 8, 1, place_of(CONTIGUOUS[4])).tolist() == [2, 3]
    alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert data.process_rows(alone, 3).tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="no layout of a batch"):
        data.process_rows("data", 8)


@pytest.mark.parametrize("rows", [7, 0, -8, 8.0])
def test_rows_that_the_mesh_does_not_divide(rows):
    with pytest.raises(DataError, match="cannot be divided") as error:
        data.process_rows(sharding_on("data=8,model=1"), rows)
    assert error.value.given == f"{rows!r} rows"
    assert error.value.fix.endswith("8")
    with pytest.raises(DataError, match="cannot be divided"):
        ReplicaGroup.numbered(8, 0).rows(rows)


def test_a_process_without_devices_in_the_mesh():
    assert data.process_rows(sharding_on("data=8,model=1"), 8, 3, place_of(CONTIGUOUS[2])).tolist() == []
    with pytest.raises(DataError, match="process 3 owns no row"):
        data.replica_group(sharding_on("data=8,model=1"), 3, place_of(CONTIGUOUS[2]))
    with pytest.raises(DataError, match="process 3 owns no row"):
        data.check_process_rows(0, sharding_on("data=8,model=1"), 8, 3, place_of(CONTIGUOUS[2]))


def test_wrong_ownership_is_an_error():
    # the model axis across processes: of 64 rows each of two processes owns all, and not 32 as one may think
    sharding, processes = sharding_on("data=1,model=8"), place_of(CONTIGUOUS[2])
    data.check_process_rows(64, sharding, 64, 1, processes)
    with pytest.raises(DataError, match="process 1") as error:
        data.check_process_rows(32, sharding, 64, 1, processes, name="x")
    assert error.value.given == "32 rows of x"
    assert error.value.expected == "64 of the 64 rows: 0-63"
    assert "process_rows" in error.value.fix
    with pytest.raises(DataError, match=r"4 of the 8 rows: 0, 2, 4, \.\.\."):
        data.check_process_rows(8, sharding_on("data=8,model=1"), 8, 0, place_of(INTERLEAVED[2]))
    with pytest.raises(DataError, match=r"12 of the 16 rows: 0-3, 6-9, 12-15\n"):
        data.check_process_rows(16, sharding_on("data=8,model=1"), 16, 0, place_of([0, 0, 1, 0, 0, 1, 0, 0]))
