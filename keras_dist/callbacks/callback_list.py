"""`CallbackList`: several callbacks called as one, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from keras_dist.callbacks.callback import Callback, Logs, Mode, watches
from keras_dist.callbacks.history import History
from keras_dist.callbacks.progbar_logger import ProgbarLogger
from keras_dist.errors import ModelError, shorten


class CallbackList(Callback):
    """Calls every callback in the order given.

    Args:
        callbacks: the callbacks, or one.
        add_history: whether a `History` follows them, if there is none among them.
        add_progbar: whether a `ProgbarLogger` comes last, if there is none among them.
        model: given to each of them.
        **params: given to each of them, as a dict.

    Attributes:
        callbacks: the callbacks, as a list.

    Raises:
        ModelError: one of them is not a `Callback`.

    Source: `keras.callbacks.CallbackList`.
    """

    def __init__(
        self,
        callbacks: Iterable[Callback] | Callback | None = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        super().__init__()
        self._batch_hooks: dict[tuple[Mode, str], list[Any]] = {}
        self.callbacks: list[Callback] = []
        for callback in () if callbacks is None else callbacks if isinstance(callbacks, Iterable) else (callbacks,):
            self.append(callback)
        if add_history and self.history is None:
            self.append(History())
        if add_progbar and not any(isinstance(callback, ProgbarLogger) for callback in self.callbacks):
            self.append(ProgbarLogger())
        if params:
            self.set_params(params)
        if model is not None:
            self.set_model(model)

    @property
    def history(self) -> Any:
        """The first `History` among them; None if there is none."""
        return next((callback for callback in self.callbacks if isinstance(callback, History)), None)

    def append(self, callback: Callback) -> None:
        """Call this one, too, after the others.

        Raises:
            ModelError: it is not a `Callback`.
        """
        if isinstance(callback, type) or not hasattr(callback, "on_train_batch_end"):
            raise ModelError(
                "`callbacks` holds something that is not a Callback",
                given=f"{shorten(callback)} of type {type(callback).__name__}",
                expected="instances of keras_dist.callbacks.Callback",
                fix="derive the class from Callback, and pass an instance of it",
            )
        self.callbacks.append(callback)

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

    def sees_every_batch(self, mode: Mode) -> bool:
        """Whether one of the callbacks must see each single batch."""
        return any(_sees_every_batch(callback, mode) for callback in self.callbacks)

    # What the loop calls, by mode

    def begin(self, mode: Mode) -> None:
        """`on_train_begin` and its like."""
        getattr(self, f"on_{mode}_begin")({})
        for when in ("begin", "end"):
            hooks = [getattr(callback, f"on_{mode}_batch_{when}") for callback in self.callbacks]
            self._batch_hooks[mode, when] = [
                hook for hook, callback in zip(hooks, self.callbacks, strict=True) if watches(callback, mode)
            ]

    def end(self, mode: Mode, logs: Logs | None = None) -> None:
        """`on_train_end` and its like."""
        getattr(self, f"on_{mode}_end")({} if logs is None else logs)

    def batch_begin(self, mode: Mode, batch: int) -> None:
        """`on_train_batch_begin` and its like, of the callbacks that had one when the run began."""
        for hook in self._batch_hooks[mode, "begin"]:
            hook(batch, {})

    def batch_end(self, mode: Mode, batch: int, make_logs: Callable[[], Logs]) -> None:
        """`on_train_batch_end` and its like, of the callbacks that had one when the run began."""
        hooks = self._batch_hooks[mode, "end"]
        logs = make_logs() if hooks else {}
        for hook in hooks:
            hook(batch, logs)

    # What loops of one's own call

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Before an epoch of training."""
        self._call_all("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """After an epoch and its validation. What a callback adds to the logs, those after it see."""
        self._call_all("on_epoch_end", epoch, {} if logs is None else logs)

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """The name of `on_train_batch_begin` in older code."""
        self._call_all("on_batch_begin", batch, logs)

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """The name of `on_train_batch_end` in older code."""
        self._call_all("on_batch_end", batch, logs)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Before the first epoch."""
        self._call_all("on_train_begin", logs)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """After the last epoch."""
        self._call_all("on_train_end", logs)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before an execution of training, with its first step."""
        self._call_all("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After an execution of training, with its last step."""
        self._call_all("on_train_batch_end", batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Before an evaluation."""
        self._call_all("on_test_begin", logs)

    def on_test_end(self, logs: Logs | None = None) -> None:
        """After an evaluation."""
        self._call_all("on_test_end", logs)

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before an execution of an evaluation."""
        self._call_all("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After an execution of an evaluation."""
        self._call_all("on_test_batch_end", batch, logs)

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Before a prediction."""
        self._call_all("on_predict_begin", logs)

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """After a prediction."""
        self._call_all("on_predict_end", logs)

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before an execution of a prediction."""
        self._call_all("on_predict_batch_begin", batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After an execution of a prediction."""
        self._call_all("on_predict_batch_end", batch, logs)

    def _call_all(self, hook: str, *args: Any) -> None:
        *others, logs = args
        logs = {} if logs is None else logs
        for callback in self.callbacks:
            getattr(callback, hook)(*others, logs)


def _sees_every_batch(callback: Any, mode: Mode) -> bool:
    """Whether it must see each single batch; callbacks of other libraries cannot be asked, and do."""
    ask = getattr(callback, "sees_every_batch", None)
    return True if ask is None else ask(mode)
