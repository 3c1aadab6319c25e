"""The public names of keras_dist: where each is documented, and by which other names it is known."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from types import ModuleType
from typing import Any

import keras_dist

BESIDE = ("dtensor", "ops.image")
"""Public packages that are not names of `keras_dist`."""


@dataclasses.dataclass(frozen=True)
class Name:
    """A public name.

    Args:
        package: the package that exports the name, such as "keras_dist.layers".
        name: the name in the package.
        value: the object.
        page: the package on whose page the object is documented.
        canonical: the full name under which it is documented there.
    """

    package: str
    name: str
    value: Any
    page: str
    canonical: str

    @property
    def full(self) -> str:
        """The name with its package."""
        return f"{self.package}.{self.name}"

    @property
    def is_alias(self) -> bool:
        """Whether the object is documented under another name."""
        return self.full != self.canonical


def exported(module: ModuleType) -> list[str]:
    """Return the names that a package exports; without a list, the classes and functions that it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


@functools.cache
def packages() -> dict[str, ModuleType]:
    """Return the public packages by their full names, with the packages that they export, each once."""
    found: dict[str, ModuleType] = {}
    waiting = [f"keras_dist.{name}" for name in (*keras_dist._PACKAGES, *BESIDE)]
    while waiting:
        name = waiting.pop(0)
        parent, _, last = name.rpartition(".")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            module = getattr(importlib.import_module(parent), last)
        if any(module is each for each in found.values()):
            continue
        found[name] = module
        waiting += [f"{name}.{each}" for each in exported(module) if _is_ours(getattr(module, each))]
    return found


def _is_ours(value: object) -> bool:
    return inspect.ismodule(value) and value.__name__.startswith("keras_dist")


@functools.cache
def names() -> tuple[Name, ...]:
    """Return every public name below the packages, then the names of `keras_dist` itself."""
    found = [
        (package, name, getattr(module, name))
        for package, module in packages().items()
        for name in exported(module)
        if not inspect.ismodule(getattr(module, name))
    ]
    known: dict[int, tuple[str, str]] = {}
    for package, name, value in sorted(found, key=lambda each: _distance(*each)):
        if inspect.isclass(value) or inspect.isfunction(value):
            known.setdefault(id(value), (package, name))
    found += [("keras_dist", name, getattr(keras_dist, name)) for name in keras_dist._PACKAGE_OF]
    return tuple(
        Name(package, name, value, page := known.get(id(value), (package, name))[0], f"{page}.{at}")
        for package, name, value in found
        for at in [known.get(id(value), (package, name))[1]]
    )


def _distance(package: str, name: str, value: Any) -> tuple[bool, bool, int]:
    """Return the sort key of a name of an object; the lowest is the one under which it is documented."""
    module = getattr(value, "__module__", None) or ""
    return name != getattr(value, "__name__", ""), not module.startswith(package), -len(package)


def members(cls: type) -> list[str]:
    """Return the public members of a class that have a docstring and that no other public class documents."""
    public = {each.value for each in names() if inspect.isclass(each.value)} - {cls}
    elsewhere = {base for other in cls.__mro__ if other in public for base in other.__mro__}
    found = []
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not owner.__module__.startswith("keras_dist") or owner in elsewhere:
            continue
        value = inspect.getattr_static(owner, name)
        text = getattr(value, "__doc__", None) or getattr(getattr(value, "__func__", None), "__doc__", None)
        if callable(getattr(cls, name, None)) or isinstance(value, property | functools.cached_property):
            found += [name] if text else []
    return found
