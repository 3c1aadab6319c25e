"""`SharedObjects`: layers that occur several times in one config, which are read as one layer.

A config is a tree, so that a layer inside of two others would become two layers. As in Keras, all its configs get the
same `shared_object_id`.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_dist._support.context_variables import with_value

_NUMBER = "shared_object_id"


@dataclasses.dataclass(eq=False)
class SharedObjects:
    """The shared objects of one config, by id when written and by number when read; or all, with `numbers_all`."""

    numbers_all: bool = False
    _written: dict[int, tuple[Any, dict[str, Any]]] = dataclasses.field(default_factory=dict)
    _read: dict[int, Any] = dataclasses.field(default_factory=dict)
    _count: int = 0

    def writing(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which these objects are written."""
        return with_value(_writing, self)

    def reading(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which these objects are read."""
        return with_value(_reading, self)

    def number(self, obj: Any, config: dict[str, Any]) -> None:
        """Number the config of an object if the object was written before."""
        _, first = self._written.setdefault(id(obj), (obj, config))  # a kept object keeps its id
        if first is not config or self.numbers_all:
            if _NUMBER not in first:
                self._count += 1
                first[_NUMBER] = self._count
            config[_NUMBER] = first[_NUMBER]

    def find(self, number: Any) -> Any:
        """Return the object that was read with this number, or None."""
        return self._read.get(number) if isinstance(number, int) else None

    def keep(self, number: Any, obj: Any) -> None:
        """Keep an object that was read, if it has a number."""
        if isinstance(number, int):
            self._read[number] = obj


_Scope = contextvars.ContextVar[SharedObjects | None]
_writing: _Scope = contextvars.ContextVar("writing", default=None)
_reading: _Scope = contextvars.ContextVar("reading", default=None)


def one_config_written() -> contextlib.AbstractContextManager[object]:
    """Return a context in which all that is written belongs to one config."""
    return (_writing.get() or SharedObjects()).writing()


def one_config_read() -> contextlib.AbstractContextManager[object]:
    """Return a context in which all that is read belongs to one config."""
    return (_reading.get() or SharedObjects()).reading()


def note_written(obj: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of an object, with a number if it is shared."""
    scope = _writing.get()
    if scope is not None and _is_shared(obj):
        scope.number(obj, config)
    return config


def known(config: Mapping[str, Any]) -> Any:
    """Return the object that was read from a config of the same number, or None."""
    scope = _reading.get()
    return None if scope is None else scope.find(config.get(_NUMBER))


def note_read(config: Mapping[str, Any], obj: Any) -> None:
    """Keep the object of a config for others with the same number."""
    scope = _reading.get()
    if scope is not None and _is_shared(obj):
        scope.keep(config.get(_NUMBER), obj)


def _is_shared(obj: Any) -> bool:
    return getattr(type(obj), "_is_shared_in_configs", False)
