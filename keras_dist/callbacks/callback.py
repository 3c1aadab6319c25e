"""`Callback`: the hooks that fit, evaluate and predict call. `LambdaCallback`: a callback made of functions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self

from keras_dist._support.arguments import argument_error, check_flags
from keras_dist._support.located_warnings import warn
from keras_dist.errors import ModelError, cause, shorten, unknown_name_error
from keras_dist.serialization import absent

Logs = Mapping[str, float]
"""Loss and metrics by name; values are fetched from the device when they are read, so reading them costs time."""

EpochLogs = MutableMapping[str, float]
"""The logs of an epoch. Values that a callback adds are visible to later callbacks and to the history."""

Mode = Literal["train", "test", "predict"]


class Callback:
    """Base class of callbacks; override the hooks you need.

    Attributes:
        model: the current model; set before the first hook.
        params: `epochs`, `steps` and `verbose` of the call.

    An execution is one step, or several steps that the loop groups: `on_train_batch_begin` gets the index of its first
    batch, `on_train_batch_end` the index of its last. With a fixed `steps_per_execution` these differ by a constant, as
    in Keras, even where the data ends before; set `counts_batches = True` in a class that needs the actual last batch.
    Between executions `model.variables` have their current values, and may be assigned.

    Differs from Keras: `logs` is a lazy mapping, read-only except for `on_epoch_end`. A batch hook is called when its
    execution has been dispatched, which may be before it has run; reading `logs` waits for it.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.params: dict[str, Any] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check flags."""
        with contextlib.suppress(TypeError):  # __init__ is about to say so better
            check_flags(cls.__init__, inspect.signature(cls.__init__).bind(None, *args, **kwargs).arguments)
        return super().__new__(cls)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise absent(self, name)

    def set_model(self, model: Any) -> None:
        """Set the model; called once."""
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        """Set the parameters of the call; called once."""
        self.params = params

    def sees_every_batch(self, mode: Mode) -> bool:
        """Return whether batch hooks must be called for each single batch; otherwise the loop may group steps.

        By default, whether the class defines batch hooks. Return False to let the loop group steps nevertheless.

        Args:
            mode: the mode of the hooks.
        """
        return watches(self, mode)

    comes_last = False
    """Whether it is called after all others, whatever its position."""

    counts_batches = False
    """Whether `on_*_batch_end` gets the index of the actual last batch, instead of the last batch of a full group."""

    in_every_process = False
    """Whether each process of a job must have it, with the same settings, since it affects training, or saves."""

    state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that `get_state` returns and `set_state` sets."""

    def get_state(self) -> Any:
        """Return the state to resume from in another process: JSON values, which may contain numpy arrays; or None.

        Called by `BackupAndRestore`, between two batches.
        """
        return {name: getattr(self, name) for name in self.state_names} or None

    def set_state(self, state: Any) -> None:
        """Restore the state of a callback of this class in another process; called after `on_train_begin` of all.

        Args:
            state: result of `get_state`.
        """
        for name in self.state_names:
            setattr(self, name, state[name])

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Called before the first epoch."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Called after the last epoch, with its logs."""

    def on_train_interrupt(self, signum: int) -> None:
        """Called when Ctrl-C, SIGTERM or SIGHUP ends training, after the running step. A second one ends it at once.

        SIGTERM is handled only if a callback defines this hook; otherwise it ends the process as usual.

        Args:
            signum: `signal.SIGINT` or `signal.SIGTERM`.
        """

    def on_train_exit(self, error: BaseException | None) -> None:
        """Called when training ends, normally or by an error; after `on_train_end`, if that is called.

        Args:
            error: the error that ended it; None at a normal end.
        """

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Called before an epoch of training, also when training resumes within an epoch."""

    def on_epoch_end(self, epoch: int, logs: EpochLogs | None = None) -> None:
        """Called after an epoch and its validation, with the logs of both (`loss`, `val_loss`)."""

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Alias of `on_train_batch_begin`."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Alias of `on_train_batch_end`."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Called before an execution of training, with the index of its first batch."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Called after an execution of training is dispatched, with its last batch and the means of the epoch."""
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Called before `evaluate`, and before validation in `fit`."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Called after `evaluate` and after validation in `fit`, with the logs."""

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Called before an execution of `evaluate`, with the index of its first batch."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Called after an execution of `evaluate` is dispatched, with the index of its last batch."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Called before `predict`."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """Called after `predict`."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Called before an execution of `predict`, with the index of its first batch."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Called after an execution of `predict` is dispatched, with the index of its last batch."""


def watches(callback: Callback, mode: Mode) -> bool:
    """Return whether a callback defines batch hooks."""
    hooks = [f"on_{mode}_batch_begin", f"on_{mode}_batch_end"]
    if mode == "train":
        hooks += ["on_batch_begin", "on_batch_end"]
    return any(has_own(callback, hook) for hook in hooks)


def has_own(callback: Callback, hook: str) -> bool:
    """Return whether a callback defines this hook, in its class or, as `LambdaCallback`, on the instance."""
    return getattr(getattr(callback, hook, None), "__func__", None) is not vars(Callback)[hook]


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


@contextlib.contextmanager
def logging_of(callback: Any, kind: type[Exception] = Exception) -> Generator[None]:
    """Enter a context in which an error of a logger is a warning, once: what it logs does not end training."""
    try:
        yield
    except kind as error:
        name = getattr(callback, "tracker", None) or type(callback).__name__
        if not getattr(callback, "_has_failed", False):
            warn(f"{name} cannot log, and training continues: {cause(error)}")
        callback._has_failed = True
