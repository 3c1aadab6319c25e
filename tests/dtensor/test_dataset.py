"""Batches of data sets as arrays with layouts."""

import jax
import numpy as np
import pytest

from keras_dist import data, dtensor
from keras_dist.dtensor import UNSHARDED, DTensorDataset, Layout
from keras_dist.errors import DataError, LayoutError
from tests import processes

X = np.arange(100 * 4, dtype=np.float32).reshape(100, 4)
Y = np.arange(100)


class Tensor:
    """An array of another library."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = np.asarray(array), array.shape, array.dtype

    def __array__(self, dtype=None, copy=None):
        return self.array


class Batches(data.PyDataset):
    """A sequence without an end to iterate to."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[16 * index : 16 * index + 16], Y[16 * index : 16 * index + 16]


@pytest.fixture(scope="module")
def layouts(mesh):
    return Layout(["batch", "model"], mesh), Layout(["batch"], mesh)


def examples():
    return list(zip(X, Y, strict=True))


def in_batches(rows):
    return [(X[start : start + rows], Y[start : start + rows]) for start in range(0, 100, rows)]


@pytest.mark.parametrize(
    ("dataset", "is_batched"),
    [
        (examples, False),
        (lambda: iter(examples()), False),
        (lambda: [(Tensor(x), int(y)) for x, y in examples()], False),
        (lambda: [(x.tolist(), y) for x, y in examples()], False),
        (lambda: in_batches(16), True),
        (lambda: in_batches(32), True),
        (lambda: Batches(), True),
    ],
    ids=["rows", "iterator", "tensors", "lists", "batches of replicas", "whole batches", "sequence"],
)
@pytest.mark.parametrize("prefetch", [None, 2])
def test_batches_have_the_layouts_in_order_without_the_remainder(mesh, layouts, dataset, is_batched, prefetch):
    batches = list(
        DTensorDataset(
            dataset(), mesh=mesh, layouts=layouts, global_batch_size=32, dataset_already_batched=is_batched,
            batch_dim="batch", prefetch=prefetch,
        )
    )  # fmt: skip
    assert len(batches) == 3
    for index, (x, y) in enumerate(batches):
        np.testing.assert_array_equal(x, X[32 * index : 32 * index + 32])
        np.testing.assert_array_equal(y, Y[32 * index : 32 * index + 32])
        dtensor.check_layout(x, layouts[0])
        dtensor.check_layout(y, layouts[1])


def test_any_structure_again_and_again(mesh):
    layouts = {"image": Layout([UNSHARDED, "model"], mesh), "more": [Layout.replicated(mesh, 1)]}
    rows = [{"more": [y], "image": x} for x, y in examples()]
    batches = DTensorDataset(rows, mesh=mesh, layouts=layouts, global_batch_size=50)
    assert len(batches) == 2
    for _ in range(2):
        first, second = batches
        np.testing.assert_array_equal(first["image"], X[:50])
        np.testing.assert_array_equal(second["more"][0], Y[50:])
    (alone, *_) = DTensorDataset(X, mesh=mesh, layouts=layouts["image"], global_batch_size=8)
    np.testing.assert_array_equal(alone, X[:8])


def test_it_prefetches(mesh, layouts):
    taken = []

    def rows():
        for row in examples():
            taken.append(row)
            yield row

    next(iter(DTensorDataset(rows(), mesh=mesh, layouts=layouts, global_batch_size=8, prefetch=2)))
    assert len(taken) == 24


def test_a_buffer_that_is_filled_again(mesh):
    buffer = np.zeros((8, 1024), np.float32)

    def batches():
        for number in range(3):
            buffer[:] = number
            yield buffer

    layout = Layout(["batch", UNSHARDED], mesh)
    found = list(
        DTensorDataset(batches(), mesh=mesh, layouts=layout, global_batch_size=8, dataset_already_batched=True)
    )
    assert [np.unique(array).tolist() for array in found] == [[0], [1], [2]]


def test_lengths_that_are_not_known(mesh, layouts):
    rows = DTensorDataset(iter(examples()), mesh=mesh, layouts=layouts, global_batch_size=8)
    batches = DTensorDataset(
        in_batches(8), mesh=mesh, layouts=layouts, global_batch_size=8, dataset_already_batched=True
    )
    for dataset in (rows, batches):
        with pytest.raises(TypeError):
            len(dataset)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"global_batch_size": 7}, LayoutError, "`global_batch_size` must be a multiple of 2"),
        ({"global_batch_size": 0}, DataError, "`global_batch_size`"),
        ({"batch_dim": "model"}, LayoutError, r"batch\[0\] must begin with 'model' for the rows"),
        ({"mesh": lambda line: line}, LayoutError, r"batch\[0\] is on another mesh"),
        ({"prefetch": -1}, DataError, "`prefetch`"),
        ({"dataset": [{"x": X[0], "y": 1}]}, DataError, "must have the structure of the layouts"),
        ({"dataset": 3}, DataError, "`dataset`"),
        ({"dataset": [(X[0], 1), (X[1, :2], 2)]}, DataError, r"batch\[0\] of example 1 differs from the others"),
        ({"dataset": [(X[0], 2**40)] * 4}, DataError, r"batch\[1\] holds an integer that does not fit"),
        ({"dataset": [(X[0, :3], 1)] * 4}, LayoutError, r"cannot shard dim 1 of 'batch\[0\]'"),
        ({"dataset": [(X[0, 0], 1)] * 4}, LayoutError, r"the layout of 'batch\[0\]' has the wrong rank"),
        ({"dataset": in_batches(3), "dataset_already_batched": True}, DataError, "must add up to `global_batch_size`"),
        ({"dataset": [(X[:4], Y[:2])], "dataset_already_batched": True}, DataError, r"batch\[1\] of example 0"),
    ],
)
def test_what_does_not_fit(mesh, line, layouts, options, error, words):
    options = {"dataset": examples(), "mesh": mesh, "layouts": layouts, "global_batch_size": 4, **options}
    options = {name: value(line) if callable(value) else value for name, value in options.items()}
    with pytest.raises(error, match=words) as raised:
        list(DTensorDataset(options.pop("dataset"), **options))
    assert raised.value.given
    assert raised.value.fix


JOB = """
import pathlib
from keras_dist import dtensor
from keras_dist.dtensor import Layout
from keras_dist.errors import ClusterError, LayoutError, MeshError, ProcessAbsentError

assert (dtensor.num_clients(), dtensor.client_id(), dtensor.job_name()) == (2, process, "worker")
assert dtensor.jobs() == ["worker/replica:0/task:0", "worker/replica:0/task:1"]
assert (dtensor.num_local_devices(), dtensor.num_global_devices()) == (2, 4)
own = dtensor.create_mesh()
assert own.num_local_devices() == own.size == 2
mesh = dtensor.create_distributed_mesh([("batch", 4)], num_clients=2, client_id=process)
assert mesh.local_device_ids() == [2 * process, 2 * process + 1]
assert mesh.local_device_locations() == [{"batch": 2 * process}, {"batch": 2 * process + 1}]
half = dtensor.create_distributed_mesh([("batch", 2)], num_global_devices=2)
assert half.num_local_devices() == 1
layout = Layout(["batch"], mesh)

x = np.arange(8.0, dtype=np.float32)
packed = dtensor.pack(np.split(x, 4)[2 * process : 2 * process + 2], layout)
assert packed.shape == (8,) and not packed.is_fully_addressable
assert [part.tolist() for part in dtensor.unpack(packed)] == [[4 * process + i, 4 * process + i + 1] for i in (0, 2)]
assert float(jax.jit(jax.numpy.sum)(packed)) == 28

drawn = dtensor.call_with_layout(jax.random.normal, layout, jax.random.key(0), (8,))
variable = dtensor.DVariable(drawn, name="w")
try:
    variable.numpy()
except LayoutError as error:
    assert error.given and "unpack" in error.fix
    assert "cannot be read here" in error.summary
else:
    raise AssertionError("a value of others was read")
try:
    dtensor.copy_to_mesh(packed, Layout(["x"], own))
except LayoutError as error:
    assert error.given and "unpack" in error.fix
else:
    raise AssertionError("a value of others was copied")
moved = dtensor.copy_to_mesh(dtensor.copy_to_mesh(x, Layout(["x"], own)), layout)
assert [part.tolist() for part in dtensor.unpack(moved)] == [part.tolist() for part in dtensor.unpack(packed)]
whole = dtensor.relayout(variable, Layout.replicated(mesh, 1))
np.testing.assert_array_equal(whole, jax.jit(jax.random.normal, static_argnums=1)(jax.random.key(0), (8,)))
np.testing.assert_array_equal(dtensor.copy_to_mesh(whole, Layout(["x"], own)), whole)

rows = [(np.full(2, i, "f4"), i) for i in range(10)]
layouts = (Layout(["batch", dtensor.UNSHARDED], mesh), layout)
batches = list(dtensor.DTensorDataset(rows, mesh=mesh, layouts=layouts, global_batch_size=4, batch_dim="batch"))
assert [[int(part[0]) for part in dtensor.unpack(y)] for _, y in batches] == [
    [2 * process, 2 * process + 1], [4 + 2 * process, 5 + 2 * process]
]

place = pathlib.Path(sys.argv[4])
dtensor.DTensorCheckpoint(mesh, w=variable, step=dtensor.DVariable(np.int32(3), trainable=False)).save(place)
other = dtensor.DVariable(jax.numpy.zeros(8), layout=Layout.replicated(mesh, 1))
step = dtensor.DVariable(np.int32(0), trainable=False)
dtensor.DTensorCheckpoint(mesh, w=other, step=step).restore(place)
np.testing.assert_array_equal(other.numpy(), whole)
assert int(step) == 3

dtensor.barrier(mesh, "together")
try:
    dtensor.barrier(mesh, f"process {process}")
except ClusterError as error:
    assert "not at the same point" in error.summary
else:
    raise AssertionError("two barriers are one")
if process == 0:
    try:
        dtensor.barrier(mesh, "alone", timeout_in_ms=1500)
    except ProcessAbsentError as error:
        assert "1.5 s" in error.given
    else:
        raise AssertionError("nobody else came")
jax.experimental.multihost_utils.sync_global_devices("end")
"""


@pytest.mark.multiprocess
def test_two_processes(tmp_path, line):
    processes.run(JOB, tmp_path / "saved")
    w = dtensor.DVariable(np.zeros(8, np.float32), layout=Layout(["batch"], line))
    dtensor.DTensorCheckpoint(line, w=w).restore(tmp_path / "saved")  # in one process
    np.testing.assert_array_equal(w, jax.random.normal(jax.random.key(0), (8,)))
