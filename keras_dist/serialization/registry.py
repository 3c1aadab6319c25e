"""Registry of custom classes and functions, by the names under which configs refer to them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from keras_dist._support.arguments import check_kind
from keras_dist.errors import ConfigError, shorten
from keras_dist.serialization.shared_objects import conversion, converting

_Object = TypeVar("_Object", bound=Any)

_registered: dict[str, Any] = {}
_names: dict[Any, str] = {}


def register_keras_serializable(package: str = "Custom", name: str | None = None) -> Callable[[_Object], _Object]:
    """Return a decorator that registers a class or function as `package>name`, for configs.

    Args:
        package: keeps the names of different projects apart.
        name: by default the name of the class or function.

    Raises:
        ConfigError: a class without `get_config` is registered, or the decorator was not called.

    Example:
        >>> from keras_dist import saving
        >>> @saving.register_keras_serializable("shop")
        ... def double(x):
        ...     return 2 * x
        >>> saving.get_registered_name(double)
        'shop>double'
    """
    if not isinstance(package, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        given = f"package={shorten(package)}"
        fix = "write @saving.register_keras_serializable()"
        raise ConfigError("register_keras_serializable decorates only when it is called", given=given, fix=fix)

    def register(obj: Any) -> Any:
        if inspect.isclass(obj) and not hasattr(obj, "get_config"):
            given = f"{shorten(obj)}"
            fix = "inherit from a class of keras_dist, or define get_config(self) and from_config(cls, config)"
            raise ConfigError(f"{obj.__name__} cannot be registered: it has no get_config", given=given, fix=fix)
        registered_name = f"{package}>{name or obj.__name__}"
        _registered[registered_name] = obj
        _names[obj] = registered_name
        return obj

    return register


def get_registered_name(obj: Any) -> str:
    """Return the name `obj` was registered under, else its own name."""
    return _names.get(obj, getattr(obj, "__name__", type(obj).__name__))


def get_registered_object(
    name: str, custom_objects: Mapping[str, Any] | None = None, module_objects: Mapping[str, Any] | None = None
) -> Any:
    """Return the object registered as `name`, or None.

    Looks in `custom_objects`, the open scopes, the registry and `module_objects`, in this order.
    """
    for table in (custom_objects or {}, conversion().custom_objects, _registered, module_objects or {}):
        if name in table:
            return table[name]
    return None


def named_in_a_package(name: str) -> Any:
    """Return the only object registered under this name in any package; None for none or several."""
    tables = {**_registered, **conversion().custom_objects}
    found = [known for key, known in tables.items() if key.rpartition(">")[2] == name]
    return found[0] if len(found) == 1 else None


def registered_names() -> set[str]:
    """Return the names that users registered, and of open scopes, without packages."""
    known = {**_registered, **conversion().custom_objects}
    return {key.rpartition(">")[2] for key in known if not key.startswith("keras_dist>")}


def get_custom_objects() -> dict[str, Any]:
    """Return the registry, a dict of objects by name. It can be changed; open scopes are not part of it."""
    return _registered


def custom_object_scope(custom_objects: Mapping[str, Any] | None) -> contextlib.AbstractContextManager[object]:
    """Context manager in which configs may refer to the given objects by name."""
    if custom_objects is not None:
        check_kind("custom_objects", custom_objects, Mapping, "a dict of objects by name")
    return converting(custom_objects={**conversion().custom_objects, **(custom_objects or {})})


CustomObjectScope = custom_object_scope
