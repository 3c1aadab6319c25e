"""Event files of TensorBoard, by the callback `TensorBoard`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from keras_dist._support.extras import import_extra
from keras_dist.callbacks.tensorboard import TensorBoard
from keras_dist.callbacks.trackers.tracker import Experiment, TrackerRun, register_tracker


@register_tracker("tensorboard")
class TensorBoardRun(TrackerRun):
    """The files that `TensorBoard` writes to `logs/<project>/<name>`, or to `log_dir`; without a profile."""

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        folder = os.path.join("logs", experiment.project, experiment.name or "")
        self._board = TensorBoard(**{"log_dir": folder, **options})
        self._board.set_model(experiment.model)
        self._board.on_train_begin()
        self._board.write_text("config", json.dumps(dict(experiment.config), indent=4, default=str))

    @classmethod
    def library(cls) -> Any:
        """Import the package that writes the files."""
        return import_extra("tensorboardX", "tensorboard", "Tracker: TensorBoard")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write values; values of validation, `val_...`, to another folder."""
        self._board.write(values, step)

    def finish(self, failed: bool) -> None:
        """Close the files."""
        self._board.on_train_end()
