"""`EarlyStopping`, and the base of callbacks that monitor one value of the logs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_dist import ops
from keras_dist._support.arguments import check_int, check_number, check_optional
from keras_dist._support.located_warnings import warn
from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.jobs.job import print_message
from keras_dist.metrics import Metric
from keras_dist.training.compile_metrics import CompileMetrics

_MODES = ("auto", "min", "max")


class MonitorCallback(Callback):
    """Base of callbacks that compare one value of the logs with `best`, its best value so far; see `EarlyStopping`."""

    in_every_process = True

    def __init__(self, monitor: str, mode: str, min_delta: float) -> None:
        super().__init__()
        check_number("min_delta", min_delta)
        self.monitor = monitor
        is_known = isinstance(mode, str) and mode in _MODES
        if not is_known:
            warn(f"{type(self).__name__} mode {shorten(mode)} is unknown, 'auto' is used; valid modes are {_MODES}")
        self.mode = mode if is_known else "auto"
        self.min_delta = abs(min_delta)
        self.best: float | None = None
        self._sign = 1
        self._has_warned = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Reset the state; raise a `ModelError` if `mode="auto"` finds no direction."""
        self.best = None
        self._has_warned = False
        self._sign = 1 if self._is_to_rise() else -1

    @property
    def monitor_op(self) -> Callable[..., Any]:
        """`kd.ops.greater` or `kd.ops.less`: whether its first argument is better than its second."""
        return ops.greater if self._sign > 0 else ops.less

    def is_improvement(self, value: float, reference: float | None) -> bool:
        """Whether `value` is better than `reference` by more than `min_delta`; NaN is never better."""
        if reference is None:
            return not math.isnan(value)
        return self._sign * (value - reference) > self.min_delta

    def watched(self, logs: Logs | None, purpose: str) -> float | None:
        """Return the value from the logs; if it is missing, warn once per training that `purpose` needs it."""
        logs = logs or {}
        value: Any = logs.get(self.monitor)
        if value is None:
            self.warn_of_absence(f"{purpose} conditioned on metric `{self.monitor}` which is not available.", logs)
            return None
        if np.size(value) != 1:
            given = f"monitor={self.monitor!r}, whose value has shape {np.shape(value)}"
            fix = "let the metric average its values, or monitor another"
            raise ModelError(f"{type(self).__name__}: `{self.monitor}` must be a scalar", given=given, fix=fix)
        return float(np.asarray(value).item())

    def warn_of_absence(self, text: str, logs: Logs) -> None:
        """Warn, once per training, that the logs lack the value."""
        if not self._has_warned:
            self._has_warned = True
            near = did_you_mean(self.monitor, logs)
            if self.monitor.startswith("val_") and not any(name.startswith("val_") for name in logs):
                near += "; there was not a validation"
            warn(f"{text} Available metrics are: {','.join(logs)}{near}")

    def _is_to_rise(self) -> bool:
        if self.mode != "auto":
            return self.mode == "max"
        name = self.monitor.removeprefix("val_")
        if name == "loss":
            return False
        metrics = [one for metric in self.model.metrics for one in _parts(metric)]
        # with several outputs a metric is logged as `<output>_<name>`
        found = [m for m in metrics if m.name == name] or [m for m in metrics if name.endswith(f"_{m.name}")]
        directions = {metric._direction for metric in found}
        if len(directions) != 1 or directions == {None}:
            names = dict.fromkeys(["loss", *(metric.name for metric in metrics)])
            meant = "" if found else did_you_mean(self.monitor, [*names, *(f"val_{name}" for name in names)])
            raise ModelError(
                f"{type(self).__name__}: the better direction of `{self.monitor}` is not known{meant}",
                given=f"monitor={self.monitor!r}, mode='auto', metrics {[*names]}",
                fix=("correct `monitor` (val_ before the name is for validation data), or " if meant else "")
                + "pass mode='max' if higher values are better, or mode='min'",
            )
        return directions == {"up"}


def _parts(metric: Metric) -> list[Metric]:
    return metric.metrics if isinstance(metric, CompileMetrics) else [metric]


class EarlyStopping(MonitorCallback):
    """Ends training when a value of the logs has stopped improving.

    Args:
        monitor: name of the value.
        min_delta: smallest change that is an improvement.
        patience: number of epochs without improvement after which training ends.
        verbose: 1 to print messages.
        mode: `"min"` or `"max"`, whichever is better; with `"auto"` it is the direction of the metric.
        baseline: value that must also be improved on within `patience` epochs.
        restore_best_weights: whether to restore the weights of the best epoch, which are kept on the host.
        start_from_epoch: number of epochs to ignore at the beginning.

    Attributes:
        best: the best value.
        best_epoch: the epoch of the best value.
        best_weights: the weights after it, if they will be restored.
        stopped_epoch: the epoch after which this callback has ended training; otherwise 0.
        wait: number of epochs since the last improvement.

    Raises:
        ModelError: an argument is out of range; at the beginning of training, if `mode="auto"` finds no direction.

    Example:
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> model.compile(kd.optimizers.SGD(0.0), loss="mse")
        >>> stopping = kd.callbacks.EarlyStopping(monitor="loss", patience=2)
        >>> x, y = np.ones((4, 3)), np.ones((4, 1))
        >>> len(model.fit(x, y, epochs=10, verbose=0, callbacks=[stopping]).epoch)
        3

    Differs from Keras: NaN is never the best value.
    """

    state_names = ("best", "wait", "stopped_epoch", "best_epoch", "best_weights")

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        check_int("patience", patience, 0)
        check_int("start_from_epoch", start_from_epoch, 0)
        check_optional(check_number, "baseline", baseline)
        self.patience, self.baseline = patience, baseline
        self.verbose = verbose
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = start_from_epoch
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best_weights: list[np.ndarray] | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        super().on_train_begin(logs)
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best_weights = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """End training after `patience` epochs without improvement."""
        if epoch < self.start_from_epoch:
            return
        current = self.watched(logs, "Early stopping")
        if current is None:
            return
        is_better = self.is_improvement(current, self.best)
        if is_better or (self.restore_best_weights and self.best_weights is None):
            self.best_epoch = epoch
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
        self.wait += 1
        if is_better:
            self.best = current
            if self.baseline is None or self.is_improvement(current, self.baseline):
                self.wait = 0
        elif self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.stopped_epoch and self.verbose:
            print_message(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.best_weights is not None:
            if self.verbose:
                print_message(f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}.")
            self.model.set_weights(self.best_weights)
