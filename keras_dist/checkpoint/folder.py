"""`Draft`: a folder that is written atomically; and `BucketDraft`, one in a bucket."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import time
import warnings
from typing import Any, cast

from keras_dist.checkpoint.manifest import NAME, damage_of, listed_in, write_manifest
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.errors import CheckpointError, CheckpointWarning, cause, shorten
from keras_dist.saving.buckets import in_bucket, refreshed
from keras_dist.saving.drafts import draft_path, left_drafts, new_draft, place_of, remove_left
from keras_dist.saving.locks import lock_folder, unlock_folder
from keras_dist.saving.regular_files import WAITS
from keras_dist.saving.syncing import make_folders, sync, sync_below


class Draft:
    """A temporary folder beside its final place; `commit` writes the manifest of its files and moves it there.

    A writer that is killed leaves the draft, and what was in its place before; the next draft of the place removes it.
    Drafts that are still being written, here or in other processes, are kept: they hold a lock that ends with its
    process. Where folders have no locks, as on Windows and NFS, all drafts are kept.

    Args:
        place: where the folder is to be.
        job: synchronizes the processes that write to it; the first one makes it and moves it.
        fsync: whether `commit` forces all of it to the disk before it is moved, and then its new name.

    Attributes:
        place: where the folder is to be.
        folder: where it is written.
    """

    def __init__(self, place: pathlib.Path, job: Rendezvous | None = None, fsync: bool = False) -> None:
        self._job, self._fsync, self._lock, self._is_over = job or Rendezvous(), fsync, None, True
        self.place = place = _resolved(place)  # the program may go elsewhere; links stay, and point to the new
        _check_same(place, self._job)
        number = self._job.first(self._begin, str)
        self.folder = draft_path(place, number)
        try:
            self._job.each(self._check_shared)
        except BaseException:
            self.abandon()
            raise

    def commit(self) -> None:
        """Move the folder to its place, and replace what was there."""
        write_manifest(self.folder, self._job)
        if self._fsync:
            self._job.each(lambda: sync_below(self.folder))  # by all: on other machines it may be in their memory
        self._job.first(self._move)

    def _begin(self) -> str:
        """Make the folder, of this number."""
        place = self.place
        if place == pathlib.Path.cwd():
            given = "a checkpoint that would replace the current directory"
            fix = "write to a folder in it"
            raise CheckpointError(f"{str(place)!r} is where the program runs", given=given, fix=fix)
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
        """Check that this process sees the folder that the first one has made."""
        if place_of(self.folder) != self.place or not self.folder.is_dir():
            given = f"a folder that process 0 has made, and process {self._job.process} does not see"
            fix = "write to a folder that the machines of the job share"
            raise CheckpointError(f"{str(self.folder)!r} is not there", given=given, fix=fix)

    def _move(self) -> None:
        """Put the folder in its place."""
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
        _check_holds_no_other(self.place)  # they may have come meanwhile
        replaced = self.place.with_name(f".{self.place.name}.replaced-{self._number}")
        if replaced.exists():  # by a process of this number, which was killed before it had removed it
            shutil.rmtree(replaced)
        with contextlib.ExitStack() as locks:
            with contextlib.suppress(OSError):  # so that nobody takes it for one that was left
                locks.callback(unlock_folder, lock_folder(self.place))
            os.rename(self.place, replaced)
            try:
                os.rename(self.folder, self.place)
            except BaseException:
                os.rename(replaced, self.place)
                raise
            self._sync_name()
            shutil.rmtree(replaced, ignore_errors=True)  # the new one is there, whatever becomes of the old one

    def abandon(self) -> None:
        """Remove it. Does nothing the second time, after `commit`, or in processes other than the first."""
        if not self._is_over:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        self._is_over = True
        unlock_folder(self._lock)


class BucketDraft:
    """A folder in a bucket. It is written in its place, and is there when its manifest is, which is written last.

    What was in its place before is deleted first. What a killed writer leaves has no manifest; the next draft of the
    place removes it. The other arguments and attributes are those of `Draft`.
    """

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
        """Remove it. Does nothing the second time, after `commit`, or in processes other than the first."""
        if not self._is_over:
            self._is_over = True
            with contextlib.suppress(OSError):  # the next draft removes it
                discard(self.place)


def draft_at(place: pathlib.Path, job: Rendezvous, fsync: bool) -> Draft | BucketDraft:
    """Return a draft of a folder, here or in a bucket, where an object that is written is safe."""
    return BucketDraft(place, job) if in_bucket(place) else Draft(place, job, fsync)


def _check_same(place: pathlib.Path, job: Rendezvous) -> None:
    """Check that all processes write to the same place."""
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
    """Check that a folder holds nothing but an earlier checkpoint, or does not exist."""
    if not place.is_dir():
        return
    listed = listed_in(place) if (place / NAME).is_file() else None
    own = {NAME, *(pathlib.PurePosixPath(name).parts[0] for name in listed or ())}
    others = sorted(path.name for path in place.iterdir() if path.name not in own)
    if not listed and (listed is not None or in_bucket(place)):  # it is damaged, or half-written, and cannot tell
        others = [name for name in others if name != "arrays" and not name.endswith(".json")]
    if others:
        given = f"a folder with {shorten(others)}, which a checkpoint would delete"
        fix = "choose another path, or move these away"
        raise CheckpointError(f"{str(place)!r} is a folder of other things", given=given, fix=fix)


def settled(place: pathlib.Path, is_only_writer: bool = True) -> None:
    """Finish or undo the work of a killed writer.

    A folder whose replacement was never moved in goes back to its place. Drafts are removed.

    Args:
        place: of the folder.
        is_only_writer: whether nobody else can be writing there. If not, drafts of others are kept, and the folder that
            `present` finds is moved to its place, because it may have been read from there.
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
    what = "what was there before is used again" if ".replaced-" in path.name else "it was whole, and is used"
    warnings.warn(f"{path}: a save was killed; {what}", CheckpointWarning, 4)


def present(place: pathlib.Path) -> pathlib.Path:
    """Return the folder at its place; or a complete one beside it, if a writer was killed before moving it there.

    A writer that is moving it there is waited for. Nothing is moved: a reader may lack the permission to write.
    """
    if in_bucket(place):
        return refreshed(place)
    for wait in WAITS:
        if place.exists() or not is_being_written(place):
            break
        time.sleep(wait)
    resolved = place.resolve()
    if place.exists() or not resolved.parent.is_dir():
        return place
    for path in sorted(resolved.parent.iterdir()):  # the draft, which is newer, before what it was to replace
        if place_of(path) == resolved and not _is_locked(path) and not damage_of(path):
            warnings.warn(f"{place} is not there: a save was killed; {path} is used", CheckpointWarning, stacklevel=4)
            return path
    return place


def is_being_written(place: pathlib.Path) -> bool:
    """Whether a process that still runs writes the folder of this place; False where folders have no locks."""
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
    """Delete a folder atomically: if the process is killed meanwhile, it is either gone or complete.

    In a bucket it is gone when its manifest is.
    """
    if in_bucket(place):
        objects = cast(Any, refreshed(place))
        (objects / NAME).unlink(missing_ok=True)
        objects.rmtree(missing_ok=True)
        return
    draft = draft_path(place, str(os.getpid()))
    if draft.exists():
        shutil.rmtree(draft)
    os.rename(place, draft)
    shutil.rmtree(draft)
