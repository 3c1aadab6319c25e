"""`MonitorCallback`: base class of callbacks that monitor one value of the logs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_dist import ops
from keras_dist._support.arguments import check_number
from keras_dist._support.located_warnings import warn
from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.errors import ModelError, did_you_mean, shorten
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
        if mode not in _MODES:
            warn(f"{type(self).__name__} mode {shorten(mode)} is unknown, 'auto' is used; valid modes are {_MODES}")
        self.mode = mode if mode in _MODES else "auto"
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
