"""The part of a `tf.data.Dataset` that each process reads.

Checked once against TensorFlow 2.21 with Keras's own tests; here a stand-in with the same calls.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import keras_dist as kd
from keras_dist.errors import DataError
from tests.jobs import CONTIGUOUS, INTERLEAVED, be

pytestmark = pytest.mark.filterwarnings("ignore:axis 'model' of")


class Dataset:
    """Batches of integers with the methods of `tf.data.Dataset` that are used."""

    def __init__(self, batches: list[list[int]], batch_size: int, rank: int | None = 1) -> None:
        self.batches = batches
        self.batch_size = batch_size
        self.element_spec = SimpleNamespace(shape=SimpleNamespace(rank=rank))
        self.prefetched = False

    def rebatch(self, size: int) -> "Dataset":
        rows = [row for batch in self.batches for row in batch]
        return Dataset([rows[start : start + size] for start in range(0, len(rows), size)], size)

    def shard(self, num_shards: int, index: int) -> "Dataset":
        return Dataset(self.batches[index::num_shards], self.batch_size)

    def prefetch(self, amount: object) -> "Dataset":
        self.prefetched = amount == "autotune"
        return self


def of_rows(count: int, batch_size: int) -> Dataset:
    return Dataset([[row] for row in range(count)], 1).rebatch(batch_size)


@pytest.fixture(autouse=True)
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `tensorflow` with the few names that are used."""
    names = ["tensorflow", *(f"tensorflow.python{rest}" for rest in ("", ".data", ".data.experimental"))]
    names.append("tensorflow.python.data.experimental.ops")
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    modules["tensorflow"].data = SimpleNamespace(Dataset=Dataset, AUTOTUNE="autotune")
    modules["tensorflow"].nest = SimpleNamespace(flatten=lambda spec: [spec])
    modules[names[-1]].distribute = SimpleNamespace(
        compute_batch_size=lambda dataset: SimpleNamespace(numpy=lambda: dataset.batch_size)
    )
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def distribution_of(monkeypatch: pytest.MonkeyPatch, mesh: str, processes: int, index: int) -> kd.ModelParallel:
    """Model-parallel on `mesh`, as process `index` of `processes`."""
    be(monkeypatch, CONTIGUOUS[processes], index)
    return kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh(mesh)), "data")


@pytest.mark.parametrize(
    ("mesh", "processes", "index", "batches"),
    [
        ("data=4,model=2", 2, 0, [[0, 1, 2, 3], [8, 9, 10, 11]]),
        ("data=4,model=2", 2, 1, [[4, 5, 6, 7], [12, 13, 14, 15]]),
        ("data=2,model=4", 4, 1, [[0, 1, 2, 3], [8, 9, 10, 11]]),  # two processes have one replica
        ("data=2,model=4", 4, 2, [[4, 5, 6, 7], [12, 13, 14, 15]]),
        ("data=1,model=8", 2, 1, [[*range(8)], [*range(8, 16)]]),
    ],
)
def test_a_process_reads_the_batches_of_its_replica(
    monkeypatch: pytest.MonkeyPatch, mesh: str, processes: int, index: int, batches: list[list[int]]
) -> None:
    part = distribution_of(monkeypatch, mesh, processes, index).distribute_dataset(of_rows(16, 8))
    assert part.batches == batches
    assert part.prefetched or mesh == "data=1,model=8"


@pytest.mark.parametrize("index", range(4))
def test_processes_that_own_the_same_rows_read_the_same(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    be(monkeypatch, INTERLEAVED[4], index)
    mesh = kd.DeviceMesh("data=4,model=2", devices=kd.list_devices())
    part = kd.ModelParallel(kd.LayoutMap(mesh), "data").distribute_dataset(of_rows(8, 4))
    assert part.batches == ([[0, 1], [4, 5]] if index < 2 else [[2, 3], [6, 7]])


def test_processes_with_more_devices_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, [0, 0, 0, 1, 1, 1, 1, 1], 0)
    with pytest.raises(DataError, match="own equal parts of a batch") as error:
        kd.DataParallel().distribute_dataset(of_rows(16, 8))
    assert error.value.given == "processes [0]: 3 shards; processes [1]: 5 shards"


@pytest.mark.parametrize(
    ("mesh", "processes", "dataset", "words"),
    [
        ("data=4,model=2", 2, of_rows(16, 7), "Global batch size must be divisible by the number of processes"),
        ("data=2,model=4", 4, of_rows(16, 7), "Global batch size must be divisible by the number of replicas"),
        ("data=4,model=2", 2, Dataset([[0]], -1), "batch size .* is unknown"),
        ("data=4,model=2", 2, Dataset([[0]], 1, rank=0), "batch size .* is unknown"),
        ("data=4,model=2", 2, Dataset([[0]], 1, rank=None), "batch size .* is unknown"),
        ("data=4,model=2", 2, [1, 2, 3], "is not supported for auto-sharding"),
    ],
)
def test_what_cannot_be_shared_out(
    monkeypatch: pytest.MonkeyPatch, mesh: str, processes: int, dataset: Any, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        distribution_of(monkeypatch, mesh, processes, 0).distribute_dataset(dataset)


def test_without_tensorflow_nothing_is_a_data_set_of_its(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow")
    with pytest.raises(DataError, match="is not supported for auto-sharding"):
        distribution_of(monkeypatch, "data=4,model=2", 2, 0).distribute_dataset(of_rows(16, 8))
    assert "tensorflow" not in sys.modules
