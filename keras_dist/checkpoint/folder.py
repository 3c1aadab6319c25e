"""`Draft`: a folder that is written atomically. `BucketDraft`: the same in a bucket.

Files are forced to the disk only on request: what a power failure tears, the manifest shows. A bucket has no renames.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import time
from typing import Any, cast

from keras_dist._support.located_warnings import warn
from keras_dist.checkpoint.manifest import NAME, damage_of, listed_in, write_manifest
from keras_dist.errors import CheckpointError, CheckpointWarning, cause, shorten
from keras_dist.files.buckets import in_bucket, refreshed
from keras_dist.files.drafts import (
    draft_path,
    left_drafts,
    make_folders,
    new_draft,
    place_of,
    remove_left,
    sync,
    sync_below,
)
from keras_dist.files.locks import lock_folder, unlock_folder
from keras_dist.files.regular_files import WAITS
from keras_dist.jobs.rendezvous import Rendezvous


class Draft:
    """A temporary folder beside its final place; `commit` writes the manifest of its files and moves it there.

    A writer that is killed leaves the draft, and the previous content of the place; the next draft of the place removes
    it. Drafts that are still being written, by any process, are kept: they have a lock that ends with their process.
    Where folders have no locks, as on Windows and NFS, all drafts are kept. With `fsync`, `commit` forces content and
    new name to the disk.
    """

    def __init__(self, place: pathlib.Path, job: Rendezvous | None = None, fsync: bool = False) -> None:
        self._job, self._fsync, self._lock, self._is_over = job or Rendezvous(), fsync, None, True
        self.place = place = _resolved(place)  # the current directory may change; links are kept
        _check_same(place, self._job)
        number = self._job.first(self._begin, str)
        self.folder = draft_path(place, number)
        try:
            self._job.each(self._check_shared)
        except BaseException:
            self.abandon()
            raise

    def commit(self) -> None:
        """Move the folder to its place, and replace its previous content."""
        write_manifest(self.folder, self._job)
        if self._fsync:
            self._job.each(lambda: sync_below(self.folder))  # by all, since files may be cached on other machines
        self._job.first(self._move)

    def _begin(self) -> str:
        """Create the folder; return its number."""
        place = self.place
        if place == pathlib.Path.cwd():
            summary, given = f"{str(place)!r} is where the program runs", "a checkpoint that would replace it"
            raise CheckpointError(summary, given=given, fix="write to a folder in it")
        for path in (place, *place.parents):
            if path.exists() and not path.is_dir():
                given = f"a checkpoint to be written to {str(place)!r}"
                fix = "choose another path, or move the file away"
                raise CheckpointError(f"{str(path)!r} is a file", given=given, fix=fix)
        _check_holds_no_other(place)
        settled(place, is_only_writer=False)
        if self._fsync:
            make_folders(place.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._number, self._lock = new_draft(place)
        self._is_over = False
        return self._number

    def _check_shared(self) -> None:
        """Raise if this process does not see the folder of the first one."""
        if place_of(self.folder) != self.place or not self.folder.is_dir():
            given = f"a folder that process 0 has made, and process {self._job.process} does not see"
            fix = "write to a folder that the machines of the job share"
            raise CheckpointError(f"{str(self.folder)!r} is not there", given=given, fix=fix)

    def _move(self) -> None:
        if self.place.exists():
            self._exchange()
        else:
            os.rename(self.folder, self.place)
            self._sync_name()
        self._release()

    def _sync_name(self) -> None:
        if self._fsync:
            sync(self.place.parent)

    def _exchange(self) -> None:
        _check_holds_no_other(self.place)  # it may have changed meanwhile
        replaced = self.place.with_name(f".{self.place.name}.replaced-{self._number}")
        if replaced.exists():  # left by a killed process of this number
            shutil.rmtree(replaced)
        with contextlib.ExitStack() as locks:
            with contextlib.suppress(OSError):  # so that it does not look like one that was left
                locks.callback(unlock_folder, lock_folder(self.place))
            os.rename(self.place, replaced)
            try:
                os.rename(self.folder, self.place)
            except BaseException:
                os.rename(replaced, self.place)
                raise
            self._sync_name()
            shutil.rmtree(replaced, ignore_errors=True)  # the new one is in its place, even if this fails

    def abandon(self) -> None:
        """Remove the folder. Does nothing after `commit`, when called again, and in processes other than the first."""
        if not self._is_over:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        self._is_over = True
        unlock_folder(self._lock)


class BucketDraft:
    """A folder in a bucket, written in place after its content is deleted; valid once its manifest is written, last."""

    def __init__(self, place: pathlib.Path, job: Rendezvous | None = None) -> None:
        self._job, self._is_over = job or Rendezvous(), True
        self.place = self.folder = place
        _check_same(place, self._job)
        self._job.first(self._begin)
        self._is_over = self._job.process != 0

    def _begin(self) -> None:
        _check_holds_no_other(refreshed(self.place))
        discard(self.place)

    def commit(self) -> None:
        """Write the manifest."""
        write_manifest(self.folder, self._job)
        self._is_over = True

    def abandon(self) -> None:
        """Remove the folder. Does nothing after `commit`, when called again, and in processes other than the first."""
        if not self._is_over:
            self._is_over = True
            with contextlib.suppress(OSError):  # the next draft removes it
                discard(self.place)


def draft_at(place: pathlib.Path, job: Rendezvous, fsync: bool) -> Draft | BucketDraft:
    """Return a draft of a folder in a file system or in a bucket."""
    return BucketDraft(place, job) if in_bucket(place) else Draft(place, job, fsync)


def _check_same(place: pathlib.Path, job: Rendezvous) -> None:
    """Raise if the processes write to different places."""
    places = job.each(lambda: str(place))
    if len({*places}) > 1:
        given = ", ".join(f"process {process}: {one!r}" for process, one in enumerate(places))
        fix = "give all processes the same absolute path, in a folder that their machines share"
        raise CheckpointError("the processes write one checkpoint to different places", given=given, fix=fix)


def _resolved(place: pathlib.Path) -> pathlib.Path:
    try:
        return place.resolve()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{str(place)!r} leads nowhere", given=cause(error), fix="choose another path") from error


def _check_holds_no_other(place: pathlib.Path) -> None:
    """Raise if a folder has other content than an earlier checkpoint."""
    if not place.is_dir():
        return
    listed = listed_in(place) if (place / NAME).is_file() else None
    own = {NAME, *(pathlib.PurePosixPath(name).parts[0] for name in listed or ())}
    others = sorted(path.name for path in place.iterdir() if path.name not in own)
    if not listed and (listed is not None or in_bucket(place)):  # the manifest is damaged, or not yet written
        others = [name for name in others if name != "arrays" and not name.endswith(".json")]
    if others:
        given = f"a folder with {shorten(others)}, which a checkpoint would delete"
        fix = "choose another path, or move these away"
        raise CheckpointError(f"{str(place)!r} is a folder of other things", given=given, fix=fix)


def settled(place: pathlib.Path, is_only_writer: bool = True) -> None:
    """Finish or undo the work of a killed writer: restore a folder without replacement, and remove drafts.

    Unless it `is_only_writer`, drafts of others are kept, and the folder that `present` finds is moved to its place,
    since it may have been read there.
    """
    if not place.parent.is_dir():
        return
    with contextlib.ExitStack() as locks:
        left = left_drafts(place, locks, is_only_writer)
        if not is_only_writer and left and not place.exists():
            whole = next((path for path in left if not damage_of(path)), None)
            if whole is not None:
                left.remove(whole)
                _put_back(whole, place)
        for path in left:
            if ".replaced-" in path.name and not place.exists():
                _put_back(path, place)
            else:
                remove_left(path, is_only_writer)


def _put_back(path: pathlib.Path, place: pathlib.Path) -> None:
    os.rename(path, place)
    what = "the previous state is used again" if ".replaced-" in path.name else "it was complete, and is used"
    warn(f"{path}: a save was killed; {what}", CheckpointWarning)


def present(place: pathlib.Path) -> pathlib.Path:
    """Return the folder once a writer has moved it to its place; or the complete draft of a killed writer."""
    if in_bucket(place):
        return refreshed(place)
    for wait in WAITS:
        if place.exists() or not is_being_written(place):
            break
        time.sleep(wait)
    resolved = place.resolve()
    if place.exists() or not resolved.parent.is_dir():
        return place
    # nothing is moved, since a reader may lack the permission to write; the draft is newer than what it replaces
    for path in sorted(resolved.parent.iterdir()):
        if place_of(path) == resolved and not _is_locked(path) and not damage_of(path):
            warn(f"{place} is not there: a save was killed; {path} is used", CheckpointWarning)
            return path
    return place


def is_being_written(place: pathlib.Path) -> bool:
    """Whether a running process writes the folder of this place; False if folders have no locks."""
    if in_bucket(place):
        return False
    place = place.resolve()
    try:
        return any(place_of(path) == place and _is_locked(path) for path in place.parent.iterdir())
    except OSError:
        return False


def _is_locked(folder: pathlib.Path) -> bool:
    try:
        unlock_folder(lock_folder(folder))
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def discard(place: pathlib.Path) -> None:
    """Delete a folder atomically: if the process is killed meanwhile, it is either gone or complete."""
    if in_bucket(place):
        objects = cast(Any, refreshed(place))
        (objects / NAME).unlink(missing_ok=True)  # first: without it the folder is not a checkpoint
        objects.rmtree(missing_ok=True)
        return
    draft = draft_path(place, str(os.getpid()))
    if draft.exists():
        shutil.rmtree(draft)
    os.rename(place, draft)
    shutil.rmtree(draft)
