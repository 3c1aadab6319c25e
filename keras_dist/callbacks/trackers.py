"""`Tracker`: logs, configuration and layouts of a training for an experiment tracker.

Trackers differ in a few calls, which are one small class each, here or of the user. A run begins with the first epoch:
only then is it known whether the training resumes, so that its run continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from keras_dist._support.extras import import_extra
from keras_dist.callbacks.callback import Callback, Logs, Mode, logging_of
from keras_dist.callbacks.learning_rates import labelled, log_rates
from keras_dist.callbacks.tensorboard import TensorBoard, checked_frequency
from keras_dist.distribution.render import render_axes
from keras_dist.errors import ModelError, unknown_name_error
from keras_dist.jobs.job import is_chief


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Description of a training for a tracker.

    Attributes:
        project: name of the group of runs.
        name: name of the run; None for a name that the tracker chooses.
        config: plain values by name.
        layout: axes of each weight by path, as text.
        model: the model.
        run_id: `id` of the run that continues; None for a new run.
    """

    project: str
    name: str | None
    config: Mapping[str, Any]
    layout: Mapping[str, str]
    model: Any
    run_id: str | None = None


class TrackerRun:
    """The base of runs of a tracker. Creating one begins or continues the run.

    Attributes:
        package: the package that it needs, which is also the name of an extra; None for none.
        id: identifies the run, so that a resumed training continues it; None if that is not possible.
    """

    package: ClassVar[str | None] = None
    id: str | None = None

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        """Begin a run with the further arguments of `Tracker`."""

    @classmethod
    def library(cls) -> Any:
        """Import the package of the tracker."""
        return None if cls.package is None else import_extra(cls.package, cls.package, f"Tracker: {cls.__name__}")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values after a number of steps."""
        raise NotImplementedError

    def finish(self, failed: bool) -> None:
        """End the run, after an error if `failed`."""


K = TypeVar("K", bound=type[TrackerRun])
_TRACKERS: dict[str, type[TrackerRun]] = {}


def register_tracker(name: str) -> Callable[[K], K]:
    """Class decorator: `Tracker(name)` creates runs of this `TrackerRun`.

    Args:
        name: the name of the tracker.
    """

    def register(kind: K) -> K:
        _TRACKERS[name] = kind
        return kind

    return register


class Tracker(Callback):
    """Logs a training to an experiment tracker: "trackio", "wandb", "mlflow" or "tensorboard".

    Logs and learning rates are logged with the number of steps; configuration and layouts of the weights at the begin.
    A training that `BackupAndRestore` resumes continues its run. In a job of several processes, the first process logs.
    An error of the tracker after the begin of its run is a warning, once, and training continues.

    Args:
        tracker: name of the tracker; `register_tracker` adds one.
        project: name of the group of runs.
        name: name of the run; by default the tracker chooses one.
        config: values by name to log, in addition to mesh, optimizer, epochs and steps.
        update_freq: `"epoch"`, or also after this number of batches, which then run one by one.
        **options: further arguments of `trackio.init`, `wandb.init`, `mlflow.start_run` or `callbacks.TensorBoard`.

    Raises:
        MissingExtraError: the package of the tracker is not installed.
        ModelError: an argument is invalid.
        UnknownNameError: no tracker has this name.

    Example:
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> @kd.callbacks.register_tracker("print")
        ... class PrintedRun(kd.callbacks.TrackerRun):
        ...     def __init__(self, experiment):
        ...         print(experiment.project, experiment.layout)
        ...
        ...     def log(self, values, step):
        ...         print(step, list(values))
        >>> with kd.DataParallel().scope():
        ...     model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(1, use_bias=False)])
        >>> model.compile("sgd", "mse")
        >>> history = model.fit(np.ones((64, 8)), np.ones((64, 1)), verbose=0, callbacks=kd.callbacks.Tracker("print"))
        keras_dist {'dense/kernel': 'replicated'}
        2 ['epoch', 'loss', 'learning_rate']
    """

    counts_batches = True
    in_every_process = True
    state_names = ("_run_id", "_epoch", "_steps", "_steps_before_epoch")

    def __init__(
        self,
        tracker: str,
        project: str = "keras_dist",
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        update_freq: int | str = "epoch",
        **options: Any,
    ) -> None:
        super().__init__()
        if tracker not in _TRACKERS:
            raise unknown_name_error("unknown tracker", tracker, _TRACKERS, fix="register_tracker adds one")
        self.tracker = tracker
        self.update_freq = checked_frequency(update_freq)
        self._kind = _TRACKERS[tracker]
        if is_chief():
            self._kind.library()
        self._project, self._name, self._config, self._options = project, name, dict(config or {}), options
        self._run: TrackerRun | None = None
        self._run_id: str | None = None
        self._epoch, self._steps, self._steps_before_epoch = -1, 0, 0

    def sees_every_batch(self, mode: Mode) -> bool:
        return mode == "train" and self.update_freq > 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._run_id, self._epoch, self._steps, self._steps_before_epoch = None, -1, 0, 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Begin the run; a resumed training continues its run."""
        if epoch != self._epoch:  # otherwise it is resumed
            if self._epoch < 0:  # with `initial_epoch`
                self._steps = epoch * (self.params.get("steps") or 0)
            self._epoch, self._steps_before_epoch = epoch, self._steps
        if self._run is None and is_chief():
            self._run = self._kind(self._experiment(), **self._options)
            self._run_id = self._run.id

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        before, self._steps = self._steps, self._steps_before_epoch + batch + 1
        if self.update_freq and before // self.update_freq < self._steps // self.update_freq and is_chief():
            self._log({f"batch_{name}": value for name, value in (logs or {}).items()})

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        values: dict[str, Any] = {"epoch": epoch + 1, **(logs or {})}
        with contextlib.suppress(ModelError):  # the rate of a plain optax optimizer is not known
            log_rates(self.model, values)
        if is_chief():
            self._log(values)

    def on_train_exit(self, error: BaseException | None) -> None:
        run, self._run = self._run, None
        if run is not None:
            with logging_of(self):
                run.finish(failed=error is not None)

    def _log(self, values: Mapping[str, Any]) -> None:
        """Log scalars, and arrays element by element."""
        found: dict[str, float] = {}
        for name, value in values.items():
            array = np.asarray(value)
            for index in np.ndindex(array.shape):
                found["_".join([name, *map(str, index)])] = float(array[index])
        if self._run is not None:
            with logging_of(self):
                self._run.log(found, self._steps)

    def _experiment(self) -> Experiment:
        plan = self.model.layout_plan
        config = {
            "model": self.model.name,
            "parameters": self.model.count_params(),
            "mesh": plan.mesh.describe(),
            "optimizer": ", ".join(type(optimizer).__name__ for _, optimizer in labelled(self.model)),
            **{name: value for name, value in self.params.items() if name in ("epochs", "steps")},
            **self._config,
        }
        layout = {row.path: render_axes(row.axes) for row in plan.rows}
        return Experiment(self._project, self._name, config, layout, self.model, self._run_id)


@register_tracker("trackio")
class TrackioRun(TrackerRun):
    """A run of trackio, https://huggingface.co/docs/trackio; the layouts are in its config."""

    package = "trackio"

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        config = {**experiment.config, "layout": dict(experiment.layout)}
        name = experiment.run_id or experiment.name
        if experiment.run_id is not None:
            options = {"resume": "allow", **options}
        self.id = self.library().init(project=experiment.project, name=name, config=config, **options).name

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.library().log(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        self.library().finish()


@register_tracker("wandb")
class WandbRun(TrackerRun):
    """A run of wandb, https://docs.wandb.ai; the layouts are in its config."""

    package = "wandb"

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        config = {**experiment.config, "layout": dict(experiment.layout)}
        if experiment.run_id is not None:
            options = {"id": experiment.run_id, "resume": "allow", **options}
        self._run = self.library().init(project=experiment.project, name=experiment.name, config=config, **options)
        self.id = self._run.id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values; wandb ignores steps before its last one."""
        self._run.log(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


@register_tracker("mlflow")
class MlflowRun(TrackerRun):
    """A run of mlflow, https://mlflow.org/docs: parameters, the artifact `layout.txt`, and metrics."""

    package = "mlflow"

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        mlflow = self.library()
        mlflow.set_experiment(experiment.project)
        run = mlflow.start_run(run_id=experiment.run_id, run_name=experiment.name, **options)
        self.id = run.info.run_id
        if experiment.run_id is None:  # parameters cannot change
            mlflow.log_params(dict(experiment.config))
            mlflow.log_text(str(experiment.model.layout_plan), "layout.txt")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.library().log_metrics(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        self.library().end_run("FAILED" if failed else "FINISHED")


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
        return import_extra("tensorboardX", "tensorboard", "Tracker: TensorBoard")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._board.write(values, step)

    def finish(self, failed: bool) -> None:
        self._board.on_train_end()
