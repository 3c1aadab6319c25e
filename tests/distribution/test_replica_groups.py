"""Processes that own the same rows."""

import numpy as np
import pytest

from keras_dist import data
from keras_dist.errors import DataError
from tests.jobs import CONTIGUOUS, INTERLEAVED, place_of, sharding_on


@pytest.mark.parametrize(
    ("mesh", "processes", "groups"),
    [
        ("data=8,model=1", CONTIGUOUS[4], [[0], [1], [2], [3]]),
        ("data=4,model=2", CONTIGUOUS[4], [[0], [1], [2], [3]]),  # the model axis inside of processes
        ("data=4,model=2", CONTIGUOUS[8], [[0, 1], [2, 3], [4, 5], [6, 7]]),  # across them
        ("data=2,model=4", CONTIGUOUS[4], [[0, 1], [2, 3]]),
        ("data=2,model=4", CONTIGUOUS[2], [[0], [1]]),
        ("data=2,model=4", INTERLEAVED[4], [[0, 1, 2, 3]]),
        ("data=4,model=2", INTERLEAVED[4], [[0, 1], [2, 3]]),
        ("data=1,model=8", CONTIGUOUS[8], [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("data=8,model=1", [1, 1, 1, 1, 1, 0, 0, 0], [[1], [0]]),  # ordered by rows, with parts of different sizes
    ],
)
def test_replica_groups_are_processes_with_the_same_rows(mesh, processes, groups):
    assert [list(group) for group in data.replica_groups(sharding_on(mesh), place_of(processes))] == groups
    for index, group in enumerate(groups):
        for process in group:
            found = data.replica_group(sharding_on(mesh), process, place_of(processes))
            assert (found.count, found.index, found.processes) == (len(groups), index, tuple(group))
            owned = data.process_rows(sharding_on(mesh), 24, process, place_of(processes))
            np.testing.assert_array_equal(found.rows(24), owned)


def test_partly_shared_rows_have_no_groups():
    processes = place_of([0, 1, 0, 2, 1, 1, 2, 2])
    with pytest.raises(DataError, match="share some of their rows") as error:
        data.replica_groups(sharding_on("data=4,model=2"), processes)
    assert "processes [0]: shards [0, 1]" in error.value.given
    # the rows of each are right all the same
    assert data.process_rows(sharding_on("data=4,model=2"), 4, 2, processes).tolist() == [1, 3]
