"""`ModelCheckpoint` and `OrbaxCheckpoint`: save the model at some frequency, or whenever it has improved.

Saves after some time follow the clock of the first process, which reads it at steps that it announces in advance:
clocks differ, and asking at each step would make all processes wait.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import time
from collections import ChainMap
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_number, check_optional, check_path
from keras_dist.callbacks.callback import Logs, Mode
from keras_dist.callbacks.early_stopping import MonitorCallback
from keras_dist.checkpoint import CheckpointManager
from keras_dist.checkpoint.manager import check_number_kept
from keras_dist.errors import ModelError, cause, shorten
from keras_dist.files.buckets import folder_path, in_bucket
from keras_dist.files.drafts import writing_to
from keras_dist.jobs.job import print_message
from keras_dist.jobs.rendezvous import Rendezvous

SaveFrequency = int | str | datetime.timedelta

_SUFFIXES = (".safetensors", ".orbax", ".weights.h5", ".weights.json")
_ENDINGS = " or ".join(map(repr, _SUFFIXES))


class ModelCheckpoint(MonitorCallback):
    """Saves the model after every epoch, after some number of batches, or whenever a value has improved.

    The path determines what is saved: the weights, by `Model.save_weights`, if it ends in `.safetensors`, `.orbax` or
    `.weights.h5`; else the whole model, as a folder or a `.keras` file, by `Model.save`. To keep both the latest and
    the best model, use two callbacks, one with `save_best_only`, with different paths. To resume training that was
    killed, use `BackupAndRestore`.

    Args:
        filepath: path with fields `{epoch}` and `{batch}`, counted from 1, and the names of the logs:
            `"{epoch:02d}-{val_loss:.2f}.weights.safetensors"`. Its folder is created if missing.
        monitor: name of the value to compare.
        verbose: 1 to print messages.
        save_best_only: whether to save only if the value is better than at all earlier saves.
        save_weights_only: whether to require a path for weights; with False the path decides.
        mode: `"min"` or `"max"`, whichever is better; with `"auto"` it is the direction of the metric.
        save_freq: `"epoch"`; or the number of batches between saves; or the time between them as a
            `datetime.timedelta`, counted from the beginning of `fit`. It saves after the execution that reaches it, at
            the same step in all processes of a job, by the clock of the first process.
        initial_value_threshold: value that the first save must improve on.

    Attributes:
        best: the best value; kept between calls of `fit`.

    Raises:
        ModelError: an argument is invalid; at the beginning of training, if `mode="auto"` finds no direction; at a
            save, if the path has a field that is not in the logs.
        OSError: at a save, if the file cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> checkpoint = kd.callbacks.ModelCheckpoint(folder / "{epoch:02d}.weights.safetensors")
        >>> x, y = np.ones((4, 3)), np.ones((4, 1))
        >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[checkpoint])
        >>> sorted(path.name for path in folder.iterdir())
        ['01.weights.safetensors', '02.weights.safetensors']
        >>> report = model.load_weights(folder / "01.weights.safetensors")

    Differs from Keras: NaN is never the best value.
    """

    counts_batches = True
    state_names = ("best", "_epoch", "_last_batch", "_batches_since_save")

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: SaveFrequency = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, mode, min_delta=0)
        if not (isinstance(initial_value_threshold, float) and math.isinf(initial_value_threshold)):
            check_optional(check_number, "initial_value_threshold", initial_value_threshold)
        self.filepath = _checked_path(filepath, save_weights_only)
        self.verbose = verbose
        self.save_best_only, self.save_weights_only = save_best_only, save_weights_only
        self.save_freq = check_save_freq(save_freq)
        self.best = initial_value_threshold
        self._epoch = self._last_batch = -1
        self._batches_since_save = 0
        self._timer: SaveTimer | None = None

    def sees_every_batch(self, mode: Mode) -> bool:
        return mode == "train" and isinstance(self.save_freq, int)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Determine which values are better, and start the clock."""
        self._epoch = -1
        self._timer = timer_of(self.save_freq)
        self._has_warned = False
        if self.save_best_only:
            best = self.best  # the file of an earlier `fit` may be better
            super().on_train_begin(logs)
            self.best = best

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Reset the batch count of the epoch."""
        if epoch != self._epoch:  # otherwise it is resumed
            self._epoch = epoch
            self._last_batch = -1

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Save after every `save_freq` batches, or after that time."""
        steps, self._last_batch = batch - self._last_batch, batch
        self._batches_since_save += steps
        if isinstance(self.save_freq, int):
            is_due = self._batches_since_save >= self.save_freq
        else:
            is_due = self._timer is not None and self._timer.is_due(steps)
        if is_due:
            self._batches_since_save = 0
            self._consider(self._epoch, logs or {}, batch=batch + 1)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save if `save_freq` is `"epoch"`."""
        if self.save_freq == "epoch":
            self._consider(epoch, logs or {})

    def on_train_exit(self, error: BaseException | None) -> None:
        """Report an error that ends training to the other processes of a job."""
        if self._timer is not None:
            self._timer.leave(error)

    def _consider(self, epoch: int, logs: Logs, **numbers: int) -> None:
        """Save, unless only better values are saved and this value is not better."""
        path = self._path({"epoch": epoch + 1, **numbers}, logs)
        saving = True, f"saving model to {path}"
        is_wanted, reason = self._judge(logs, path) if self.save_best_only else saving
        self._say(epoch, reason)
        if is_wanted:
            self._write(path)
            self._say(epoch, f"finished saving model to {path}")

    def _write(self, path: str) -> None:
        if not in_bucket(folder_path(path)):
            with writing_to(path):
                Rendezvous("a save").first(lambda: os.makedirs(os.path.dirname(path) or ".", exist_ok=True))
        if path.endswith(_SUFFIXES):
            self.model.save_weights(path)
        else:
            self.model.save(path)

    def _judge(self, logs: Logs, path: str) -> tuple[bool, str]:
        """Return whether to save, and the message. Without a value to compare the model is saved, with a warning."""
        current: Any = logs.get(self.monitor)
        if current is None or np.ndim(current):
            shape = "" if current is None else f" Its shape is {np.shape(current)}."
            text = f"Can save best model only with {self.monitor} available, as a scalar value. Saving anyway.{shape}"
            self.warn_of_absence(text, logs)
            return True, f"saving model to {path}"
        best = "None" if self.best is None else f"{self.best:.5f}"
        if not self.is_improvement(float(current), self.best):
            return False, f"{self.monitor} did not improve from {best}"
        self.best = float(current)
        return True, f"{self.monitor} improved from {best} to {self.best:.5f}, saving model to {path}"

    def _path(self, numbers: dict[str, Any], logs: Logs) -> str:
        names: ChainMap[str, Any] = ChainMap(numbers, logs)  # pyright: ignore[reportArgumentType]
        try:
            return self.filepath.format_map(names)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            summary = f"ModelCheckpoint: failed to format this callback `filepath`: {self.filepath!r}"
            fix = f"fields are {', '.join([*numbers, *logs])}; batch needs save_freq"
            raise ModelError(summary, given=cause(error), fix=fix) from error

    def _say(self, epoch: int, text: str) -> None:
        if self.verbose:
            print_message(f"\nEpoch {epoch + 1}: {text}")


def _checked_path(filepath: Any, save_weights_only: bool) -> str:
    is_path = isinstance(filepath, str | os.PathLike) and filepath
    path = check_path("filepath", filepath, "model.keras") if is_path else ""
    if path and (not save_weights_only or path.endswith(_SUFFIXES)):
        return path
    raise ModelError(
        "ModelCheckpoint: `filepath` must be a path, which for weights ends in " + _ENDINGS,
        given=f"filepath={shorten(filepath)}, save_weights_only={save_weights_only}",
        fix='for example ModelCheckpoint("model.weights.safetensors", save_weights_only=True)',
    )


class OrbaxCheckpoint(ModelCheckpoint):
    """Saves the model after every epoch, after some number of batches, or whenever a value has improved, by orbax.

    The directory has folders `step_00000012`, named by training steps, written by a `CheckpointManager`: atomically,
    with checksums, and in a job of several processes by all of them. `load_model(directory)` and
    `model.load_weights(directory)` read the newest one, on any mesh. To resume training that was killed in the middle
    of an epoch, use `BackupAndRestore`.

    Args:
        directory: directory of the states; created if missing.
        monitor, verbose, save_best_only, mode, save_freq, initial_value_threshold: as in `ModelCheckpoint`.
        max_to_keep: number of newest states to keep; None for all.
        save_on_background: whether training continues while a state is being written. A save that fails ends training
            at the next save, or at the end of training.
        save_weights_only: whether to save only the weights, for `model.load_weights`.

    Raises:
        ModelError: an argument is invalid; at the beginning of training, if `mode="auto"` finds no direction.
        CheckpointError: `max_to_keep` is invalid; in training, when another job writes to the directory, when it has
            states of later steps, or when a save failed.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> folder = pathlib.Path(tempfile.mkdtemp()) / "states"
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> model.compile("adam", loss="mse")
        >>> checkpoint = kd.callbacks.OrbaxCheckpoint(folder)
        >>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=2, verbose=0, callbacks=[checkpoint])
        >>> int(kd.saving.load_model(folder).optimizer.iterations)
        2

    Differs from Keras: states are named by steps, not by epochs, and have their own format of arrays and JSON. Without
    a value to compare the model is saved, with a warning.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        mode: str = "auto",
        save_freq: SaveFrequency = "epoch",
        initial_value_threshold: float | None = None,
        max_to_keep: int | None = 1,
        save_on_background: bool = True,
        save_weights_only: bool = False,
    ) -> None:
        self.directory = check_path("directory", directory, "states")
        threshold = initial_value_threshold
        super().__init__(self.directory, monitor, verbose, save_best_only, False, mode, save_freq, threshold)
        check_number_kept("max_to_keep", max_to_keep)
        self.max_to_keep = max_to_keep
        self.save_on_background = save_on_background
        self.save_weights_only = save_weights_only
        self._manager: CheckpointManager | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Determine which values are better, and lock the directory."""
        super().on_train_begin(logs)
        self._manager = CheckpointManager(
            self.model, self.directory, self.max_to_keep, asynchronous=self.save_on_background
        )

    def on_train_exit(self, error: BaseException | None) -> None:
        """Wait for the last save, and release the directory."""
        super().on_train_exit(error)
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close(error=error)

    def wait_until_finished(self) -> None:
        """Wait for the save in the background.

        Raises:
            CheckpointError: the save failed.
        """
        if self._manager is not None:
            self._manager.wait_until_finished()

    def _path(self, numbers: object, logs: Logs) -> str:
        return os.fspath(self.directory)

    def _write(self, path: str) -> None:
        if self._manager is None:
            given = "a hook that was called outside of fit"
            raise ModelError("OrbaxCheckpoint: no training is running", given=given, fix="pass the callback to fit")
        snapshot = self.model.snapshot(with_config=not self.save_weights_only)
        if self.save_weights_only:
            snapshot = snapshot.part([name for name in snapshot.arrays if name.startswith("variables/")], {})
        self._manager.save(snapshot)


def check_save_freq(save_freq: SaveFrequency) -> SaveFrequency:
    """Return `save_freq` if it is "epoch", a number of batches, or a duration."""
    others = "'epoch', or a positive datetime.timedelta"
    if isinstance(save_freq, datetime.timedelta):
        if save_freq <= datetime.timedelta():
            raise argument_error("save_freq", save_freq, others, example=datetime.timedelta(minutes=10))
        return save_freq
    if isinstance(save_freq, str) and save_freq == "epoch":
        return save_freq
    return check_int("save_freq", save_freq, 1, alternative=others, example=100)


class SaveTimer:
    """Decides when to save, at the same step in all processes of a job, by the clock of the first process.

    The processes exchange messages only at some steps: whenever the first process looks at its clock, it announces the
    number of steps until it looks again. That is half of the steps that fit into the remaining time, at the current
    speed, and at most twice the last number, since the first steps of a program are only dispatched, or compiled. So it
    looks about `2 * log2(steps between saves)` times between two saves. If steps become slower by a factor f, the save
    is late by at most f / 2 of the remaining time.
    """

    def __init__(self, interval: datetime.timedelta) -> None:
        self._seconds = interval.total_seconds()
        self._job = Rendezvous("when to save")
        self._last_save = self._looked = time.monotonic()
        self._steps, self._wait = 0, 1

    def is_due(self, steps: int) -> bool:
        """Return whether to save now, after `steps` further steps. All processes must call it at the same steps."""
        self._steps += steps
        if self._steps < self._wait:
            return False
        wait = self._job.first(self._look, int)
        self._steps, self._wait = 0, max(wait, 1)
        return wait == 0

    def _look(self) -> int:
        """Return the number of steps until the next look; 0 if a save is due."""
        now = time.monotonic()
        seconds, self._looked = now - self._looked, now
        left = self._last_save + self._seconds - now
        if left <= 0:
            self._last_save = now
            return 0
        if self._job.processes == 1:
            return 1
        most = 2 * self._wait
        return max(1, int(min(most, left / 2 * self._steps / seconds))) if seconds > 0 else most

    def leave(self, error: BaseException | None) -> None:
        """Report an error to the processes that wait for this one."""
        if error is not None:
            with contextlib.suppress(RuntimeError):  # the coordinator may have exited, too
                self._job.give_up(error)


def timer_of(save_freq: SaveFrequency) -> SaveTimer | None:
    """Return a timer that starts now, if `save_freq` is a duration. All processes of a job must call it."""
    return SaveTimer(save_freq) if isinstance(save_freq, datetime.timedelta) else None
