"""`EarlyStopping`: ends training when a value has stopped improving."""

from __future__ import annotations

import numpy as np

from keras_dist._support.arguments import check_int, check_number, check_optional
from keras_dist.callbacks.callback import Logs
from keras_dist.callbacks.monitor_callback import MonitorCallback
from keras_dist.distribution.jobs.job import print_message


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
        """Reset the state."""
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
        """Restore the best weights."""
        if self.stopped_epoch and self.verbose:
            print_message(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.best_weights is not None:
            if self.verbose:
                print_message(f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}.")
            self.model.set_weights(self.best_weights)
