"""Modules under Keras's names, filled with what keras_dist exports."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import operator
import os
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import Any

from tests.keras_source.names import Names

PACKAGE = "as_keras"
"""What `keras` is called in rewritten sources; the installed one stays `keras`."""

OTHERS = f"{PACKAGE}.others"
"""The package of frameworks that are not installed: `tensorflow` is imported from it at the top of rewritten tests."""


class InternalsError(Exception):
    """What a test uses is not part of Keras's interface."""


class MissingError(AttributeError):
    """keras_dist does not have this name of Keras."""


class Absent:
    """What a module lacks: importing it does no harm, using it raises.

    Args:
        error: the class of error.
        name: how Keras calls it.
    """

    def __init__(self, error: type[Exception], name: str) -> None:
        self.__dict__.update(error=error, name=name)

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error(self.name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "pytest", "_pytest")):
            raise AttributeError(name)
        raise self.error(self.name)

    __call__ = __iter__ = __contains__ = __getitem__ = __mro_entries__ = __instancecheck__ = _raise
    __enter__ = __exit__ = _raise


class Module(types.ModuleType):
    """A module of Keras, whose names are looked up when they are used."""

    def __init__(self, name: str, finder: "Finder") -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._finder.find(self.__name__, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `as_keras`, its modules, and rewritten tests that others import from.

    Args:
        names: those of the checkout.
        rewritten: the folder of the rewritten tests.
        stand_ins: values for names of modules, `{"keras.src.backend.backend": ...}`.
    """

    def __init__(self, names: Names, rewritten: pathlib.Path, stand_ins: dict[str, Any]) -> None:
        self.names, self.rewritten, self.stand_ins = names, rewritten, stand_ins
        self.borrowed = tuple(os.environ.get("TRIAL_BORROWED", "").split())

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of `as_keras`."""
        if fullname.split(".")[0] != PACKAGE:
            return None
        if fullname.endswith("_test"):
            file = self.rewritten.joinpath(*fullname.split(".")[2:]).with_suffix(".py")
            return importlib.util.spec_from_file_location(fullname, file)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make the module."""
        return Module(spec.name, self)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: names are found when they are used."""

    def find(self, module: str, name: str) -> Any:
        """Return what a module of `as_keras` calls `name`."""
        if module.startswith(f"{OTHERS}."):
            return Absent(ModuleNotFoundError, f"No module named '{module.removeprefix(f'{OTHERS}.')}'")
        known = f"keras{module.removeprefix(PACKAGE)}"
        full = f"{known}.{name}"
        if full in self.stand_ins:
            return self.stand_ins[full]
        if not known.startswith("keras.src"):
            return importlib.import_module(f"{PACKAGE}.src") if full == "keras.src" else self.public([full])
        found = self.names.resolve(known, name)
        defined = self.names.defined(known, name)
        if defined in self.stand_ins:
            return self.stand_ins[defined]
        if found and found[0].startswith("keras.src"):
            return self.stand_ins.get(found[0]) or importlib.import_module(found[0].replace("keras", PACKAGE, 1))
        if found:
            return self.public(found)
        constant = self.names.constant(*defined.rpartition(".")[::2])
        return Absent(InternalsError, f"{full} is not exported") if constant is None else constant

    def public(self, names: Sequence[str]) -> Any:
        """Return what keras_dist has under the first of these names that it knows."""
        for name in names:
            if name in self.stand_ins:
                return self.stand_ins[name]
            try:
                return operator.attrgetter(name.partition(".")[2])(importlib.import_module("keras_dist"))
            except AttributeError:
                continue
        for name in names:
            if name.split(".")[1] in self.borrowed:
                return operator.attrgetter(name.partition(".")[2])(importlib.import_module("keras"))
        return Absent(MissingError, f"{names[0]} is missing")


def install(source: pathlib.Path, rewritten: pathlib.Path, stand_ins: dict[str, Any]) -> None:
    """Serve `as_keras` from now on."""
    sys.meta_path.insert(0, Finder(Names(source), rewritten, stand_ins))
