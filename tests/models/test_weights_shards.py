"""`save_weights(max_shard_size=...)`: several files and an index, and what happens when some of it is not there."""

import json
import os
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_dist.errors import ModelError
from keras_dist.files.tensor_writer import write_file
from keras_dist.formats import mapped_files
from tests.models.weights import model_on, weights_of

GB = 1024**3
SMALL = 512 / GB
"""In files of that size there are three."""


@pytest.fixture(scope="module")
def model():
    return model_on("data=4,model=2")


@pytest.fixture(scope="module")
def other():
    return model_on("one device", seed=1)


@pytest.fixture(scope="module")
def third():
    return model_on("one device", seed=2)


@pytest.fixture
def found(third):
    """A model of zeros."""
    third.set_weights([np.zeros_like(value) for value in third.get_weights()])
    return third


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def index_of(path):
    return path.with_name("model.safetensors.index.json")


def test_files_are_in_the_form_of_hugging_face(model, path):
    model.save_weights(path, max_shard_size=SMALL)
    index = json.loads(index_of(path).read_text())
    files = sorted(path.parent.glob("*.safetensors"))
    assert [file.name for file in files] == [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in model.get_weights())
    assert index["weight_map"] == {name: file.name for file in files for name in load_file(file)}
    np.testing.assert_equal(
        {name: value for file in files for name, value in load_file(file).items()}, weights_of(model)
    )
    assert {file.name for file in path.parent.iterdir()} == {*(file.name for file in files), index_of(path).name}
    model.save_weights(path, max_shard_size=index["metadata"]["total_size"] / GB)
    assert list(path.parent.iterdir()) == [path], "they fit into one"


@pytest.mark.parametrize("first", [None, SMALL])
@pytest.mark.parametrize("second", [None, SMALL])
def test_a_save_replaces_the_one_before(model, other, found, path, first, second):
    other.save_weights(path, max_shard_size=first)
    model.save_weights(path, max_shard_size=second)
    found.load_weights(path)
    np.testing.assert_equal(weights_of(found), weights_of(model))
    assert len(list(path.parent.iterdir())) == (1 if second is None else 4)


WRITTEN = ["write_file"] * 3 + ["os.replace"] * 4
"""What a save calls one after the other."""


@pytest.mark.parametrize("first", [None, SMALL])
@pytest.mark.parametrize("calls", range(len(WRITTEN)))
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_an_interrupted_save_leaves_the_one_before_or_is_whole(
    model, other, found, path, monkeypatch, first, calls, is_before
):
    other.save_weights(path, max_shard_size=first)
    called = []

    def interrupting(name, function):
        def call(*arguments):
            called.append(name)
            is_last = len(called) == calls + 1
            if is_last and is_before:
                raise KeyboardInterrupt
            result = function(*arguments)
            if is_last:
                raise KeyboardInterrupt
            return result

        return call

    with monkeypatch.context() as patch:
        for name, function in (("write_file", write_file), ("os.replace", os.replace)):
            patch.setattr(f"keras_dist.files.tensor_writer.{name}", interrupting(name, function))
        with pytest.raises(KeyboardInterrupt):
            model.save_weights(path, max_shard_size=SMALL)
    assert called == WRITTEN[: calls + 1]
    is_done = calls == len(WRITTEN) - 1 and not is_before
    found.load_weights(path if first is None or not is_done else index_of(path))
    np.testing.assert_equal(weights_of(found), weights_of(model if is_done and first else other))
    if not is_done:
        assert len(list(path.parent.iterdir())) == (1 if first is None else 4)


def test_a_file_of_ones_own_in_an_index_is_not_removed(model, path):
    own = path.with_name("precious.safetensors")
    save_file({"a": np.zeros(1)}, own)
    index_of(path).write_text(json.dumps({"weight_map": {"a": own.name}}))
    model.save_weights(path, max_shard_size=SMALL)
    assert own.exists()


def test_no_step_comes_between_the_files(model, path, monkeypatch):
    lock, host_copy, free = model._built.cell.lock, mapped_files.host_copy, []

    def watched(*arguments):
        thread = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return host_copy(*arguments)

    monkeypatch.setattr(mapped_files, "host_copy", watched)
    model.save_weights(path, max_shard_size=SMALL)
    assert free == [False] * len(model.weights)


def test_what_is_no_size(model, path):
    for size in (0, -1, "5GB", True, 5_000_000_000, float("nan")):
        with pytest.raises(ModelError, match="max_shard_size") as error:
            model.save_weights(path, max_shard_size=size)
        assert repr(size) in error.value.given and "GB" in error.value.summary


def without_a_file(path):
    path.with_name("model-00002-of-00003.safetensors").unlink()


def cut(path):
    file = path.with_name("model-00002-of-00003.safetensors")
    file.write_bytes(file.read_bytes()[:-1])


def of_another_save(path):
    file = path.with_name("model-00002-of-00003.safetensors")
    save_file(load_file(file), file)


def lacking_a_weight(path):
    change(path, lambda index: index["weight_map"].update({"more": "model-00001-of-00003.safetensors"}))


def half_an_index(path):
    index_of(path).write_bytes(index_of(path).read_bytes()[:-5])


def without_a_map(path):
    index_of(path).write_text("[]")


def pointing(file):
    return lambda path: change(path, lambda index: index["weight_map"].update({"d1/kernel": file(path)}))


def change(path, edit):
    index = json.loads(index_of(path).read_text())
    edit(index)
    index_of(path).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_a_file, "'model-00002-of-00003.safetensors' is missing"),
        (cut, "'model-00002-of-00003.safetensors': "),
        (of_another_save, "'model-00002-of-00003.safetensors' is of another save"),
        (lacking_a_weight, "'model-00001-of-00003.safetensors' lacks ['more']"),
        (half_an_index, "JSONDecodeError: "),
        (without_a_map, "no 'weight_map' from names of weights to names of files"),
        (pointing(lambda path: 3), "no 'weight_map' from names of weights to names of files"),
        (pointing(lambda path: "../model-00001-of-00003.safetensors"), "not in its folder: ['../model"),
        (pointing(lambda path: str(path.with_name("model-00001-of-00003.safetensors"))), "not in its folder: ['/"),
        (pointing(lambda path: ".."), "not in its folder: ['..']"),
    ],
)
def test_damage_is_told_and_nothing_is_set(model, other, path, damage, message):
    model.save_weights(path, max_shard_size=SMALL)
    damage(path)
    before = weights_of(other)
    for strict in (True, False):
        with pytest.raises(ModelError, match="cannot be read") as error:
            other.load_weights(path, strict=strict)
        assert message in error.value.given
    np.testing.assert_equal(weights_of(other), before)
