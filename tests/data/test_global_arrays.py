"""Global batches in a job of two real processes, with four fake devices each."""

import pytest

from tests import processes

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
        total = jax.jit(lambda x: (x * np.arange(24.0)[:, None]).sum())(leaves[0])  # a collective over both
        np.testing.assert_allclose(total, (whole * np.arange(24.0)[:, None]).sum(), rtol=1e-4)
        half = whole[:12] if len(own) == 24 else whole
        try:
            data.global_batch(half, distribution, 24)
        except DataError as error:
            assert f"process {process}" in str(error) and f"{len(own)} of the 24 rows" in str(error), error
        else:
            raise AssertionError(f"{mesh}, {order}: not noticed")

        if order == "odd":
            continue
        # an epoch through the share of this process: the batches of the whole, the last one padded
        rows = np.arange(44)
        with distribution.scope():
            group = data.replica_group()
            share = data.auto_shard_dataset(rows, batch_size=16)
        spans = len(own) < 24
        assert group.count == 1 + spans, (mesh, order, group)
        if spans:
            start = 0
            for first in range(0, 44, 16):
                batch = rows[first : first + 16]
                batch = np.append(batch, [batch[-1]] * (-len(batch) % group.multiple_of))
                local = share[start : start + len(group.rows(len(batch)))]
                start += len(local)
                for shard in data.global_batch(local, distribution, len(batch)).addressable_shards:
                    np.testing.assert_array_equal(shard.data, batch[shard.index])
            assert start == len(share)
        else:
            assert share is rows

# rows in memory that XLA would use as it is
buffer = np.zeros(24 * 16 + 16, "f4")
rows = buffer[(-buffer.ctypes.data % 64) // 4 :][: 24 * 16].reshape(24, 16)
rows[:] = 7
rows = rows[: len(data.process_rows(kd.DataParallel(), 24))]
placed = data.global_batch(rows, kd.DataParallel(), 24)
rows[:] = -1
assert all((np.asarray(shard.data) == 7).all() for shard in placed.addressable_shards)
"""


@pytest.mark.multiprocess
def test_two_processes_make_the_batches_of_one():
    processes.run(PROGRAM, devices=4)
