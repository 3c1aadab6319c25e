"""`LearningRateScheduler` and `ReduceLROnPlateau`: set the learning rate between epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_dist._support.arguments import check_int, check_number
from keras_dist._support.signatures import takes
from keras_dist.callbacks.callback import Callback, EpochLogs, Logs
from keras_dist.callbacks.early_stopping import MonitorCallback
from keras_dist.errors import ArgumentTypeError, ModelError, shorten, with_type
from keras_dist.jobs.job import print_message
from keras_dist.optimizers import MultiOptimizer


class LearningRateScheduler(Callback):
    """Sets the learning rate at the beginning of each epoch.

    The rate of each epoch is added to its logs as `learning_rate`; with several optimizers, for each of which
    `schedule` is called, as `learning_rate_<name>`.

    Args:
        schedule: `schedule(epoch, learning_rate)` or `schedule(epoch)` returns the rate of an epoch; epochs are counted
            from 0.
        verbose: 1 to print the rates.

    Raises:
        ModelError: `schedule` cannot be called like this; at the beginning of training, when the optimizer's rate
            cannot be set; at the beginning of an epoch, when the schedule does not return a number.

    Example:
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> model.compile(kd.optimizers.SGD(1.0), loss="mse")
        >>> halve = kd.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
        >>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=3, verbose=0, callbacks=[halve])
        >>> history.history["learning_rate"]
        [1.0, 0.5, 0.25]

    Differs from Keras: rates may be any numbers, and a `TypeError` in the schedule is not hidden.
    """

    in_every_process = True
    state_names = ("_epoch",)  # so that the rates of an epoch are set once: a schedule may use the rates before

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        if not callable(schedule) or not (takes(schedule, 0, 0.1) or takes(schedule, 0)):
            summary = "LearningRateScheduler: `schedule` cannot be called as schedule(epoch, learning_rate)"
            fix = "for example lambda epoch, rate: rate if epoch < 10 else 0.9 * rate"
            raise ModelError(summary, given=with_type(schedule), fix=fix)
        self.schedule = schedule
        self.verbose = verbose
        self._epoch = -1

    def on_train_begin(self, logs: Logs | None = None) -> None:
        check_settable(self.model, "LearningRateScheduler")
        self._epoch = -1

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        if epoch == self._epoch:
            return
        self._epoch = epoch
        for label, optimizer in labelled(self.model):
            rate = self._rate(epoch, optimizer)
            optimizer.learning_rate = rate
            if self.verbose:
                name = f"{label} " if label else ""
                print_message(f"\nEpoch {epoch + 1}: LearningRateScheduler setting {name}learning rate to {rate}.")

    def on_epoch_end(self, epoch: int, logs: EpochLogs | None = None) -> None:
        log_rates(self.model, logs)

    def _rate(self, epoch: int, optimizer: Any) -> float:
        takes_rate = takes(self.schedule, 0, 0.1)
        rate = self.schedule(epoch, optimizer.learning_rate) if takes_rate else self.schedule(epoch)
        if rate is None or isinstance(rate, bool | str) or np.ndim(rate):
            given = f"{shorten(rate)} for epoch {epoch}"
            fix = "return the learning rate of this epoch"
            raise ModelError("LearningRateScheduler: the output of `schedule` must be a number", given=given, fix=fix)
        return float(rate)


def check_settable(model: Any, callback: str) -> None:
    """Raise if the learning rate of an optimizer of the model cannot be set."""
    for _, optimizer in labelled(model):
        try:
            optimizer.learning_rate = optimizer.learning_rate
        except ModelError as error:
            summary = f"{callback} cannot set the learning rate: {error.summary}"
            fix = f"{error.fix}; or leave out {callback}"
            raise ArgumentTypeError(summary, given=error.given, expected=error.expected, fix=fix) from error


def labelled(model: Any) -> list[tuple[str, Any]]:
    """Return the optimizers of the model with their suffixes in messages and logs; a single one has an empty suffix."""
    found: dict[str, Any] = {}
    for name, optimizer in model.optimizers.items():
        parts = optimizer.optimizers if isinstance(optimizer, MultiOptimizer) else [optimizer]
        for part in parts:
            label = part.name if isinstance(optimizer, MultiOptimizer) else name
            same = sum(one == label or one.startswith(f"{label}_") for one in found)
            found[f"{label}_{same}" if same else label] = part
    return [*found.items()] if len(found) > 1 else [("", one) for one in found.values()]


def log_rates(model: Any, logs: EpochLogs | None) -> None:
    """Add the learning rates to the logs of an epoch."""
    if logs is not None:
        for label, optimizer in labelled(model):
            logs[f"learning_rate_{label}" if label else "learning_rate"] = float(optimizer.learning_rate)


class ReduceLROnPlateau(MonitorCallback):
    """Reduces the learning rate when a value of the logs has stopped improving.

    The rate of each epoch is added to its logs as `learning_rate`; with several optimizers, whose rates are all
    reduced, as `learning_rate_<name>`.

    Args:
        monitor, verbose, mode, min_delta: as in `EarlyStopping`.
        factor: factor by which the rate is multiplied.
        patience: number of epochs without improvement after which the rate is reduced.
        cooldown: number of epochs to wait after a reduction.
        min_lr: minimum rate.

    Attributes:
        best: the best value.
        wait: number of epochs since the last improvement.
        cooldown_counter: remaining epochs of the cooldown.

    Raises:
        ModelError: an argument is out of range. Raised when training begins if `mode="auto"` finds no direction or the
            learning rate cannot be set.

    Example:
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(kd.optimizers.SGD(1.0), loss="mse")
        >>> slower = kd.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1)
        >>> x, y = np.ones((4, 3)), np.ones((4, 1))
        >>> history = model.fit(x, y, epochs=5, verbose=0, callbacks=[slower])
        >>> history.history["learning_rate"]
        [1.0, 1.0, 0.5, 0.25, 0.125]

    Differs from Keras: NaN is never the best value.
    """

    state_names = ("best", "wait", "cooldown_counter")

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if isinstance(factor, float | int) and factor >= 1:
            summary = "ReduceLROnPlateau does not support a factor >= 1.0"
            raise ModelError(summary, given=f"factor={shorten(factor)}", fix="for example factor=0.1")
        check_number("factor", factor, 0)
        check_number("min_lr", min_lr, 0)
        check_int("patience", patience, 0)
        check_int("cooldown", cooldown, 0)
        self.factor, self.min_lr = factor, min_lr
        self.patience, self.cooldown = patience, cooldown
        self.verbose = verbose
        self.cooldown_counter = self.wait = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        super().on_train_begin(logs)
        check_settable(self.model, "ReduceLROnPlateau")
        self.cooldown_counter = self.wait = 0

    def on_epoch_end(self, epoch: int, logs: EpochLogs | None = None) -> None:
        """Log the rate, and reduce it after `patience` epochs without improvement."""
        log_rates(self.model, logs)
        current = self.watched(logs, "Learning rate reduction is")
        if current is None:
            return
        if self.in_cooldown():
            self.cooldown_counter -= 1
            self.wait = 0
        if self.is_improvement(current, self.best):
            self.best = current
            self.wait = 0
        elif not self.in_cooldown():
            self.wait += 1
            if self.wait >= self.patience:
                reduced = [self._reduce(*one, epoch) for one in labelled(self.model)]
                if any(reduced):
                    self.cooldown_counter = self.cooldown
                    self.wait = 0

    def in_cooldown(self) -> bool:
        """Return whether a cooldown is active."""
        return self.cooldown_counter > 0

    def _reduce(self, label: str, optimizer: Any, epoch: int) -> bool:
        """Reduce one rate; return whether it was larger than the minimum."""
        old = optimizer.learning_rate
        if old <= np.float32(self.min_lr):
            return False
        new = max(old * self.factor, self.min_lr)
        optimizer.learning_rate = new
        if self.verbose:
            name = f"{label} " if label else ""
            print_message(f"\nEpoch {epoch + 1}: ReduceLROnPlateau reducing {name}learning rate to {new}.")
        return True
