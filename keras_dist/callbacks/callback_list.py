"""`CallbackList`: several callbacks called as one, in order."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from typing import Any

from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.errors import ModelError, shorten


class CallbackList(Callback):
    """Calls every callback in the order given.

    Args:
        callbacks: the callbacks.
        model: given to each of them.
        params: given to each of them.

    Raises:
        ModelError: one of them is not a `Callback`.

    Source: `keras.callbacks.CallbackList`.
    """

    def __init__(self, callbacks: Iterable[Callback], model: Any, params: dict[str, Any]) -> None:
        super().__init__()
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if isinstance(callback, type) or not hasattr(callback, "on_train_batch_end"):
                raise ModelError(
                    "`callbacks` holds something that is not a Callback",
                    given=f"{shorten(callback)} of type {type(callback).__name__}",
                    expected="instances of keras_dist.callbacks.Callback",
                    fix="derive the class from Callback, and pass an instance of it",
                )
        self.set_params(params)
        self.set_model(model)

    def set_model(self, model: Any) -> None:
        """Give every callback the model."""
        self.model = model
        for callback in self.callbacks:
            callback.set_model(model)

    def set_params(self, params: dict[str, Any]) -> None:
        """Give every callback the parameters of the call."""
        self.params = params
        for callback in self.callbacks:
            callback.set_params(params)

    def batch_begin(self, mode: str, batch: int) -> None:
        """`on_train_batch_begin` and its like, by mode."""
        for callback in self.callbacks:
            getattr(callback, f"on_{mode}_batch_begin")(batch, None)

    def batch_end(self, mode: str, batch: int, logs: Logs | None) -> None:
        """`on_train_batch_end` and its like, by mode."""
        for callback in self.callbacks:
            getattr(callback, f"on_{mode}_batch_end")(batch, logs)

    def begin(self, mode: str) -> None:
        """`on_train_begin` and its like, by mode."""
        for callback in self.callbacks:
            getattr(callback, f"on_{mode}_begin")(None)

    def end(self, mode: str, logs: Logs | None = None) -> None:
        """`on_train_end` and its like, by mode."""
        for callback in self.callbacks:
            getattr(callback, f"on_{mode}_end")(logs)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Before an epoch of training."""
        for callback in self.callbacks:
            callback.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """After an epoch and its validation. What a callback adds to the logs, those after it see."""
        # the lazy logs are the second map, which nobody writes
        shared: ChainMap[str, float] = ChainMap({}, logs or {})  # pyright: ignore[reportArgumentType]
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, shared)
