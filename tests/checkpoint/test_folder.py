"""A folder is whole or not there, whatever happens meanwhile."""

import errno
import os
import pathlib
import shutil
import signal
import time

import numpy as np
import pytest

from keras_dist.checkpoint import Stored
from keras_dist.checkpoint.folder import Draft, discard, present, settled
from keras_dist.checkpoint.manifest import damage_of
from keras_dist.errors import CheckpointError, CheckpointWarning
from keras_dist.files.drafts import is_draft
from tests import forks
from tests.checkpoint.conftest import snapshot_of


def put(place, text):
    draft = Draft(place)
    (draft.folder / "record.json").write_text(text)
    return draft


def text_of(place):
    assert damage_of(place) == []
    return (place / "record.json").read_text()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class Killed(BaseException):
    """The end of the process: nothing after it runs."""


@pytest.fixture
def place(tmp_path):
    return tmp_path / "state"


def test_nothing_is_there_before_commit(place):
    draft = put(place, "one")
    assert not place.exists()
    assert is_draft(draft.folder)
    draft.commit()
    assert text_of(place) == "one"
    assert names(place.parent) == ["state"]


def test_what_was_there_is_replaced_as_a_whole(place):
    first = put(place, "one")
    (first.folder / "extra").write_text("")
    first.commit()
    draft = put(place, "two")
    assert text_of(place) == "one"
    draft.commit()
    assert text_of(place) == "two"
    assert names(place) == ["manifest.json", "record.json"]
    assert names(place.parent) == ["state"]


def test_a_link_points_to_the_new_one(place):
    put(place, "one").commit()
    link = place.with_name("link")
    link.symlink_to(place)
    put(link, "two").commit()
    put(link, "three").commit()
    assert link.is_symlink()
    assert text_of(place) == "three"
    assert names(place.parent) == ["link", "state"]
    place.rename(place.with_name(".state.replaced-7"))
    with pytest.warns(CheckpointWarning, match="a save was killed"):
        assert text_of(present(link)) == "three"


def test_folders_around_are_made(tmp_path):
    put(tmp_path / "a" / "b" / "state", "one").commit()
    assert text_of(tmp_path / "a" / "b" / "state") == "one"


def test_what_a_killed_process_of_the_same_number_left_is_not_in_the_way(place):
    (place.parent / f".state.draft-{os.getpid()}").mkdir()
    (place.parent / f".state.draft-{os.getpid()}" / "old").write_text("")
    with pytest.warns(CheckpointWarning, match="left by a process that was killed; removed"):
        put(place, "one").commit()
    assert names(place) == ["manifest.json", "record.json"]
    (place.parent / f".state.replaced-{os.getpid()}").mkdir()
    (place.parent / f".state.replaced-{os.getpid()}" / "old").write_text("")
    with pytest.warns(CheckpointWarning, match="left by a process that was killed; removed"):
        put(place, "two").commit()
    assert text_of(place) == "two"
    assert names(place.parent) == ["state"]


def test_who_reads_finds_the_newer_one_then_and_moves_nothing(place, monkeypatch):
    put(place, "old").commit()
    newer = put(place, "new")
    rename = os.rename

    def first_alone(source, target):
        if source == newer.folder:
            raise Killed
        if target == place:
            raise Killed  # nor is it undone
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", first_alone)
        with pytest.raises(Killed):
            newer.commit()
    before = names(place.parent)
    newer._release()  # as the system does
    with pytest.warns(CheckpointWarning, match="a save was killed"):
        assert text_of(present(place)) == "new"
    (newer.folder / "record.json").write_text("torn")
    with pytest.warns(CheckpointWarning, match="a save was killed"):
        assert text_of(present(place)) == "old"
    assert names(place.parent) == before
    assert present(place.with_name("other")) == place.with_name("other")


def test_a_failure_between_the_two_renames_is_undone(place, monkeypatch):
    put(place, "one").commit()
    draft = put(place, "two")
    rename = os.rename

    def failing(source, target):
        if source == draft.folder:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="Input/output error"):
        draft.commit()
    assert text_of(place) == "one"
    draft.abandon()
    assert names(place.parent) == ["state"]


def test_drafts_of_other_places_are_left_alone(place):
    for name in (".state2.draft-17", ".my.state.draft-17", ".state.draft-x", "state.draft-1"):
        (place.parent / name).mkdir()
    (place.parent / ".state.draft-18").write_text("a file")
    before = names(place.parent)
    settled(place)
    assert names(place.parent) == before
    settled(place / "not" / "there")


def test_a_folder_of_other_things_is_refused(place):
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="is a folder of other things"):
        Draft(place)
    assert names(place) == ["thesis.tex"]
    assert names(place.parent) == ["state"]


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_a_file_in_the_way_is_named(place, below):
    place.write_text("a file")
    with pytest.raises(CheckpointError, match="state' is a file"):
        Draft(place / below)
    assert place.read_text() == "a file"


def test_a_parent_that_cannot_be_written(place, monkeypatch):
    def refuse(self, *arguments, **named):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    put(place, "one").commit()
    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    with pytest.raises(OSError, match="Read-only file system"):
        Draft(place)
    monkeypatch.undo()
    assert text_of(place) == "one"


def test_what_is_deleted_is_whole_or_not_there(place, monkeypatch):
    put(place, "one").commit()
    unlink, unlinked = os.unlink, []

    def killed(*arguments, **named):
        if unlinked:
            raise Killed
        unlinked.append(arguments)
        unlink(*arguments, **named)

    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(Killed):
        discard(place)
    monkeypatch.undo()
    assert unlinked
    assert not place.exists()
    with pytest.warns(CheckpointWarning, match="left by a process that was killed; removed"):
        settled(place)
    assert names(place.parent) == []


WRITER = """
import pathlib, signal, sys
from keras_dist.checkpoint.folder import Draft
signal.alarm(60)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
draft = Draft(pathlib.Path(sys.argv[1]))
(draft.folder / "record.json").write_text(sys.argv[2])
print(draft.folder, flush=True)
signal.sigwait([signal.SIGUSR1])
draft.commit()
"""


def writer(place, text):
    """A process that has begun to write, and commits when it gets SIGUSR1; and where it writes."""
    process = forks.Python("-c", WRITER, place, text)
    while not process.printed()[0].endswith("\n"):
        assert process.is_running()
        time.sleep(0.01)
    return process, pathlib.Path(process.printed()[0].strip())


def end(process, signum):
    os.kill(process.pid, signum)
    return process.outcome(60)[0]


@pytest.mark.multiprocess
def test_the_draft_of_a_killed_process_is_removed_by_the_next_one(place):
    process, left = writer(place, "one")
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    assert left.is_dir()
    with pytest.warns(CheckpointWarning, match=f"{left.name}: left by a process that was killed; removed"):
        draft = put(place, "two")
    assert names(place.parent) == [draft.folder.name]
    draft.commit()
    assert text_of(place) == "two"


@pytest.mark.multiprocess
def test_two_processes_that_live_write_to_one_place(place):
    process, left = writer(place, "one")
    put(place, "two").commit()
    assert text_of(place) == "two"
    assert left.is_dir()
    put(place, "three").abandon()
    assert end(process, signal.SIGUSR1) == 0
    assert text_of(place) == "one"
    assert names(place.parent) == ["state"]


def test_two_threads_write_to_one_place(place):
    one, two = put(place, "one"), put(place, "two")
    assert one.folder != two.folder
    assert is_draft(one.folder) and is_draft(two.folder)
    one.commit()
    three = put(place, "three")
    two.commit()
    assert text_of(place) == "two"
    one.abandon()  # it is over: what has its number now is another one
    three.commit()
    assert text_of(place) == "three"
    assert names(place.parent) == ["state"]


def test_what_a_process_that_lives_has_replaced_is_not_put_back(place, monkeypatch):
    put(place, "one").commit()
    draft = put(place, "two")
    rename, between = os.rename, []

    def look_between(source, target):
        if source == draft.folder:
            between.append(names(place.parent))
            put(place, "three").abandon()
            assert names(place.parent) == between[0]
        rename(source, target)

    monkeypatch.setattr(os, "rename", look_between)
    draft.commit()
    assert between and "state" not in between[0]
    assert text_of(place) == "two"
    assert names(place.parent) == ["state"]


def test_what_readers_have_found_beside_its_place_is_not_removed(place):
    put(place, "new").commit()
    place.rename(place.with_name("new"))
    put(place, "old").commit()
    place.rename(place.with_name(".state.replaced-17"))
    place.with_name("new").rename(place.with_name(".state.draft-17"))
    with pytest.warns(CheckpointWarning) as warned:
        assert text_of(present(place)) == "new"
        put(place, "newest").abandon()
    assert "it was complete, and is used" in str(warned[1].message)
    assert text_of(place) == "new"
    assert names(place.parent) == ["state"]


def test_a_draft_that_may_not_be_removed_is_not_in_the_way(place, monkeypatch):
    (place.parent / ".state.draft-17").mkdir()

    def refuse(path, *arguments, **named):
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        draft = put(place, "one")
    draft.commit()
    assert text_of(place) == "one"


def test_descriptors_are_closed(place):
    before = len(os.listdir("/proc/self/fd"))
    put(place, "one").commit()
    put(place, "two").commit()
    put(place, "three").abandon()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("other", ["notes.txt", "states/step_00000001/record.json", ".lock"])
@pytest.mark.parametrize("comes", ["before", "while it is written"])
def test_what_lies_in_a_folder_is_not_deleted_with_an_earlier_checkpoint(tmp_path, other, comes):
    place = tmp_path / "model"
    snapshot_of({"a": np.zeros(3)}).begin(place)()
    snapshot_of({"a": np.zeros(3)}).begin(place)()  # nothing else is there
    snapshot = snapshot_of({"a": np.ones(3)})
    finish = snapshot.begin(place) if comes == "while it is written" else lambda: snapshot.begin(place)()
    (place / other).parent.mkdir(parents=True, exist_ok=True)
    (place / other).write_text("mine")
    with pytest.raises(CheckpointError, match="is a folder of other things") as raised:
        finish()
    assert other.split("/")[0] in raised.value.given
    assert (place / other).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".model")] == []
    assert Stored(place).arrays_below("")["a"].tolist() == [0, 0, 0]


def test_a_damaged_checkpoint_can_be_replaced(tmp_path):
    place = tmp_path / "model"
    snapshot_of({"a": np.zeros(3)}).begin(place)()
    (place / "manifest.json").write_text("{")
    snapshot_of({"a": np.ones(3)}).begin(place)()
    assert Stored(place).arrays_below("")["a"].tolist() == [1, 1, 1]


def test_links_that_lead_nowhere_are_told(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(CheckpointError, match="leads nowhere"):
        Draft(tmp_path / "a")
