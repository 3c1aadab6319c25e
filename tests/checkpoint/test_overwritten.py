"""What is read while another process overwrites it: read again, or said to be overwritten, and never called damaged."""

import shutil

import pytest

import keras_dist as kd
from keras_dist.checkpoint import Stored, folder, snapshot
from keras_dist.errors import CheckpointError, ModelError, OverwrittenError
from keras_dist.files.tensor_reader import TensorReader
from tests.contracts.processes import run_fork

PATHS = ("m", "m.orbax", "m.safetensors", "m.shards.safetensors", "m.keras")


def network():
    return kd.Sequential([kd.Input((64,)), kd.layers.Dense(50, name="d1"), kd.layers.Dense(60, name="d2")])


PROGRAM = """
import pathlib, sys, threading, warnings
import numpy as np
import keras_dist as kd
from keras_dist.errors import OverwrittenError


def network():
    return kd.Sequential([kd.Input((64,)), kd.layers.Dense(50, name="d1"), kd.layers.Dense(60, name="d2")])


def save(number):
    writer.set_weights([np.full(w.shape, number, "f4") for w in writer.weights])
    if is_of_weights:
        writer.save_weights(path, max_shard_size=1e-5 if "shards" in path.name else None)
    else:
        writer.save(path)


def load():
    if not is_of_weights:
        return kd.models.load_model(path)
    reader.load_weights(path)
    return reader


def overwrite():
    number = 0
    while not is_over.is_set():
        number += 1
        save(number)


writer, reader = network(), network()
for path in map(pathlib.Path, PATHS):
    is_over, told, whole = threading.Event(), 0, 0
    is_of_weights = path.suffix in (".orbax", ".safetensors")
    save(0)
    thread = threading.Thread(target=overwrite)
    thread.start()
    try:
        for _ in range(8):
            try:
                with warnings.catch_warnings(action="error"):
                    values = {float(value) for weight in load().get_weights() for value in np.unique(weight)}
            except OverwrittenError as error:
                assert "is being overwritten" in error.summary and path.name in error.summary
                told += 1
            else:
                assert len(values) == 1, values
                whole += 1
    finally:
        is_over.set()
        thread.join()
    print(told + whole, whole > 0)
"""


@pytest.mark.multiprocess
def test_a_reader_beside_a_writer_gets_one_save_or_is_told(tmp_path):
    # in a process of its own: orbax leaves coroutines behind where a folder vanishes while it is read
    found = run_fork(PROGRAM.replace("PATHS", repr([str(tmp_path / name) for name in PATHS])))
    assert found.splitlines() == ["8 True"] * len(PATHS)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A model in a folder, beside another one that takes its place when the function that is returned is called."""
    monkeypatch.setattr("keras_dist.files.regular_files.WAITS", (0.0, 0.0))
    monkeypatch.setattr(folder, "WAITS", (0.0, 0.0))
    network().save(tmp_path / "m")
    network().save(tmp_path / "new")

    def replace():
        (tmp_path / "m").rename(tmp_path / ".gone")
        (tmp_path / "new").rename(tmp_path / "m")
        shutil.rmtree(tmp_path / ".gone")
        shutil.copytree(tmp_path / "m", tmp_path / "new")

    return tmp_path / "m", replace


def test_one_that_is_replaced_while_it_is_compared_is_opened_again(stored, monkeypatch):
    path, replace = stored
    compared, times = snapshot.damage_of, iter([True, False])

    def slowly(folder):
        if next(times, False):
            replace()
            return ["arrays/d/1 is missing"]
        return compared(folder)

    monkeypatch.setattr(snapshot, "damage_of", slowly)
    assert Stored(path).step == 0


def test_one_that_is_always_replaced_is_said_to_be_overwritten(stored, monkeypatch):
    path, replace = stored

    def slowly(folder):
        replace()
        return ["arrays/d/1 is missing"]

    monkeypatch.setattr(snapshot, "damage_of", slowly)
    with pytest.raises(OverwrittenError, match="m' is being overwritten") as error:
        Stored(path)
    assert isinstance(error.value, CheckpointError) and isinstance(error.value, ModelError)


def test_arrays_of_another_save_are_not_taken(stored):
    path, replace = stored
    opened = Stored(path)
    replace()
    with pytest.raises(OverwrittenError, match="is being overwritten"):
        opened.arrays_below("variables/")
    with pytest.raises(OverwrittenError, match="is being overwritten"):
        opened.document("model")


def test_a_damaged_one_is_still_called_damaged(stored):
    path, _ = stored
    (path / "model.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is damaged") as error:
        Stored(path)
    assert not isinstance(error.value, OverwrittenError)


def test_the_first_save_that_still_goes_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "WAITS", (0.0,))
    draft = folder.Draft(tmp_path / "m")
    with pytest.raises(CheckpointError) as error:
        Stored(tmp_path / "m")
    assert "does not exist, but is being written" in error.value.given
    draft.abandon()
    with pytest.raises(CheckpointError) as error:
        Stored(tmp_path / "m")
    assert error.value.given.endswith("does not exist")


def test_a_file_that_takes_the_place_of_one_is_noticed(tmp_path):
    model = network()
    model.save_weights(tmp_path / "m.safetensors")
    model.save_weights(tmp_path / "new.safetensors")
    reader = TensorReader("load_weights", tmp_path / "m.safetensors")
    (tmp_path / "new.safetensors").replace(tmp_path / "m.safetensors")
    for use in (lambda: reader.check(["d1/kernel"]), lambda: reader.view("d1/kernel")):
        with pytest.raises(OverwrittenError, match=r"load_weights: '.*m.safetensors' is being overwritten"):
            use()
