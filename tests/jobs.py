"""Fake jobs of several processes, which share the 8 fake devices."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
from jax.sharding import PartitionSpec

import keras_dist as kd
from keras_dist import data
from keras_dist.errors import DataError
from keras_dist.jobs import job

CONTIGUOUS = {count: [device * count // 8 for device in range(8)] for count in (1, 2, 4, 8)}
INTERLEAVED = {count: [device % count for device in range(8)] for count in (1, 2, 4, 8)}
MESHES = ["data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"]


def place_of(processes):
    """`process_of` for fake processes: indices by the number of the device."""
    return lambda device: processes[device.id]


@functools.cache
def sharding_on(mesh, batch="data"):
    return jax.sharding.NamedSharding(kd.DeviceMesh(mesh).backend_mesh, PartitionSpec(batch))


def be(monkeypatch, processes, index):
    """Let this be process `index` of a fake job, whose devices belong to these processes, by their numbers."""
    monkeypatch.setattr(job, "process_count", lambda: len(set(processes)))
    monkeypatch.setattr(job, "process_index", lambda: index)
    monkeypatch.setattr(job, "process_of", place_of(processes))


@st.composite
def jobs(draw):
    """A mesh, and its 8 devices in up to 4 processes, in any order that gives groups."""
    mesh = draw(st.sampled_from(MESHES))
    count = draw(st.sampled_from([1, 2, 4]))
    processes = draw(st.sampled_from([CONTIGUOUS[count], INTERLEAVED[count], [2, 2, 2, 2, 2, 2, 0, 1]]))
    groups = {}
    try:
        groups = data.replica_groups(sharding_on(mesh), place_of(processes))
    except DataError:
        hypothesis.reject()
    return sharding_on(mesh), place_of(processes), groups
