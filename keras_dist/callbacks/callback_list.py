"""`CallbackList`: several callbacks called as one, in order."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from keras_dist._support.located_warnings import warn
from keras_dist._support.signatures import takes
from keras_dist.callbacks.callback import Callback, Logs, Mode, has_own, watches
from keras_dist.callbacks.history import History
from keras_dist.callbacks.progbar import ProgbarLogger
from keras_dist.distribution.consistency import Fingerprint, facts_of_config
from keras_dist.errors import CheckpointError, CheckpointWarning, ModelError, cause, shorten, with_type
from keras_dist.training.throughput import Timing


class CallbackList(Callback):
    """Calls every callback in the given order.

    Args:
        callbacks: the callbacks, or one.
        add_history: whether to add a `History`, if there is none.
        add_progbar: whether to add a `ProgbarLogger` at the end, if there is none.
        model: passed to every callback.
        **params: passed to every callback, as a dict.

    Attributes:
        callbacks: the callbacks, as a list.

    Raises:
        ModelError: one of them is not a `Callback`.
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
        self._batch_hooks: dict[tuple[Mode, str], list[tuple[Callable[..., None], bool]]] = {}
        self.callbacks: list[Callback] = []
        try:
            listed = [] if callbacks is None else [*callbacks]  # type: ignore[misc]
        except Exception:  # the user's own __iter__
            listed = [callbacks]
        for callback in listed:
            self.append(callback)  # type: ignore[arg-type]
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
        """The first `History`, or None."""
        return next((callback for callback in self.callbacks if isinstance(callback, History)), None)

    def append(self, callback: Callback) -> None:
        """Add a callback after the others, but before those with `comes_last`.

        Raises:
            ModelError: the object is not a `Callback`, or one of its hooks has other parameters.
        """
        if isinstance(callback, type) or not hasattr(callback, "on_train_batch_end"):
            given = with_type(callback)
            fix = "derive the class from Callback, and pass an instance of it"
            raise ModelError("`callbacks` must hold instances of keras_dist.callbacks.Callback", given=given, fix=fix)
        _check_hooks(callback)
        place = len(self.callbacks)
        while not _comes_last(callback) and place and _comes_last(self.callbacks[place - 1]):
            place -= 1
        self.callbacks.insert(place, callback)

    def set_model(self, model: Any) -> None:
        """Set the model of every callback."""
        self.model = model
        for callback in self.callbacks:
            callback.set_model(model)

    def set_params(self, params: dict[str, Any]) -> None:
        """Set the parameters of every callback."""
        self.params = params
        for callback in self.callbacks:
            callback.set_params(params)

    def sees_every_batch(self, mode: Mode) -> bool:
        """Return whether one of the callbacks must see each single batch."""
        # callbacks of other libraries have no such method, and must
        return any(getattr(one, "sees_every_batch", lambda mode: True)(mode) for one in self.callbacks)

    def begin(self, mode: Mode) -> None:
        """Call `on_train_begin` or the hook of another mode."""
        getattr(self, f"on_{mode}_begin")({})
        for when in ("begin", "end"):
            self._batch_hooks[mode, when] = [
                (getattr(callback, f"on_{mode}_batch_{when}"), getattr(callback, "counts_batches", False))
                for callback in self.callbacks
                if watches(callback, mode)
            ]

    def end(self, mode: Mode, logs: Logs | None = None) -> None:
        """Call `on_train_end` or the hook of another mode."""
        getattr(self, f"on_{mode}_end")({} if logs is None else logs)

    def batch_begin(self, mode: Mode, batch: int) -> None:
        """Call `on_train_batch_begin` or the hook of another mode, if it was defined when the run began."""
        for hook, _ in self._batch_hooks[mode, "begin"]:
            hook(batch, {})

    def batch_end(self, mode: Mode, batch: int, full: int, make_logs: Callable[[], Logs]) -> None:
        """Call `on_train_batch_end` or the hook of another mode, if it was defined when the run began."""
        hooks = self._batch_hooks[mode, "end"]
        logs = make_logs() if hooks else {}
        for hook, counts in hooks:
            hook(batch if counts else full, logs)

    @property
    def handles_interrupts(self) -> bool:
        """Whether one of the callbacks has a hook for signals that end training."""
        return any(has_own(callback, "on_train_interrupt") for callback in self._with("on_train_interrupt"))

    def on_train_interrupt(self, signum: int) -> None:
        """Call `on_train_interrupt` of all callbacks that define it."""
        for callback in self._with("on_train_interrupt"):
            callback.on_train_interrupt(signum)

    def on_train_exit(self, error: BaseException | None) -> None:
        """Call `on_train_exit` of all callbacks, even if one of them raises an error."""
        with contextlib.ExitStack() as stack:
            for callback in reversed(self._with("on_train_exit")):
                stack.callback(callback.on_train_exit, error)

    def facts(self) -> Fingerprint:
        """Return the settings of callbacks that must be equal in all processes of a job."""
        found: dict[str, object] = {}
        shared = [callback for callback in self.callbacks if getattr(callback, "in_every_process", False)]
        for number, callback in enumerate(shared):
            name = f"callback {number}"
            found[name] = type(callback).__qualname__
            found |= facts_of_config(name, {k: v for k, v in vars(callback).items() if _is_setting(k, v)})
        return found

    def get_state(self) -> list[list[Any]]:
        """Return the class name and state of every callback that has a state."""
        found = [[type(callback).__name__, callback.get_state()] for callback in self._with("get_state")]
        return [[name, state] for name, state in found if state is not None]

    def set_state(self, state: list[list[Any]]) -> None:
        """Set the state of each callback from `get_state`, by class name, in order. Warns of states without a callback.

        Raises:
            CheckpointError: a callback cannot use its state.
        """
        waiting = self._with("set_state")
        for name, one in state:
            callback = next((callback for callback in waiting if type(callback).__name__ == name), None)
            if callback is None:
                text = f"the interrupted training had a callback {name}, which is missing here: its state is ignored"
                warn(text, CheckpointWarning)
                continue
            waiting.remove(callback)
            try:
                callback.set_state(one)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                summary = f"training.json: callback {name} cannot use its state"
                fix = "start again in another directory, or restore the model without `continue_training`"
                raise CheckpointError(summary, given=f"{cause(error)}; state {shorten(one)}", fix=fix) from error

    def note_timing(self, timing: Timing) -> None:
        """Store the timing of the training so far in the history."""
        if self.history is not None:
            self.history.timing = timing

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Call `on_epoch_end` of all callbacks. Later callbacks see values that earlier ones add to the logs."""
        logs = {} if logs is None else logs
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, logs)  # pyright: ignore[reportArgumentType]: those of an epoch may be added to

    def _with(self, hook: str) -> list[Callback]:
        """Return the callbacks that have this hook; callbacks of other libraries may lack it."""
        return [callback for callback in self.callbacks if hasattr(callback, hook)]


def _calling_all(hook: str) -> Callable[..., None]:
    @functools.wraps(vars(Callback)[hook])
    def call_all(self: CallbackList, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(vars(Callback)[hook]).bind(self, *args, **kwargs).arguments
        given["logs"] = {} if given.get("logs") is None else given["logs"]
        _, *arguments = given.values()
        for callback in self.callbacks:
            getattr(callback, hook)(*arguments)

    return call_all


for _hook in vars(Callback):
    if _hook.startswith("on_") and _hook not in vars(CallbackList):
        setattr(CallbackList, _hook, _calling_all(_hook))


def _check_hooks(callback: Callback) -> None:
    """Raise if a hook that the callback defines cannot be called with the arguments of this hook."""
    for hook, ours in vars(Callback).items():
        if not hook.startswith("on_") or not hasattr(callback, hook) or not has_own(callback, hook):
            continue
        _, *names = inspect.signature(ours).parameters
        if not takes(getattr(callback, hook), *names):
            parameters = ", ".join("logs=None" if name == "logs" else name for name in ("self", *names))
            summary = f"{hook} of callback {type(callback).__name__} cannot be called with {', '.join(names)}"
            given = f"{shorten(getattr(callback, hook))}"
            raise ModelError(summary, given=given, fix=f"change its parameters: def {hook}({parameters})")


def _is_setting(name: str, value: object) -> bool:
    """Whether an attribute of a callback is an argument that affects training."""
    is_plain = value is None or isinstance(value, bool | int | float | str) or callable(value)
    return is_plain and not name.startswith("_") and name not in ("model", "verbose", "log_dir")


def _comes_last(callback: Callback) -> bool:
    return getattr(callback, "comes_last", False)
