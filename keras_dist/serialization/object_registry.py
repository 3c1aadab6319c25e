"""`ObjectRegistry`: the objects of one kind by name, such as `"adam"`, `"relu"` or `"mse"`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from keras_dist._support.signatures import takes
from keras_dist.errors import (
    ConfigError,
    KerasDistError,
    ModelError,
    UnknownNameError,
    did_you_mean,
    shorten,
    with_type,
)
from keras_dist.serialization.object_configs import deserialize_keras_object
from keras_dist.serialization.registry import custom_object_scope, get_registered_object, registered_names


def snake_case(name: str) -> str:
    """Return the name of a class as Keras writes it in snake case: `Conv2DTranspose` becomes `conv2d_transpose`.

    Source: `keras.src.utils.naming.to_snake_case`.
    """
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def callable_with_one_array(found: Any) -> Any:
    """Return `found` if it can be called with one argument, else None."""
    return found if callable(found) and takes(found, None) else None


@dataclasses.dataclass(eq=False)
class ObjectRegistry:
    """The objects of one kind by name.

    Contains objects in `__all__` of a package: subclasses of `base`, by class name and in snake case, and functions.
    Also objects registered with `register_keras_serializable`, and objects of an open `custom_object_scope`. Case is
    ignored.

    Args:
        kind: the kind of the objects, for error messages.
        package: the name of the package that exports them.
        base: the base class, or several, which are not included themselves.
        accepted: description of objects that `get` accepts, for error messages.
        example: code that creates such an object, for error messages.
        convert: converts an object to the result of `get`; returns None for an object of another kind.
        functions: whether to include the functions of the package.
        aliases: more names, and the exported names they stand for.
        spell: function from the name of a class to its other spelling.
        error: the class of the error for an object of another kind.
    """

    kind: str
    package: str
    base: type | tuple[type, ...] = ()
    _: dataclasses.KW_ONLY
    accepted: str
    example: str
    convert: Callable[[Any], Any]
    functions: bool = False
    aliases: Mapping[str, str] | None = None
    spell: Callable[[str], str] = snake_case
    error: type[KerasDistError] = ModelError

    def __post_init__(self) -> None:
        if ", or " not in self.accepted:
            self.accepted = f"or {self.accepted}"

    @functools.cached_property
    def names(self) -> dict[str, Any]:
        """The exported objects, by each of their names."""
        package = importlib.import_module(self.package)
        exported = {name: getattr(package, name) for name in package.__all__}
        known = {name: found for name, found in exported.items() if self._counts(name, found)}
        spelled = {self.spell(found.__name__): found for found in known.values() if isinstance(found, type)}
        return spelled | known | {alias: exported[name] for alias, name in (self.aliases or {}).items()}

    @functools.cached_property
    def _lower_case(self) -> dict[str, Any]:
        return {name.lower(): found for name, found in sorted(self.names.items())}  # upper case comes first

    @functools.cached_property
    def _classes(self) -> dict[str, type]:
        return {self.spell(name): found for name, found in self.names.items() if isinstance(found, type)}

    def _counts(self, name: str, found: Any) -> bool:
        if isinstance(found, type):
            bases = self.base if isinstance(self.base, tuple) else (self.base,)
            return issubclass(found, bases) and found not in bases
        return self.functions and callable(found) and name not in ("get", "serialize", "deserialize")

    def get(self, identifier: Any) -> Any:
        """Return the object that `identifier` means; None for None.

        Args:
            identifier: a name, a config, a class that is made without arguments, or an object.

        Raises:
            UnknownNameError: no object has this name.
            ConfigError: a config cannot be read, or a class needs arguments.
            ModelError: the object is of another kind.
        """
        if identifier is None:
            return None
        found: Any = identifier
        if isinstance(identifier, str):
            found = self._named(identifier)
        elif isinstance(identifier, Mapping):
            config = cast("Mapping[str, Any]", identifier)
            name = str(config.get("class_name"))
            known = self.names.get(name, self._lower_case.get(name.lower()))
            if known is None and name not in ("None", "function") and not {"module", "registered_name"} & config.keys():
                self._named(name)
            known = self._classes.get(getattr(known, "__name__", ""), known)  # arguments are for an object
            found = deserialize_keras_object(
                config, module_objects=self.names | ({} if known is None else {name: known})
            )
        if isinstance(found, type):
            if not takes(found):
                given = f"{self.kind}={shorten(cast('object', identifier))}"
                fix = f"pass an object: {found.__name__}(...)"
                raise ConfigError(f"`{self.kind}` is a class that needs arguments", given=given, fix=fix)
            found = found()
        converted = self.convert(found)
        if converted is None:
            raise self.refused(identifier)
        return converted

    def deserialize(self, config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """Return `get(config)`, with `custom_objects` as further names."""
        with custom_object_scope(custom_objects):
            return self.get(config)

    def refused(self, identifier: Any) -> KerasDistError:
        """Return the error for an object of another kind."""
        summary = f"`{self.kind}` must be a name, a config, {self.accepted}"
        return self.error(summary, given=with_type(identifier), fix=f"for example {self.example}")

    def _named(self, name: str) -> Any:
        found = get_registered_object(name, module_objects=self.names)
        found = self._lower_case.get(name.lower()) if found is None else found
        if found is None:
            near = did_you_mean(name, [*self.names, *registered_names()])
            # each name once: `MeanSquaredError` is also `mean_squared_error`
            spelled = {name: self.spell(name) for name in self.names}
            listed = sorted(name for name, other in spelled.items() if name == other or other not in spelled)
            names = "a name" if near else f"one of {', '.join(listed)}"
            raise UnknownNameError(
                f"unknown {self.kind} {name!r}{near}",
                given=f"{self.kind}={shorten(name)}",
                expected=f"{names}, a config, {self.accepted}",
                fix="correct the name, or register your own: @saving.register_keras_serializable() gives it a name",
            )
        return found
