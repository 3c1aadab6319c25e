"""Ctrl-C between two steps, never in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Notes:
    """The handler of SIGINT while steps run. It is the only place where presses are known.

    A press is never forgotten. What a handler raises may come in a `__del__`, or in a callback of the garbage
    collector, where Python swallows it: then the next `check` raises again.

    Attributes:
        shields: while there are any, presses are only noted.
    """

    def __init__(self) -> None:
        self._presses = 0
        self._handled_before = sys.exception()
        self.shields = 1

    def __call__(self, signum: int, frame: object) -> None:
        """Ctrl-C was pressed."""
        self._presses += 1
        if self._presses > 1 and not self.shields:
            self.check()

    def __enter__(self) -> None:
        """Only note what is pressed from now on."""
        self.shields += 1

    def __exit__(self, *exception: object) -> None:
        """No longer."""
        self.shields -= 1

    def check(self) -> None:
        """Raise, if it was, and is not on its way out already: whoever presses on does not disturb that."""
        leaving = sys.exception()
        if self._presses and (leaving is self._handled_before or not isinstance(leaving, KeyboardInterrupt)):
            raise KeyboardInterrupt


@contextlib.contextmanager
def interrupt_between_steps() -> Iterator[Callable[[], None]]:
    """Note the first Ctrl-C instead of raising; the function it gives raises for it, between steps.

    A second Ctrl-C is raised at once, unless in a `shield`: out of a long compilation, or a callback that hangs. Inside
    of another one, in a callback, the function is that of the other. Nothing is done outside of the main thread, where
    Python delivers no signals, and where the user has a handler.
    """
    previous = signal.getsignal(signal.SIGINT)
    if isinstance(previous, _Notes) and _is_main_thread():
        yield previous.check
        return
    if previous is not signal.default_int_handler or not _is_main_thread():
        yield lambda: None
        return
    notes = _Notes()
    signal.signal(signal.SIGINT, notes)
    try:
        notes.shields -= 1
        yield notes.check
    finally:
        notes.shields += 1  # `signal.signal` calls handlers before it sets one
        signal.signal(signal.SIGINT, previous)
        notes.check()


def shield() -> contextlib.AbstractContextManager[Any]:
    """A context, for any number of uses, in which Ctrl-C is only noted, however often it is pressed.

    A `KeyboardInterrupt` between the dispatch of a donated step and the storing of its result would lose the state.
    """
    notes = signal.getsignal(signal.SIGINT)
    return notes if isinstance(notes, _Notes) and _is_main_thread() else contextlib.nullcontext()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
