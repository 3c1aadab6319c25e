"""`CheckpointManager`: keeps the newest states of a model in a directory, and restores the newest good one.

Saving from another thread is refused while `fit` runs: only the training thread knows the position between a step and
its callbacks. States of later steps in a directory refuse saving, since the newest step is restored and the new state
would be deleted silently. On CPUs a copy on the devices is written by a thread; memory of accelerators is too scarce
for that, so orbax copies to the host first. A hook of `threading` waits for a save at exit, before the thread pools of
orbax close.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from types import NoneType
from typing import Protocol, Self, runtime_checkable

from keras_dist._support.arguments import check_flag, check_int, check_kind, check_path
from keras_dist._support.located_warnings import warn
from keras_dist.checkpoint import manifest
from keras_dist.checkpoint.background import BackgroundSave, not_written
from keras_dist.checkpoint.folder import discard, settled
from keras_dist.checkpoint.snapshot import STEP, Snapshot, Stored, bases_in, bases_needed, states_in
from keras_dist.checkpoint.unchanged_arrays import FINGERPRINTS, SHARED_BYTES, Bases, fingerprints
from keras_dist.checkpoint.unchanged_arrays import NAME as BASE_NAME
from keras_dist.errors import CheckpointError, CheckpointWarning
from keras_dist.files.buckets import absolute, folder_path, in_bucket
from keras_dist.files.drafts import make_folders, place_of, writing_to
from keras_dist.files.locks import Lock
from keras_dist.jobs.rendezvous import Rendezvous


def check_number_kept(argument: str, number: object) -> None:
    """Raise if `number` is not a number of states or None."""
    if number is not None:
        check_int(argument, number, 1, alternative="None for all", example=2, error=CheckpointError)


@runtime_checkable
class Checkpointable(Protocol):
    """An object that a manager saves and restores: a `Model`."""

    def at_rest(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which other threads do not consume the arrays of a snapshot."""
        ...

    def snapshot(self) -> Snapshot:
        """Return all of its state."""
        ...

    def restore(self, stored: Stored) -> None:
        """Restore a state."""
        ...


class CheckpointManager:
    """Keeps the newest states of a model in a directory, as folders `step_00000012`.

    Saves are atomic: the process may be killed at any time. Each state has a manifest with the CRC-32C of its files.
    Damaged states are skipped with a warning, and are never deleted. Damage by a power failure is detected; with
    `fsync=True` it does not happen. In a job of several processes, all create the manager and call it at the same
    points, with a shared directory; the first process checks and deletes.

    Without locks, a second writer is not detected: on Windows, on network disks whose `flock` fails (NFS without its
    lock service), in buckets. Make sure that only one job writes there: a manager takes incomplete states for states of
    killed processes, and deletes them.

    In a bucket (`"gs://bucket/states"`, for which etils needs the package `gcsfs`) a state is written in place, and is
    valid once it has its manifest, which is written last. Saves are atomic there, too, except a save that replaces a
    state of the same step: the old state is deleted first, and is lost if the process is killed meanwhile; earlier
    states remain. Each state is read once after it was written, for its manifest. `fsync` has no effect.

    Args:
        model: a `Model` whose weights exist.
        directory: a directory, created if missing, or one in a bucket. Only one manager may write there at a time,
            among all jobs that share it.
        keep: number of newest states to keep; None for all.
        keep_every: keep one state permanently for every `keep_every` steps, in addition to the newest ones: the first
            state at or after each multiple of it. None for none. `delete` deletes these, too.
        asynchronous: whether `save` returns while the arrays are still being written. Errors are then raised by the
            next call and by `wait_until_finished`. Python waits for the save at exit; on Python 3.12.0 to 3.12.2, which
            start no threads at exit, call `close` first, else the save may fail, with a warning.
        fsync: whether to force the files and folders of a state to the disk before it is moved to its place, and to
            delete older states only after that. It costs the time of writing to the disk.
        share_frozen: whether to write weights of 64 KiB or more that training does not change, such as a base under
            LoRA, only once, to a folder `base_00000012` that states refer to. These are weights that no gradient
            trains, and that are equal at two saves, or at `note_frozen` and a save, by fingerprints of 64 bits that the
            devices compute. Weights that change later are saved with the state, and in another base from the next save
            on. A base is written before `save` returns, and is deleted with the last state that refers to it. Copy the
            whole directory then, since a state alone lacks these weights.

    Raises:
        CheckpointError: another job writes there, an argument is invalid, or the storage of the directory is neither a
            file system nor a bucket `gs://`.
        MissingExtraError: the directory is in a bucket, and `gcsfs` is not installed.
        OSError: the directory cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> model.compile("adam", loss="mse")
        >>> with kd.checkpoint.CheckpointManager(model, tempfile.mkdtemp(), keep=2) as manager:
        ...     manager.restore_or_initialize()  # there is no state yet
        ...     for _ in range(3):
        ...         loss = model.train_on_batch(np.ones((4, 3)), np.ones((4, 1)))
        ...         path = manager.save()
        ...     manager.steps
        [2, 3]

    Source: `tf.train.CheckpointManager`.
    """

    def __init__(
        self,
        model: Checkpointable,
        directory: str | os.PathLike[str],
        keep: int | None = 5,
        *,
        keep_every: int | None = None,
        asynchronous: bool = False,
        fsync: bool = False,
        share_frozen: bool = False,
    ) -> None:
        check_number_kept("keep", keep)
        if keep_every is not None:
            check_int("keep_every", keep_every, 1, alternative="None", example=1000, error=CheckpointError)
        directory = check_path("directory", directory, "states", CheckpointError)
        check_kind("model", model, Checkpointable, "a Model", error=CheckpointError)
        self._model = model
        self.directory = absolute(folder_path(directory))  # the current directory may change
        self._keep, self._keep_every = keep, keep_every
        self._asynchronous = check_flag("asynchronous", asynchronous, CheckpointError)
        self._fsync = check_flag("fsync", fsync, CheckpointError)
        self._share_frozen = check_flag("share_frozen", share_frozen, CheckpointError)
        self._bases: Bases = {}
        self._recorded: dict[str, str] = {}
        self._writer: BackgroundSave | None = None
        self._damaged: set[int] = set()
        self._job, self._job_behind = Rendezvous("a CheckpointManager"), Rendezvous("the end of a save")
        self._lock: Lock | None = None
        with writing_to(self.directory):
            self._job.first(self._begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(error=error)

    @property
    def steps(self) -> list[int]:
        """The steps of the saved states, ascending."""
        return [*states_in(self.directory)]

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the states, from the oldest to the newest."""
        return [str(self._path(step)) for step in self.steps]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest state, or None. It may be damaged; `restore_or_initialize` checks."""
        return next(reversed(self.checkpoints), None)

    def save(self, snapshot: Snapshot | None = None) -> str:
        """Write the state of the model, and delete the oldest states beyond `keep`.

        Other threads may call `train_on_batch`: their steps wait until the arrays are copied. While `fit` runs, save
        from its callbacks.

        Args:
            snapshot: a state to write instead.

        Returns:
            The path of the state, which may still be written in the background.

        Raises:
            CheckpointError: this save, or the one before in the background, failed; earlier states are untouched. Or
                the directory has states of later steps, which would be restored instead.
            ModelError: `fit` runs in another thread; its callbacks may save, and `Model.save` writes the model alone.
            ClusterError: a process has no device of the model's mesh.
        """
        self._check_open()
        if snapshot is not None:
            check_kind("snapshot", snapshot, Snapshot, "a Snapshot, as model.snapshot() returns it, or None")
        self.wait_until_finished()
        with self._model.at_rest():
            taken = [] if snapshot is None else [snapshot]

            def begin() -> None:
                if not taken:
                    taken.append(self._model.snapshot())
                if self._job.process == 0:
                    self._make_room(taken[0].step)

            self._job.each(begin)
            path = self._path(taken[0].step)
            self._writer = BackgroundSave(
                self._with_bases(taken[0]), path, self._fsync, lambda: self._job_behind.first(self._prune)
            )
        if not self._asynchronous:
            self.wait_until_finished()
        return str(path)

    def note_frozen(self) -> None:
        """Record the weights before training, for `share_frozen`: weights equal at the first save are frozen."""
        if self._share_frozen:
            with self._model.at_rest():
                self._recorded = self._fingerprints(self._model.snapshot())

    def _fingerprints(self, snapshot: Snapshot) -> dict[str, str]:
        large = {name: array for name, array in snapshot.arrays.items() if array.nbytes >= SHARED_BYTES}
        return fingerprints({name: array for name, array in large.items() if name in snapshot.untrained})

    def _with_bases(self, snapshot: Snapshot) -> Snapshot:
        """Let a state refer to bases for unchanged arrays; write a base for unchanged arrays that are in none."""
        if not self._share_frozen:
            return snapshot
        found, before = self._fingerprints(snapshot), self._recorded
        self._recorded = found
        bases = {
            folder: {name: one for name, one in arrays.items() if found.get(name) == one}
            for folder, arrays in self._bases.items()
        }
        there = {name for arrays in bases.values() for name in arrays}
        frozen = {name: one for name, one in found.items() if before.get(name) == one and name not in there}
        if frozen:
            name = self._job.first(lambda: self._free_base(snapshot.step), str)
            place = self.directory / name
            try:
                snapshot.part(frozen, {FINGERPRINTS: frozen}).begin(place, self._fsync)()
            except OSError as error:
                raise not_written(place, error) from error
            bases[name] = frozen
        # other bases may be deleted, since no state needs them
        self._bases = {folder: arrays for folder, arrays in bases.items() if arrays}
        return dataclasses.replace(snapshot, bases=self._bases)

    def _free_base(self, step: int) -> str:
        """Return an unused name of a base, since states may refer to another one of this step."""
        name, taken = f"base_{step:08d}", {path.name for path in bases_in(self.directory)}
        while name in taken:
            name += "_"
        return name

    def check(self) -> None:
        """Raise the error of a failed save in the background.

        In jobs of several processes the next save raises it, since all must raise at the same step.

        Raises:
            CheckpointError: a save has failed.
        """
        if self._writer is not None and self._writer.is_over and self._job.processes == 1:
            self.wait_until_finished()

    def wait_until_finished(self) -> None:
        """Wait for the save in the background.

        Raises:
            CheckpointError: the save failed.
        """
        writer = self._writer
        if writer is not None:
            writer.wait()  # after Ctrl-C, the next caller waits
            self._writer = None
            writer.check()

    def newest(self) -> Stored | None:
        """Return the newest undamaged state, or None without states. Warns of damaged states.

        Raises:
            CheckpointError: all states are damaged.
        """
        self.wait_until_finished()
        mine: list[Stored | None] = []

        def look() -> int | None:
            mine.append(self._newest())
            return mine[0].step if mine[0] is not None else None

        step = self._job.first(look, (int, NoneType))
        found = mine[0] if mine else None if step is None else Stored(self._path(step), is_checked=True)
        self._bases = {} if found is None else found.bases
        return found

    def _newest(self) -> Stored | None:
        tried: list[str] = []
        for step in reversed(self.steps):
            try:
                return Stored(self._path(step))
            except CheckpointError as error:
                self._damaged.add(step)
                problems = "; ".join(error.problems) or error.given
                tried.append(f"{self._path(step).name}: {problems}")
                text = f"{self._path(step)} is skipped, for an older one if there is any: {problems}"
                warn(text, CheckpointWarning)
        if tried:
            summary = f"no checkpoint in {str(self.directory)!r} can be restored"
            fix = "to start again, choose another directory or move these away; nothing was deleted"
            raise CheckpointError(summary, given="; ".join(tried), fix=fix, problems=tuple(tried))
        return None

    def restore_or_initialize(self) -> str | None:
        """Restore the newest undamaged state.

        Returns:
            Its path; None if there is no state, in which case the model is unchanged.

        Raises:
            CheckpointError: all states are damaged, or belong to another model; the model is unchanged.
        """
        self._check_open()
        stored = self.newest()
        if stored is None:
            return None
        self._model.restore(stored)
        return str(stored.folder)

    def delete(self) -> None:
        """Delete all states except those known to be damaged, and the directory if it is then empty."""
        self._check_open()
        try:
            self.wait_until_finished()
            with writing_to(self.directory):
                self._job.first(self._discard_all)
        finally:
            self.close()
        with writing_to(self.directory):
            self._job.first(self._remove_empty)

    def close(self, wait: bool = True, *, error: BaseException | None = None) -> None:
        """Wait for the save in the background, and release the directory.

        Args:
            wait: if False, the save continues, and the directory is released when it ends.
            error: error by which this process leaves its job; the other processes then stop waiting for it.

        Raises:
            CheckpointError: the save failed.
        """
        try:
            if error is not None:
                self._job.give_up(error)
            if wait:
                self.wait_until_finished()
        finally:
            lock, self._lock = self._lock, None
            writer, self._writer = self._writer, None
            if lock is not None and writer is not None:
                writer.call_when_over(lock.release)
            elif lock is not None:
                lock.release()
            self._closed = True

    _closed = False

    def _check_open(self) -> None:
        if self._closed:
            summary = "the CheckpointManager is closed"
            raise CheckpointError(summary, given="a call after close()", fix="make another one")

    def _begin(self) -> None:
        """Take the lock, and remove what killed processes have left of states, but not drafts of other things."""
        if in_bucket(self.directory):
            self._discard_half_written()
            return
        if self._fsync:
            make_folders(self.directory)
        self._lock = Lock(self.directory)
        try:
            places = {place_of(path) for path in self.directory.iterdir()}
            for place in sorted(place for place in places if place is not None):
                if STEP.fullmatch(place.name) or BASE_NAME.fullmatch(place.name):
                    settled(place)
        except BaseException:
            self._lock.release()
            raise

    def _discard_half_written(self) -> None:
        """Delete what has no manifest in a bucket, where it is written last."""
        for path in (*map(self._path, self.steps), *bases_in(self.directory)):
            if not (path / manifest.NAME).is_file():
                discard(path)
                warn(f"{path}: left by a process that was killed; removed", CheckpointWarning)

    def _make_room(self, step: int) -> None:
        """Raise if there are states of later steps; rename a damaged state of this step."""
        later = [self._path(one).name for one in self._whole() if one > step]
        if later:
            given = f"a state of step {step}; there are {', '.join(later)}"
            fix = "restore_or_initialize() first to continue them; or choose another directory, or move them away"
            raise CheckpointError(f"{str(self.directory)!r} holds states of later steps", given=given, fix=fix)
        if self._path(step).exists() and (step in self._damaged or manifest.damage_of(self._path(step))):
            self._put_aside(step)

    def _path(self, step: int) -> pathlib.Path:
        return self.directory / f"step_{step:08d}"

    def _put_aside(self, step: int) -> None:
        path = self._path(step)
        if path.exists():
            aside = path.with_name(f"{path.name}.damaged")
            while aside.exists():
                aside = aside.with_name(f"{aside.name}_")
            with writing_to(path):
                path.rename(aside)
            warn(f"{path} is damaged, and is kept as {aside.name}", CheckpointWarning)
        self._damaged.discard(step)

    def _prune(self) -> None:
        """Delete the oldest states. Damaged ones are neither counted nor deleted."""
        if self._keep is not None:
            whole = self._whole()
            for step in sorted({*whole[: -self._keep]} - self._kept_for_good(whole)):
                discard(self._path(step))
        self._prune_bases()

    def _prune_bases(self) -> None:
        bases = bases_in(self.directory)
        needed = bases_needed(self.directory) if bases else frozenset()
        for path in bases:
            if needed is not None and path.name not in needed:
                discard(path)

    def _kept_for_good(self, whole: list[int]) -> set[int]:
        """Return the first step at or after each multiple of `keep_every`."""
        if self._keep_every is None:
            return set()
        first = {step // self._keep_every: step for step in reversed(whole)}
        first.pop(0, None)
        return {*first.values()}

    def _discard_all(self) -> None:
        for step in self._whole():
            discard(self._path(step))
        self._prune_bases()

    def _remove_empty(self) -> None:
        """Remove the directory if it is empty. A bucket has no directories."""
        if not in_bucket(self.directory) and not any(self.directory.iterdir()):
            self.directory.rmdir()

    def _whole(self) -> list[int]:
        """Return the steps of states that are not known to be damaged and have a manifest, ascending."""
        return [
            step for step in self.steps if step not in self._damaged and (self._path(step) / manifest.NAME).is_file()
        ]
