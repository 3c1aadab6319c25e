"""`ResumableIterator`: one pass over the elements of a source, with a position that can be saved as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_dist._support.arguments import argument_error, is_int
from keras_dist._support.types import PyTree
from keras_dist.data.cursor import resuming, set_state
from keras_dist.data.streams import skipped
from keras_dist.errors import DataError


def is_numbered(source: Any) -> bool:
    """Whether elements can be read by number. Sources of grain that repeat forever are iterated."""
    if isinstance(source, Mapping | tuple | str | bytes | type) or not hasattr(source, "__getitem__"):
        return False
    try:
        return 0 <= len(source) < sys.maxsize
    except (TypeError, NotImplementedError):
        return False


def check_source(argument: str, source: Any, elements: str) -> None:
    """Check that `elements` of `source` can be read by number, or iterated in each pass."""
    expected = f"a source of {elements} for each epoch"
    is_container = isinstance(source, Mapping | tuple | str | bytes | type)
    if isinstance(source, Iterator):
        fix = f"pass a function that makes the iterator: {argument}=lambda: ..."
    elif is_container or not (is_numbered(source) or callable(source) or isinstance(source, Iterable)):
        fix = "pass a list, an object with __len__ and __getitem__, an iterable, or a function that returns one"
    else:
        return
    raise argument_error(argument, source, expected, fix=fix, error=DataError)


class ResumableIterator(Iterator[PyTree]):
    """One pass over a source that `check_source` accepts; `title` is its name in messages."""

    def __init__(self, source: Any, title: str) -> None:
        self._source, self._title, self._count = source, title, 0
        self._elements: Any = self._from(0)
        self.has_state = all(hasattr(self._elements, name) for name in ("get_state", "set_state"))

    def _from(self, start: int) -> Iterator[PyTree]:
        if is_numbered(self._source):
            return map(self._source.__getitem__, range(start, len(self._source)))
        elements = iter(self._source if isinstance(self._source, Iterable) else self._source())
        return skipped(elements, start, self._title) if start else elements

    def __next__(self) -> PyTree:
        element = next(self._elements)
        self._count += 1
        return element

    def get_state(self) -> Any:
        """Return the state of the iterator of the source, or the number of elements that were read."""
        return self._elements.get_state() if self.has_state else self._count

    def set_state(self, state: Any) -> None:
        """Move to a position; iterators without a state read their elements again and drop them."""
        if self.has_state:
            set_state(self._elements, state, self._title)
            return
        with resuming(self._title, state):
            if not is_int(state, 0, len(self._source) if is_numbered(self._source) else sys.maxsize):
                raise ValueError("the state must be the number of elements that were read")
            self._elements, self._count = self._from(state), state
