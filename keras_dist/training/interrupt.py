"""Ctrl-C between two steps, never in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupt_between_steps() -> Iterator[Callable[[], None]]:
    """Note the first Ctrl-C instead of raising; the function it gives raises for it, between steps.

    A `KeyboardInterrupt` raised between the dispatch of a donated step and the storing of its result would lose the
    state. A second Ctrl-C is raised at once. Outside the main thread, where Python delivers no
    signals, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler:
        yield lambda: None
        return
    pressed = False

    def note(signum: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def check() -> None:
        nonlocal pressed
        if pressed:
            pressed = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, previous)
        check()
