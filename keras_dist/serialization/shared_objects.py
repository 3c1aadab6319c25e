"""`SharedObjects`: layers that occur several times in one config, which are read as one layer.

A config is a tree, so that a layer inside of two others would become two layers. As in Keras, all its configs get the
same `shared_object_id`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from keras_dist._support import ambient

_NUMBER = "shared_object_id"


@dataclasses.dataclass(frozen=True, eq=False)
class Conversion:
    """Settings of the conversion between objects and configs."""

    custom_objects: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])  # by name
    written: SharedObjects | None = None  # of the config that is written
    read: SharedObjects | None = None  # of the config that is read
    keeps_lambdas: bool = False


_OUTSIDE = Conversion()


def conversion() -> Conversion:
    """Return the settings of the current conversion."""
    return ambient.conversion.get() or _OUTSIDE


def converting(**fields: Any) -> contextlib.AbstractContextManager[object]:
    """Context manager in which fields of `Conversion` have other values."""
    return ambient.with_fields(ambient.conversion, _OUTSIDE, **fields)


@dataclasses.dataclass(eq=False)
class SharedObjects:
    """The shared objects of one config, by id when written and by number when read; or all, with `numbers_all`."""

    numbers_all: bool = False
    written: dict[int, tuple[Any, dict[str, Any]]] = dataclasses.field(
        default_factory=dict
    )  # a kept object keeps its id
    read: dict[int, Any] = dataclasses.field(default_factory=dict)
    numbers: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def writing(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which these objects are written."""
        return converting(written=self)

    def reading(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which these objects are read."""
        return converting(read=self)


def one_config_written() -> contextlib.AbstractContextManager[object]:
    """Return a context in which all that is written belongs to one config."""
    return (conversion().written or SharedObjects()).writing()


def one_config_read() -> contextlib.AbstractContextManager[object]:
    """Return a context in which all that is read belongs to one config."""
    return (conversion().read or SharedObjects()).reading()


def note_written(obj: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of an object, with a number if the object was written before."""
    scope = conversion().written
    if scope is not None and _is_shared(obj):
        _, first = scope.written.setdefault(id(obj), (obj, config))
        if first is not config or scope.numbers_all:
            if _NUMBER not in first:
                first[_NUMBER] = next(scope.numbers)
            config[_NUMBER] = first[_NUMBER]
    return config


def known(config: Mapping[str, Any]) -> Any:
    """Return the object that was read from a config of the same number, or None."""
    scope, number = conversion().read, config.get(_NUMBER)
    return scope.read.get(number) if scope is not None and isinstance(number, int) else None


def note_read(config: Mapping[str, Any], obj: Any) -> None:
    """Keep the object of a config for others with the same number."""
    scope, number = conversion().read, config.get(_NUMBER)
    if scope is not None and isinstance(number, int) and _is_shared(obj):
        scope.read[number] = obj


def _is_shared(obj: Any) -> bool:
    return getattr(type(obj), "_is_shared_in_configs", False)
