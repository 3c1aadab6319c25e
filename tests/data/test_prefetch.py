"""`prefetch_to_mesh`: batches in order, on the mesh, asked for no earlier than need be."""

import jax
import numpy as np
import pytest
import scipy.sparse

from keras_dist.data import DataLoader, prefetch_to_mesh
from keras_dist.errors import DataError
from tests import layouts


@pytest.mark.parametrize("name", ["one device", "data=8,model=1", "fully data=2,model=4"])
def test_the_batches_are_those_of_the_loader_sharded_where_that_divides(name):
    distribution = layouts.on(name, {})
    x, y = np.arange(40.0, dtype="float32").reshape(20, 2), np.arange(20)
    found = list(prefetch_to_mesh(DataLoader(x, y, batch_size=8), distribution))
    assert [len(batch[0]) for batch in found] == [8, 8, 4]
    assert np.array_equal(np.concatenate([batch[0] for batch in found]), x)
    assert np.array_equal(np.concatenate([batch[1] for batch in found]), y)
    for array in jax.tree.leaves(found[:2]):
        assert array.sharding == distribution.get_data_layout(array.shape).backend_layout
    shards = distribution.device_mesh.axis_size(distribution.get_data_layout((4,)).axes[0])
    assert found[2][0].sharding.is_fully_replicated == (shards in (1, 8))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_more_are_asked_for_than_placed(size):
    asked = []

    def batches():
        for number in range(6):
            asked.append(number)
            yield np.full(8, number)

    for number, batch in enumerate(prefetch_to_mesh(batches(), layouts.one_device(), size)):
        assert batch[0] == number
        assert len(asked) == min(number + size, 6)


def test_a_buffer_may_be_refilled():
    buffer = np.empty(1024, np.float32)

    def batches():
        for number in range(20):
            buffer[:] = number
            yield buffer

    found = list(prefetch_to_mesh(batches(), layouts.one_device()))
    assert [batch[0].item() for batch in found] == list(range(20))


def test_sparse_rows_become_dense():
    matrix = scipy.sparse.random(8, 3, 0.5, "csr", np.float32, np.random.default_rng(0))
    (found,) = prefetch_to_mesh([matrix], layouts.on("data=8,model=1", {}))
    assert np.array_equal(found, matrix.toarray())


@pytest.mark.parametrize("size", [0, True, 1.5])
def test_a_size_is_a_number_of_batches(size):
    with pytest.raises(DataError, match="`size` must be an integer of at least 1"):
        prefetch_to_mesh([], layouts.one_device(), size)


def test_what_is_no_array_is_refused():
    with pytest.raises(DataError, match="a leaf of batch 1 must be an array"):
        list(prefetch_to_mesh([np.ones(2), "ab"], layouts.one_device()))
