"""`ReduceLROnPlateau`: reduces the learning rate when a value has stopped improving."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_dist._support.arguments import check_int, check_number
from keras_dist.callbacks.callback import EpochLogs, Logs
from keras_dist.callbacks.learning_rate_scheduler import check_settable, labelled, log_rates
from keras_dist.callbacks.monitor_callback import MonitorCallback
from keras_dist.distribution.jobs.job import print_message
from keras_dist.errors import ModelError


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
            raise ModelError(summary, given=f"factor={factor}", fix="for example factor=0.1")
        check_number("factor", factor, 0)
        check_number("min_lr", min_lr, 0)
        check_int("patience", patience, 0)
        check_int("cooldown", cooldown, 0)
        self.factor, self.min_lr = factor, min_lr
        self.patience, self.cooldown = patience, cooldown
        self.verbose = verbose
        self.cooldown_counter = self.wait = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Reset the state."""
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
