"""The newest states of a model, of which the newest good one is restored."""

import errno
import fcntl
import os
import pathlib
import resource
import shutil
import threading

import numpy as np
import pytest

from keras_dist.checkpoint import CheckpointManager, folder, manifest, snapshot
from keras_dist.errors import CheckpointError, CheckpointWarning, WriteError
from tests.checkpoint.conftest import Held, flip, snapshot_of

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def raising(error):
    def fail(*arguments, **named):
        raise error

    return fail


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def damage(path, how):
    """Damage a state, and say what is told of it."""
    if how == "a byte":
        flip(path / "record.json", 20)
        return "record.json has other bytes than were written"
    if how == "no manifest":
        (path / "manifest.json").unlink()
        return "manifest.json is missing"
    if how == "an array cut":
        largest = max((path / "arrays").rglob("*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
        os.truncate(largest, 1)
        return f"{largest.relative_to(path)} has 1 bytes instead of "
    if how == "empty":
        shutil.rmtree(path)
        path.mkdir()
        return "manifest.json is missing"
    shutil.rmtree(path)
    path.write_text("")
    return "is not a folder"


HOW = ["a byte", "no manifest", "an array cut", "empty", "a file"]


def test_keeps_the_newest_in_the_order_of_their_steps(write, directory):
    write(8, 9, 10, 11, keep=3)
    with CheckpointManager(Held(), directory) as manager:
        assert manager.steps == [9, 10, 11]
        assert manager.checkpoints == [str(directory / f"step_{step:08d}") for step in (9, 10, 11)]
        assert manager.latest_checkpoint == manager.checkpoints[-1]
    assert names(directory) == ["step_00000009", "step_00000010", "step_00000011"]


def test_steps_beyond_eight_digits_are_ordered_as_numbers(write, directory):
    write(99_999_999, 100_000_000)
    with CheckpointManager(Held(), directory) as manager:
        assert manager.steps == [99_999_999, 100_000_000]


def test_one_state_of_so_many_steps_is_kept_for_good(write, directory):
    write(0, 1, 4, 9, 12, 13, 20, 21, 41, 44, keep=1, keep_every=10)
    kept = ["step_00000012", "step_00000020", "step_00000041", "step_00000044"]
    assert names(directory) == kept
    write(45, keep=1, keep_every=10)
    assert names(directory) == [*kept[:3], "step_00000045"]


def test_what_is_kept_for_good_does_not_count_among_the_newest_nor_stands_for_damaged_ones(write, directory):
    write(10, 11, 12, 13, 20, 21, keep=2, keep_every=10)
    assert names(directory) == ["step_00000010", "step_00000020", "step_00000021"]
    (directory / "step_00000020" / "manifest.json").unlink()
    write(22, 23, 24, keep=1, keep_every=10)
    assert names(directory) == ["step_00000010", "step_00000020", "step_00000021", "step_00000024"]


def test_other_things_in_the_directory_stay(write, directory):
    directory.mkdir()
    for name in ("step_1", "step_000000010x", "notes"):
        (directory / name).mkdir()
    write(1, 2, keep=1)
    assert names(directory) == ["notes", "step_000000010x", "step_00000002", "step_1"]


def test_nothing_to_restore(directory):
    held = Held()
    with CheckpointManager(held, directory) as manager:
        assert manager.restore_or_initialize() is None
        assert manager.latest_checkpoint is None
    assert held.restored == []


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_newest_is_named_and_the_one_before_is_restored(write, directory, how):
    first, second = write(1, 2)
    problem = damage(second, how)
    held = Held()
    with (
        CheckpointManager(held, directory) as manager,
        pytest.warns(CheckpointWarning, match="step_00000002 is skipped") as warned,
    ):
        assert manager.restore_or_initialize() == str(first)
    assert problem in str(warned[0].message)
    assert held.restored == [1]
    assert second.exists()


@pytest.mark.filterwarnings("ignore::keras_dist.errors.CheckpointWarning")
def test_when_all_are_damaged_all_are_told_and_nothing_is_deleted(write, directory):
    first, second = write(1, 2)
    problems = [damage(second, "a byte"), damage(first, "no manifest")]
    before = names(directory)
    held = Held()
    with CheckpointManager(held, directory) as manager:
        with pytest.raises(CheckpointError, match="can be restored") as raised:
            manager.restore_or_initialize()
        assert raised.value.problems == (f"step_00000002: {problems[0]}", f"step_00000001: {problems[1]}")
        assert held.restored == []
    assert names(directory) == before


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_network_disks_without_locks_states_are_as_whole(write, directory, monkeypatch, error):
    monkeypatch.setattr(fcntl, "flock", raising(OSError(error, os.strerror(error))))
    write(1, 2, 3, keep=2)
    assert names(directory) == ["step_00000002", "step_00000003"]
    shutil.copytree(directory / "step_00000003", directory / ".step_00000004.draft-17")
    held = Held(3)
    with (
        pytest.warns(CheckpointWarning, match="left by a process that was killed; removed"),
        CheckpointManager(held, directory) as manager,
    ):
        manager.save()  # replaces the one that is there
        assert manager.restore_or_initialize() == str(directory / "step_00000003")
    assert names(directory) == ["step_00000002", "step_00000003"]


@pytest.mark.filterwarnings("ignore::keras_dist.errors.CheckpointWarning")
@pytest.mark.parametrize("how", HOW)
def test_damaged_ones_that_were_found_are_never_pruned(write, directory, how):
    _, damaged = write(1, 2)
    damage(damaged, how)
    held = Held()
    with CheckpointManager(held, directory, keep=1) as manager:
        manager.restore_or_initialize()
        for held.step in (3, 4):
            manager.save()
    assert names(directory) == ["step_00000002", "step_00000004"]


@pytest.mark.parametrize("how", ["no manifest", "empty", "a file"])
def test_what_was_not_looked_at_and_is_no_state_does_not_count(write, directory, how):
    first, second = write(1, 2)
    damage(second, how)
    with CheckpointManager(Held(3), directory, keep=2) as manager:
        manager.save()
    assert first.exists()
    assert second.exists()


@pytest.mark.filterwarnings("ignore:.*is skipped")
@pytest.mark.parametrize("was_looked_at", [True, False])
@pytest.mark.parametrize("how", HOW)
def test_a_damaged_one_is_put_aside_when_its_step_is_saved_again(write, directory, how, was_looked_at):
    _, damaged = write(1, 2)
    damage(damaged, how)
    with (
        pytest.warns(CheckpointWarning, match=r"is kept as step_00000002\.damaged"),
        CheckpointManager(Held(2), directory) as manager,
    ):
        if was_looked_at:
            manager.newest()
        manager.save()
        assert manager.newest().step == 2
    assert names(directory) == ["step_00000001", "step_00000002", "step_00000002.damaged"]
    damage(damaged, "a byte")
    with pytest.warns(CheckpointWarning, match="damaged_"), CheckpointManager(Held(2), directory) as manager:
        manager.save()
    assert "step_00000002.damaged_" in names(directory)


def test_a_good_one_is_replaced_when_its_step_is_saved_again(write, directory):
    write(1)
    held = Held(1, **{"variables/d1/kernel": np.full((4, 8), 7, np.float32)})
    with CheckpointManager(held, directory) as manager:
        manager.save()
        (kernel,) = manager.newest().arrays_below("variables/").values()
    assert np.array_equal(kernel, np.full((4, 8), 7))
    assert names(directory) == ["step_00000001"]


def test_a_snapshot_of_another_time_is_saved(directory):
    with CheckpointManager(Held(9), directory) as manager:
        assert manager.save(snapshot_of({"variables/k": np.zeros(3)}, 4)).endswith("step_00000004")
        assert manager.steps == [4]


def test_a_state_before_those_that_are_there_is_refused(write, directory):
    write(4, 6)
    held = Held(1)
    with CheckpointManager(held, directory, keep=2) as manager:
        with pytest.raises(CheckpointError, match="holds states of later steps") as raised:
            manager.save()
        assert "step_00000004, step_00000006" in raised.value.given
        held.step = 6
        manager.save()
    assert names(directory) == ["step_00000004", "step_00000006"]


def test_a_later_one_that_is_damaged_is_not_in_the_way(write, directory):
    flip(write(4, 6)[1] / "record.json")
    with CheckpointManager(Held(5), directory) as manager:
        with pytest.warns(CheckpointWarning, match="is skipped"):
            manager.newest()
        manager.save()
        assert manager.steps == [4, 5, 6]


def test_a_relative_directory_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held = Held(1)
    with CheckpointManager(held, "states", asynchronous=True) as manager:
        manager.save()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        manager.wait_until_finished()
        assert manager.restore_or_initialize() == str(tmp_path / "states" / "step_00000001")
    assert names(tmp_path / "elsewhere") == []


@pytest.mark.parametrize(
    "call", ["save", "check", "wait_until_finished", "newest", "restore_or_initialize", "delete", "close"]
)
def test_a_failure_in_the_background_is_raised_by_the_next_call(write, directory, monkeypatch, threads, call):
    write(1)
    held = Held(2)
    with CheckpointManager(held, directory, asynchronous=True) as manager:
        monkeypatch.setattr(manifest, "_checksum", raising(NO_SPACE))
        manager.save()
        manager._writer.wait()
        monkeypatch.undo()
        with pytest.raises(CheckpointError, match="step_00000002' was not written") as raised:
            getattr(manager, call)()
        assert "No space left on device" in raised.value.given
        assert threads() == []
    assert names(directory) == ["step_00000001"]
    CheckpointManager(held, directory).close()


@pytest.fixture
def may_go_on(monkeypatch):
    """Saves are held up before they are put in their place, until this is set."""
    may, commit = threading.Event(), folder.Draft.commit
    monkeypatch.setattr(folder.Draft, "commit", lambda draft: may.wait(60) and commit(draft))
    return may


def test_a_save_in_the_background_goes_on_while_others_wait(directory, may_go_on):
    with CheckpointManager(Held(1), directory, asynchronous=True) as manager:
        path = manager.save()
        manager.check()
        assert not pathlib.Path(path).exists()
        may_go_on.set()
        manager.wait_until_finished()
        assert pathlib.Path(path).exists()


def test_ctrl_c_while_waiting_does_not_forget_the_save(directory, monkeypatch, may_go_on, threads):
    with CheckpointManager(Held(1), directory, asynchronous=True) as manager:
        manager.save()
        with monkeypatch.context() as patch:
            patch.setattr(manager._writer._thread, "join", raising(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                manager.wait_until_finished()
        may_go_on.set()
        manager.wait_until_finished()
        assert threads() == []
        assert manager.steps == [1]


FAILURES = {
    "a document": (pathlib.Path, "write_text"),
    "the arrays": (snapshot, "write_arrays"),
    "the digests": (folder, "write_manifest"),
    "the manifest": (pathlib.Path, "write_bytes"),
    "the rename": (os, "rename"),
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("where", FAILURES)
def test_a_save_that_fails_leaves_what_was_there(write, directory, monkeypatch, threads, where, asynchronous):
    write(1)
    with CheckpointManager(Held(1), directory, asynchronous=asynchronous) as manager:
        for manager._model.step, number in ((1, errno.ENOSPC), (2, errno.EROFS)):
            with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="was not written") as raised:
                patch.setattr(*FAILURES[where], raising(OSError(number, os.strerror(number))))
                manager.save()
                manager.wait_until_finished()
            assert os.strerror(number) in raised.value.given
            assert threads() == []
        assert manager.newest().step == 1
        assert names(directory) == [".lock", "step_00000001"]
        manager._model.step = 3
        manager.save()
        manager.wait_until_finished()
        assert manager.steps == [1, 3]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_files_of_arrays_that_cannot_grow(write, directory, threads, asynchronous):
    write(1)
    noise = np.random.default_rng(0).integers(0, 2**32, 2**20, np.uint32)
    held = Held(2, **{"variables/k": noise})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with CheckpointManager(held, directory, asynchronous=asynchronous) as manager:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
        try:
            with pytest.raises(CheckpointError, match="was not written"):
                manager.save()
                manager.wait_until_finished()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert threads() == []
        assert names(directory) == [".lock", "step_00000001"]
        manager.save()
        assert manager.newest().step == 2


def test_a_directory_that_cannot_be_made(directory, monkeypatch):
    monkeypatch.setattr(pathlib.Path, "mkdir", raising(OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(OSError, match="Read-only file system"):
        CheckpointManager(Held(), directory)
    assert not directory.exists()


@pytest.mark.parametrize("below", ["", "states"])
def test_a_path_that_is_a_file(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises((CheckpointError, WriteError)):
        CheckpointManager(Held(), tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == ""


def test_a_manager_that_cannot_be_made_holds_no_lock(directory, monkeypatch):
    (directory / ".step_00000001.draft-17").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output") as kept:
        CheckpointManager(Held(), directory)
    monkeypatch.undo()
    with pytest.warns(CheckpointWarning, match="left by"):
        CheckpointManager(Held(), directory).close()
    assert kept.tb is not None


def test_a_second_manager_is_refused_until_the_first_is_closed(directory):
    with CheckpointManager(Held(), directory), pytest.raises(CheckpointError, match="is busy"):
        CheckpointManager(Held(), directory)
    CheckpointManager(Held(), directory).close()


@pytest.mark.parametrize("call", ["save", "restore_or_initialize", "delete"])
def test_a_closed_manager_is_not_used(directory, call):
    manager = CheckpointManager(Held(), directory)
    manager.close()
    manager.close()
    with pytest.raises(CheckpointError, match="is closed"):
        getattr(manager, call)()


def test_delete_leaves_nothing(write, directory):
    write(1, 2)
    CheckpointManager(Held(), directory).delete()
    assert not directory.exists()


@pytest.mark.filterwarnings("ignore::keras_dist.errors.CheckpointWarning")
def test_delete_keeps_what_is_damaged(write, directory):
    _, _, damaged = write(1, 2, 3)
    damage(damaged, "a byte")
    manager = CheckpointManager(Held(), directory)
    manager.newest()
    manager.delete()
    assert names(directory) == ["step_00000003"]


def test_delete_that_fails_lets_others_write(write, directory, monkeypatch):
    write(1)
    manager = CheckpointManager(Held(), directory)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output") as kept:
        patch.setattr(os, "rename", raising(OSError(errno.EIO, "Input/output error")))
        manager.delete()
    assert kept.tb is not None
    CheckpointManager(Held(), directory).close()


def test_a_process_that_is_killed_while_it_prunes_leaves_no_half_state(write, directory, monkeypatch):
    write(1)
    with CheckpointManager(Held(2), directory, keep=1) as manager:
        with monkeypatch.context() as patch, pytest.raises(CheckpointError):
            patch.setattr(shutil, "rmtree", raising(OSError(errno.EIO, "Input/output error")))
            manager.save()
        assert manager.steps == [2]
    with pytest.warns(CheckpointWarning, match="left by"):
        CheckpointManager(Held(), directory).close()
    assert names(directory) == ["step_00000002"]


def test_a_document_that_json_cannot_hold_leaves_no_draft(directory, threads):
    with CheckpointManager(Held(), directory, asynchronous=True) as manager:
        with pytest.raises(CheckpointError, match="the document 'training' of a snapshot must be JSON"):
            manager.save(snapshot_of({"variables/k": np.zeros(3)}, 1, training={"callbacks": object()}))
        assert threads() == []
        assert names(directory) == [".lock"]
