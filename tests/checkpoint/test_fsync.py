"""`fsync=True`: in which order names and contents reach the disk."""

import errno
import os
import pathlib

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import BackupAndRestore
from keras_dist.checkpoint import CheckpointManager, folder, manifest
from keras_dist.errors import CheckpointError
from tests.checkpoint.conftest import Held


@pytest.fixture
def calls(monkeypatch):
    """What is forced to the disk, renamed and removed, in this order."""
    fsync, rename, rmtree, writes, calls = os.fsync, os.rename, folder.shutil.rmtree, manifest.write_manifest, []

    def noted_fsync(descriptor):
        calls.append(("fsync", pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def noted_rename(source, target):
        calls.append(("rename", pathlib.Path(source), pathlib.Path(target)))
        rename(source, target)

    def noted_rmtree(path, **options):
        calls.append(("rmtree", pathlib.Path(path)))
        rmtree(path, **options)

    def noted_manifest(*arguments):
        calls.append(("manifest",))
        writes(*arguments)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    monkeypatch.setattr(folder.shutil, "rmtree", noted_rmtree)
    monkeypatch.setattr(folder, "write_manifest", noted_manifest)
    return calls


def check_forced(calls, place):
    """Check that all below a place was forced before it was moved there, and its name after that."""
    moved = next(number for number, call in enumerate(calls) if call[0] == "rename" and call[2] == place)
    draft, written = calls[moved][1], calls.index(("manifest",))
    forced = {call[1]: number for number, call in enumerate(calls) if call[0] == "fsync" and written < number < moved}
    paths = [draft, *(draft / path.relative_to(place) for path in place.rglob("*"))]
    assert forced.keys() == {*paths}
    assert len(paths) > 5
    assert all(forced[path] < forced[path.parent] for path in paths[1:])  # what a folder holds before the folder
    assert calls[moved + 1] == ("fsync", place.parent)
    return calls[moved + 2 :]


def test_contents_then_names_then_the_move_then_its_folder(tmp_path, calls):
    directory = tmp_path / "a" / "states"
    held = Held(1)
    with CheckpointManager(held, directory, keep=1, fsync=True) as manager:
        assert calls == [("fsync", tmp_path), ("fsync", directory.parent)]  # the new folders, the outer one first
        manager.save()
        assert check_forced(calls, directory / "step_00000001") == []
        calls.clear()
        held.step = 2
        manager.save()
        old, draft = directory / "step_00000001", directory / f".step_00000001.draft-{os.getpid()}"
        assert check_forced(calls, directory / "step_00000002") == [("rename", old, draft), ("rmtree", draft)]
        calls.clear()
        manager.save()  # the same step once more: the old one goes when the new one is on the disk
        replaced = directory / f".step_00000002.replaced-{os.getpid()}"
        assert check_forced(calls, directory / "step_00000002") == [("rmtree", replaced)]


def test_nothing_is_forced_unless_that_is_asked_for(tmp_path, calls):
    with CheckpointManager(Held(1), tmp_path / "states") as manager:
        manager.save()
    assert not [call for call in calls if call[0] == "fsync"]


def test_a_disk_that_fails_leaves_the_states_before(write, directory, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    write(1)
    with CheckpointManager(Held(2), directory, fsync=True) as manager:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(CheckpointError, match="was not written") as raised:
            manager.save()
        assert "Input/output error" in raised.value.given
        assert manager.steps == [1]
    assert [path.name for path in directory.iterdir()] == ["step_00000001"]


def test_backups_are_forced_to_the_disk(tmp_path, calls):
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    backup = BackupAndRestore(tmp_path, fsync=True, delete_checkpoint=False)
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[backup])
    check_forced(calls, tmp_path / "step_00000001")
