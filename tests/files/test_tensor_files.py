"""Arrays in files: how they are grouped, and how many are held at once."""

import json
import os
import weakref

import numpy as np
import pytest
from safetensors import safe_open

from keras_dist.errors import ModelError
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.files.tensor_writer import TensorWriter, grouped

SIZES = {"a": 40, "b": 40, "c": 200, "d": 40, "e": 60}


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [
        (None, ["abcde"]),
        (400, ["abcde"]),
        (100, ["ab", "c", "de"]),
        (99, ["ab", "c", "d", "e"]),
        (1, ["a", "b", "c", "d", "e"]),
    ],
)
def test_groups(max_bytes, expected):
    assert ["".join(group) for group in grouped(SIZES, max_bytes)] == expected


def test_no_names_are_one_empty_group():
    assert grouped({}, 1) == [[]]


def test_one_array_is_held_at_a_time(tmp_path):
    held, most = 0, 0

    def fetch(name):
        nonlocal held, most
        array = np.zeros(SIZES[name], np.uint8)
        held += array.nbytes
        most = max(most, held)
        weakref.finalize(array, release, array.nbytes)
        return array

    def release(size):
        nonlocal held
        held -= size

    groups = grouped(SIZES, 100)
    arrays = {name: np.empty(size, np.uint8) for name, size in SIZES.items()}
    with TensorWriter("save", tmp_path / "x.safetensors", arrays, groups) as writer:
        for number in range(len(groups)):
            writer.write(number, lambda name: [fetch(name)])
        writer.commit()
    assert (most, held) == (max(SIZES.values()), 0)
    with safe_open(tmp_path / "x-00003-of-00003.safetensors", framework="np") as file:
        assert sorted(file.keys()) == ["d", "e"]


def test_pipes_and_devices_have_no_end_and_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").symlink_to("/dev/zero")
    index = tmp_path / "x.safetensors.index.json"
    os.mkfifo(tmp_path / "y.safetensors.index.json")
    for name in ("a.safetensors", "b.safetensors"):
        index.write_text(json.dumps({"weight_map": {"w": name}}))
        for path in (tmp_path / name, index, tmp_path / "y.safetensors.index.json"):
            with pytest.raises(ModelError, match="not a regular file"):
                TensorReader("load", path)
