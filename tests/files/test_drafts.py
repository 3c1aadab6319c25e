"""Drafts of files and folders: one for each writer, and what is left of those that were killed."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_dist.errors import CheckpointWarning
from keras_dist.files import drafts
from keras_dist.files.drafts import draft_of
from keras_dist.files.locks import alone_in
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.files.tensor_writer import TensorWriter

KILLED = """
import os, pathlib, signal, sys
from keras_dist.files.drafts import draft_of
with draft_of(pathlib.Path(sys.argv[1])) as folder:
    (folder / "half").write_text("")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path):
    return tmp_path / "model.safetensors"


def test_each_writer_has_one_of_its_own_until_it_ends(place):
    with draft_of(place) as mine:
        with draft_of(place) as other:
            assert mine != other and mine.parent == other.parent == place.parent
        assert mine.is_dir() and not other.exists()
    assert not list(place.parent.iterdir())


def test_one_that_fails_is_removed(place):
    with pytest.raises(KeyboardInterrupt), draft_of(place) as folder:
        (folder / "half").write_text("")
        raise KeyboardInterrupt
    assert not list(place.parent.iterdir())


@pytest.mark.multiprocess
def test_what_was_left_by_the_killed_the_next_writer_removes(place):
    others = [place.with_name(".other.safetensors.draft-17"), place.with_name(".model.safetensors.draft-a")]
    for path in others:
        path.mkdir()
    killed = subprocess.run([sys.executable, "-c", KILLED, place], check=False)
    assert killed.returncode < 0 and len(list(place.parent.iterdir())) == 3
    with pytest.warns(CheckpointWarning, match="left by a process that was killed"), draft_of(place):
        assert len(list(place.parent.iterdir())) == 3
    assert sorted(place.parent.iterdir()) == sorted(others)


def test_one_that_is_taken_for_left_while_it_is_made(place, monkeypatch):
    locked, taken = drafts.lock_folder, []

    def comes_late(folder, waits=False):
        if not taken:
            taken.append(folder)
            folder.rmdir()
        return locked(folder, waits)

    monkeypatch.setattr(drafts, "lock_folder", comes_late)
    with draft_of(place) as folder:
        assert folder.is_dir() and folder != taken[0]


def test_where_folders_have_no_locks_nothing_is_removed(place, monkeypatch):
    def refuses(folder, waits=False):
        raise OSError(95, "Operation not supported")

    left = place.with_name(".model.safetensors.draft-17")
    left.mkdir()
    monkeypatch.setattr(drafts, "lock_folder", refuses)
    with draft_of(place) as folder, alone_in(place.parent):
        assert folder.is_dir()
    assert list(place.parent.iterdir()) == [left]


def written(place, value, groups):
    writer = TensorWriter("save", place, dict.fromkeys("ab", np.empty(1, np.uint8)), groups)
    for number in range(len(groups)):
        writer.write(number, lambda name: [np.full(1, value, np.uint8)])
    return writer


@pytest.mark.parametrize("groups", [[["a", "b"]], [["a"], ["b"]]], ids=["one file", "two files"])
def test_of_two_writers_at_once_the_last_one_remains(place, groups):
    with written(place, 1, groups) as first, written(place, 2, groups) as second:
        second.commit()
        first.commit()
    found = TensorReader("load", place).read_checked(["a", "b"])
    assert found == {"a": np.ones(1), "b": np.ones(1)}
    assert len(list(place.parent.iterdir())) == (1 if len(groups) == 1 else 3)


def test_places_are_taken_by_one_writer_after_the_other(place):
    groups = [["a"], ["b"]]
    with written(place, 1, groups) as writer:
        thread = threading.Thread(target=writer.commit)
        with alone_in(place.parent):
            thread.start()
            thread.join(0.2)
            assert thread.is_alive() and not list(place.parent.glob("*.safetensors"))
        thread.join()
    assert len(list(place.parent.glob("*.safetensors"))) == 2


def test_files_may_be_read_by_whoever_may_read_others(place):
    before = os.umask(0o027)
    try:
        with written(place, 1, [["a", "b"]]) as writer:
            writer.commit()
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o640 and load_file(place)["a"] == 1
