"""`LambdaCallback`: a callback made of functions."""

from __future__ import annotations

from collections.abc import Callable

from keras_dist._support.arguments import argument_error
from keras_dist.callbacks.callback import Callback
from keras_dist.errors import ModelError, shorten, unknown_name_error

_HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class LambdaCallback(Callback):
    """Calls functions as hooks.

    Args:
        on_epoch_begin: called as `on_epoch_begin(epoch, logs)`.
        on_epoch_end: called as `on_epoch_end(epoch, logs)`.
        on_train_begin: called as `on_train_begin(logs)`.
        on_train_end: called as `on_train_end(logs)`.
        on_train_batch_begin: called as `on_train_batch_begin(batch, logs)`.
        on_train_batch_end: called as `on_train_batch_end(batch, logs)`.
        **kwargs: functions for the other hooks of `Callback`, by name; other names than `on_...` are set as attributes.

    Raises:
        ModelError: a hook is unknown, or its function is not callable.

    Example:
        >>> import keras_dist as kd
        >>> callback = kd.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["loss"]))
        >>> callback.on_epoch_end(0, {"loss": 0.5})
        0 0.5
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., object] | None = None,
        on_epoch_end: Callable[..., object] | None = None,
        on_train_begin: Callable[..., object] | None = None,
        on_train_end: Callable[..., object] | None = None,
        on_train_batch_begin: Callable[..., object] | None = None,
        on_train_batch_end: Callable[..., object] | None = None,
        **kwargs: Callable[..., object] | None,
    ) -> None:
        hooks = {name: given for name, given in locals().items() if name in _HOOKS} | kwargs
        super().__init__()
        for name, function in hooks.items():
            if name not in _HOOKS and name.startswith("on_"):
                what, given, fix = "LambdaCallback: unknown hook", f"{name}={shorten(function)}", "subclass Callback"
                raise unknown_name_error(what, name, _HOOKS, given=given, fix=fix, error=ModelError)
            if function is not None:
                if name in _HOOKS and not callable(function):
                    raise argument_error(name, function, "a function")
                setattr(self, name, function)
