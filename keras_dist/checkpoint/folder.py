"""`Draft`: a folder that comes to be whole, or not at all."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import warnings

from keras_dist.checkpoint.manifest import NAME, damage_of, write_manifest
from keras_dist.distribution import cluster
from keras_dist.distribution.rendezvous import Rendezvous
from keras_dist.errors import CheckpointError, CheckpointWarning

_DRAFT = re.compile(r"\.(?P<name>.+)\.(?:draft|replaced)-\d+")


class Draft:
    """A folder beside its place, where it is written; `commit` notes its files and moves it there.

    Whoever is killed in between leaves the draft, which nothing reads, and what was in its place before.

    Args:
        place: where the folder is to be.
        job: where the processes meet that write to it; the first one makes it and moves it.

    Attributes:
        place: likewise.
        folder: where it is written.

    Raises:
        CheckpointError: the place, or one of the folders around it, is a file; or it is a folder of other things.
        OSError: the folder cannot be made.
    """

    def __init__(self, place: pathlib.Path, job: Rendezvous | None = None) -> None:
        self._job = job or Rendezvous()
        place = place.resolve()  # the program may go elsewhere before it is written; links stay, and point to the new
        places = self._job.each(lambda: str(place))
        if len({*places}) > 1:
            raise CheckpointError(
                "the processes write one checkpoint to different places",
                given=", ".join(f"process {process}: {one!r}" for process, one in enumerate(places)),
                expected="one place, which all processes see",
                fix="give all processes the same absolute path, in a folder that their machines share",
            )
        self.place = place
        self.folder = pathlib.Path(self._job.first(self._begin))
        try:
            self._job.each(self._check_shared)
        except BaseException:
            self.abandon()
            raise

    def commit(self) -> None:
        """Put the folder in its place. What was there is exchanged for it.

        Raises:
            OSError: that cannot be done; what was there is still there.
        """
        write_manifest(self.folder, self._job)
        self._job.first(self._exchange)

    def _begin(self) -> str:
        """Make the folder."""
        place = self.place
        if place == pathlib.Path.cwd():
            raise CheckpointError(
                f"{str(place)!r} is where the program runs",
                given="a checkpoint that would replace the current directory",
                expected="another folder",
                fix="write to a folder in it",
            )
        for path in (place, *place.parents):
            if path.exists() and not path.is_dir():
                raise CheckpointError(
                    f"{str(path)!r} is a file",
                    given=f"a checkpoint to be written to {str(place)!r}",
                    expected="a folder, or nothing",
                    fix="choose another path, or move the file away",
                )
        if place.is_dir() and any(place.iterdir()) and not (place / NAME).exists():
            raise CheckpointError(
                f"{str(place)!r} is a folder of other things",
                given="a folder with files, which a checkpoint would replace",
                expected="an earlier checkpoint, an empty folder, or nothing",
                fix="choose another path",
            )
        folder = place.with_name(f".{place.name}.draft-{os.getpid()}")
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return str(folder)

    def _check_shared(self) -> None:
        """Nothing, if this process sees the folder that the first one has made.

        Raises:
            CheckpointError: it does not.
        """
        if not self.folder.is_dir():
            raise CheckpointError(
                f"{str(self.folder)!r} is not there",
                given=f"a folder that process 0 has made, and process {cluster.process_id()} does not see",
                expected="a place that all processes see",
                fix="write to a folder that the machines of the job share",
            )

    def _exchange(self) -> None:
        """Put the folder in its place."""
        if not self.place.exists():
            os.rename(self.folder, self.place)
            return
        replaced = self.place.with_name(f".{self.place.name}.replaced-{os.getpid()}")
        if replaced.exists():  # by a process of this number, which was killed before it had removed it
            shutil.rmtree(replaced)
        os.rename(self.place, replaced)
        try:
            os.rename(self.folder, self.place)
        except BaseException:
            os.rename(replaced, self.place)
            raise
        shutil.rmtree(replaced, ignore_errors=True)  # the new one is there, whatever becomes of the old one

    def abandon(self) -> None:
        """Remove it."""
        if cluster.process_id() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)


def settled(place: pathlib.Path) -> None:
    """Finish or undo what a writer that was killed had begun; only who may write to `place` calls it.

    A folder that was to be exchanged for a new one, which never came, goes back to its place. Drafts are removed.
    """
    if not place.parent.is_dir():
        return
    for path in sorted(place.parent.iterdir()):
        if place_of(path) != place or not path.is_dir():
            continue
        if ".replaced-" in path.name and not place.exists():
            warnings.warn(f"{path}: a save was killed; what was there before is used again", CheckpointWarning, 3)
            os.rename(path, place)
        else:
            warnings.warn(f"{path}: left by a process that was killed; removed", CheckpointWarning, 3)
            shutil.rmtree(path)


def present(place: pathlib.Path) -> pathlib.Path:
    """The folder at its place; a whole one beside it, if a writer was killed before the new one came there.

    Nothing is moved: who reads may not be allowed to write.
    """
    resolved = place.resolve()
    if place.exists() or not resolved.parent.is_dir():
        return place
    for path in sorted(resolved.parent.iterdir()):  # the draft, which is newer, before what it was to replace
        if place_of(path) == resolved and not damage_of(path):
            warnings.warn(f"{place} is not there: a save was killed; {path} is used", CheckpointWarning, stacklevel=4)
            return path
    return place


def discard(place: pathlib.Path) -> None:
    """Delete a folder so that it is gone, or still whole, if the process is killed meanwhile."""
    draft = place.with_name(f".{place.name}.draft-{os.getpid()}")
    if draft.exists():
        shutil.rmtree(draft)
    os.rename(place, draft)
    shutil.rmtree(draft)


def place_of(path: pathlib.Path) -> pathlib.Path | None:
    """The place that a draft, or what one has replaced, is for; None for other paths."""
    match = _DRAFT.fullmatch(path.name)
    return None if match is None else path.with_name(match["name"])


def is_draft(path: pathlib.Path) -> bool:
    """Whether a path is one of a draft, or of what one has replaced."""
    return place_of(path) is not None
