"""`BackupAndRestore`: saves the state of training, and resumes from it when the program is restarted.

SIGTERM and SIGHUP are handled only while a callback has `on_train_interrupt`, or in a job of several processes: a
library that swallows signals without saving is worse than none.
"""

from __future__ import annotations

import os
import signal

from keras_dist._support.arguments import check_path
from keras_dist._support.located_warnings import warn
from keras_dist._support.process_notes import is_asked_to_end
from keras_dist.callbacks.callback import Callback, EpochLogs, Logs, Mode
from keras_dist.callbacks.model_checkpoint import SaveFrequency, SaveTimer, check_save_freq, timer_of
from keras_dist.checkpoint import CheckpointManager
from keras_dist.checkpoint.manager import check_number_kept
from keras_dist.errors import CheckpointError, CheckpointWarning, ModelError
from keras_dist.jobs import heartbeat
from keras_dist.jobs.job import print_message


class BackupAndRestore(Callback):
    """Saves the whole state of training, and resumes from it when the program is restarted.

    The state consists of weights, statistics, optimizer slots, random streams, the states of loss, metrics and
    callbacks, the position in the data, and the history. On the same mesh the result is bit for bit equal to
    uninterrupted training; on another mesh it is equal up to rounding. Arrays and datasets with random access resume
    directly; other iterables are read again up to the position, unless their iterators have a state. Your own callbacks
    resume if they define `get_state` and `set_state`.

    Weights that training does not change, such as a base under LoRA, are written once; see `share_frozen` of
    `CheckpointManager`.

    Ctrl-C, SIGTERM and a closed terminal (SIGHUP) end training after the running step and a save, with exit code 75
    (`EXIT_CODE`), which asks for a restart. A second Ctrl-C or SIGTERM ends it at once; in a job of several processes
    the third, since a scheduler may repeat the first, and under `keras-dist launch` only a third Ctrl-C. If a job ends
    because one of its processes has failed, the exit code is 75 only if a state was saved since the start.

    Args:
        backup_dir: a directory for this training only; created if missing. It may be in a bucket, as
            `"gs://bucket/backup"`; see `CheckpointManager` for restrictions there, and without locks.
        save_freq: `"epoch"`; or the number of batches between saves, counted across epochs, with which each step is a
            separate execution; or the time between saves, as `datetime.timedelta(minutes=10)`, after which it saves at
            the end of the running execution. All processes of a job save at the same step, by the clock of the first
            process.
        double_checkpoint: whether to keep at least two states: if the newest is damaged, the one before is used.
        delete_checkpoint: whether to delete the states when training ends normally. They are kept if an exception or a
            signal ends it.
        keep: number of states to keep; None for all.
        asynchronous: whether training continues while a state is being written, except for the first state, without
            which a kill loses all steps. A save that fails ends training at the next step; in a job of several
            processes at the next save, so that all end at the same step.
        fsync: whether to force states to the disk, so that they survive a power failure; see `CheckpointManager`.

    Raises:
        ModelError: an argument is invalid.
        CheckpointError: `keep` is invalid; at the beginning of training, when another job writes to the directory, or
            its states belong to another model or are all damaged; at a step after a failed save.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> backup = kd.callbacks.BackupAndRestore(pathlib.Path(tempfile.mkdtemp()) / "backup", save_freq=10)
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> model.compile("adam", loss="mse")
        >>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=2, verbose=0, callbacks=[backup])

    Differs from Keras: training resumes at the batch, not at the beginning of the epoch; two states are kept, and each
    is checked before it is used.
    """

    EXIT_CODE = os.EX_TEMPFAIL
    counts_batches = True
    in_every_process = True
    comes_last = True

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: SaveFrequency = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        *,
        keep: int | None = 2,
        asynchronous: bool = True,
        fsync: bool = False,
    ) -> None:
        super().__init__()
        self.backup_dir = check_path("backup_dir", backup_dir, "backup")
        self.save_freq = check_save_freq(save_freq)
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        check_number_kept("keep", keep)
        self.keep = max(keep, 2) if double_checkpoint and keep is not None else keep
        self.asynchronous, self.fsync = asynchronous, fsync
        self._manager: CheckpointManager | None = None
        self._timer: SaveTimer | None = None
        self._batches = self._saved_at = 0
        self._last_batch = -1
        self._has_recorded = False
        self._newest: tuple[str, int | None] = "", None  # path of a state, and the steps of this process before it

    def sees_every_batch(self, mode: Mode) -> bool:
        return mode == "train" and isinstance(self.save_freq, int)

    def get_state(self) -> dict[str, int]:
        return {"batches": self._batches, "saved_at": self._batches, "last_batch": self._last_batch}

    def set_state(self, state: dict[str, int]) -> None:
        self._batches, self._saved_at, self._last_batch = state["batches"], state["saved_at"], state["last_batch"]

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Resume from the newest good state, if there is one."""
        self._batches = self._saved_at = 0
        self._last_batch = -1
        self._has_recorded = False
        self._newest = "", None
        manager = CheckpointManager(
            self.model, self.backup_dir, self.keep, asynchronous=self.asynchronous, fsync=self.fsync, share_frozen=True
        )
        self._manager = manager
        stored = manager.newest()
        heartbeat.current().note_save("nothing yet" if stored is None else str(stored.folder))
        self._has_state = stored is not None
        if stored is not None:
            self.model.restore(stored, continue_training=True)
            self._newest = str(stored.folder), heartbeat.current().notes.steps
            print_message(f"BackupAndRestore: resuming from {stored.folder}")
        self._timer = timer_of(self.save_freq)

    def on_epoch_begin(self, epoch: int, logs: EpochLogs | None = None) -> None:
        """Note the weights before the first step, to find weights that training does not change."""
        if not self._has_recorded:
            self._has_recorded = True
            self._open().note_frozen()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after every `save_freq` batches, or after that time."""
        manager = self._open()
        manager.check()
        steps, self._last_batch = batch - self._last_batch, batch
        self._batches += steps
        if isinstance(self.save_freq, int):
            is_due = self._batches - self._saved_at >= self.save_freq
        else:
            is_due = self._timer is not None and self._timer.is_due(steps)
        if is_due:
            self._saved_at = self._batches
            self._save(manager)

    def on_epoch_end(self, epoch: int, logs: EpochLogs | None = None) -> None:
        """Save if `save_freq` is `"epoch"`."""
        self._last_batch = -1
        manager = self._open()
        manager.check()
        if self.save_freq == "epoch":
            self._save(manager)

    def on_train_interrupt(self, signum: int) -> None:
        """Save, unless the state after this step is saved already, and end the process with `EXIT_CODE`."""
        manager, steps = self._open(), heartbeat.current().notes.steps
        manager.wait_until_finished()
        is_saved = self._newest[1] == steps
        if is_saved:
            heartbeat.current().note_save(self._newest[0], steps)  # the launcher looks for a save after the signal
        else:
            self._newest = manager.save(), steps
            manager.wait_until_finished()
        name = signal.Signals(signum).name
        hint = "" if steps else ", with more time: there was none for a step"
        saved = f"saved {'already: ' * is_saved}{self._newest[0]}"
        print_message(f"BackupAndRestore: {name}, {saved}; start the program again to resume{hint}")
        raise SystemExit(self.EXIT_CODE)

    def on_train_exit(self, error: BaseException | None) -> None:
        """Delete the states after a normal end, and release the directory."""
        manager, self._manager = self._manager, None
        if self._timer is not None:
            self._timer.leave(error)
        if manager is None:
            return
        if error is None and self.delete_checkpoint:
            manager.delete()
            heartbeat.current().note_save(None)
            return
        try:
            manager.close(wait=not isinstance(error, KeyboardInterrupt), error=error)
        except CheckpointError as failure:
            if error is None:
                raise
            warn(f"the last save failed, too: {failure}", CheckpointWarning)

    def _save(self, manager: CheckpointManager) -> None:
        self._newest = manager.save(), heartbeat.current().notes.steps
        if not self._has_state:
            manager.wait_until_finished()
            self._has_state = True
        if is_asked_to_end():
            os.kill(os.getpid(), signal.SIGTERM)  # which fit handles in this process, and JAX's runtime in all others

    def _open(self) -> CheckpointManager:
        """Return the manager of the running training."""
        if self._manager is None:
            given = "a hook that was called outside of fit"
            raise ModelError("BackupAndRestore: no training is running", given=given, fix="pass the callback to fit")
        return self._manager
