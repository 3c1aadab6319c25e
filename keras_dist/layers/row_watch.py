"""`RowWatch`: what is noted while a step is traced, to know whether batches of many lengths may share its program."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass
class RowWatch:
    """Whether all that a step does treats each row of a batch by itself, and which rows count.

    Attributes:
        keeps_apart: `keeps_apart(layer, args, kwargs)`, whether a call of a layer does.
        mixer: the first thing that may mix rows, as warnings call it; None for nothing.
        saw_all: whether the step is one whose every part is watched.
        counted: which rows count (rows,); None for all.
    """

    keeps_apart: Callable[[Any, Any, Any], bool]
    mixer: str | None = None
    saw_all: bool = False
    counted: Any = None

    def see(self, layer: Any, args: Any, kwargs: Any) -> None:
        """Note a call of a layer."""
        if self.mixer is None and not self.keeps_apart(layer, args, kwargs):
            self.note(f"layer {layer.name!r} ({type(layer).__name__})")

    def note(self, mixer: str) -> None:
        """Note what may mix rows."""
        self.mixer = self.mixer or mixer

    @contextlib.contextmanager
    def counting(self, rows: Any) -> Iterator[None]:
        """Inside, only these rows (rows,) count; for None all do."""
        self.counted = rows
        try:
            yield
        finally:
            self.counted = None


_current: contextvars.ContextVar[RowWatch | None] = contextvars.ContextVar("row_watch", default=None)


def current() -> RowWatch | None:
    """The watch of the step that is traced; None while nobody wants to know."""
    return _current.get()


@contextlib.contextmanager
def entered(watch: RowWatch) -> Iterator[RowWatch]:
    """Inside, what layers and steps do is noted."""
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)


def note(mixer: str) -> None:
    """Note what may mix rows, if anybody wants to know."""
    watch = current()
    if watch is not None:
        watch.note(mixer)
