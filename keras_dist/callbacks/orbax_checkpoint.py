"""`OrbaxCheckpoint`: keeps the newest states of a model in a directory, written in the background."""

from __future__ import annotations

import os

from keras_dist._support.arguments import check_path
from keras_dist.callbacks.callback import Logs
from keras_dist.callbacks.model_checkpoint import ModelCheckpoint
from keras_dist.callbacks.save_frequency import SaveFrequency
from keras_dist.checkpoint import CheckpointManager
from keras_dist.checkpoint.manager import check_number_kept
from keras_dist.errors import ModelError


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
