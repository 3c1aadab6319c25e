"""`Callback`: the hooks that fit, evaluate and predict call."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

Logs = Mapping[str, float]
"""Loss and metrics by name; values are fetched from the device when they are read, so reading them costs time."""

EpochLogs = MutableMapping[str, float]
"""The logs of an epoch. What a callback adds to them, the callbacks after it see, and the history."""


class Callback:
    """Base class of callbacks; override the hooks you need.

    Attributes:
        model: the model in use; set before the first hook.
        params: `epochs`, `steps` and `verbose` of the call.

    Differs from Keras: `logs` is a lazy mapping, read-only except for `on_epoch_end`. A batch hook is called when its
    step has been dispatched, which may be before it has run; reading `logs` waits for it.

    Source: `keras.callbacks.Callback`.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.params: dict[str, Any] = {}

    def set_model(self, model: Any) -> None:
        """Called once with the model."""
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        """Called once with the parameters of the call."""
        self.params = params

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Before the first epoch."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """After the last epoch, with its logs."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Before an epoch of training."""

    def on_epoch_end(self, epoch: int, logs: EpochLogs | None = None) -> None:
        """After an epoch and its validation, with the logs of both (`loss`, `val_loss`)."""

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """The name of `on_train_batch_begin` in older code."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """The name of `on_train_batch_end` in older code."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a step of training."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a step of training was dispatched, with the means of the epoch so far."""
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Before an evaluation, of validation data too."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """After an evaluation, with its logs."""

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a batch of an evaluation."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a batch of an evaluation was dispatched."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Before a prediction."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """After a prediction."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a batch of a prediction."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a batch of a prediction was dispatched."""
