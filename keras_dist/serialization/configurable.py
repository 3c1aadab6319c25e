"""`Configurable`: base of classes that record their constructor arguments.

Overriding a method that is never called is refused when the class is made: it would be dropped silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, cast

from keras_dist._support.arguments import check_flags
from keras_dist._support.raw_errors import explain_methods
from keras_dist._support.signatures import takes
from keras_dist._unstable.class_guards import guard_class
from keras_dist.errors import ConfigError, ConstructorError, ModelError, shorten
from keras_dist.serialization.object_configs import (
    deserialize_keras_object,
    is_lambda,
    lambda_name,
    lambda_refused,
    serialize_keras_object,
)


def absent(obj: object, name: str, hint: str = "") -> AttributeError:
    """Return the error for a missing attribute; it names a constructor that does not call `super().__init__`.

    Args:
        obj: the object without the attribute.
        name: the name of the attribute.
        hint: the end of the message.
    """
    first, *others = [cls for cls in type(obj).__mro__ if "__init__" in vars(cls)]
    calls = getattr(getattr(inspect.unwrap(first.__init__), "__code__", None), "co_names", ("__init__",))
    if "__init__" not in calls and others not in ([], [object]) and not name.startswith("__"):
        return not_initialised(obj)
    return AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}{hint}")


def not_initialised(obj: object) -> ConstructorError:
    """Return the error for an object whose constructor does not call `super().__init__`."""
    name = type(obj).__name__
    given = f"a {name} without what the constructor of {type(obj).__bases__[0].__name__} sets"
    fix = "def __init__(self, ..., **kwargs): super().__init__(**kwargs)"
    return ConstructorError(f"{name}.__init__ does not call super().__init__()", given=given, fix=fix)


class Configurable:
    """Base of classes that record their constructor arguments, for `get_config` and `from_config`.

    A subclass whose state is more than its arguments overrides `get_config`, as in Keras.
    """

    _never_called: ClassVar[Mapping[str, str]] = {}
    """Methods of Keras that nothing calls here, so that users' subclasses must not define them; what to do instead."""

    _arguments: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass that overrides what is never called."""
        is_ours = cls.__module__.startswith("keras_dist.")
        if is_ours and "__slots__" in vars(cls):
            cls.__slots__ = ()  # NNX does not copy slots, and refuses their names; without these they are there, too
        super().__init_subclass__(**kwargs)
        _check_overrides(cls)
        if is_ours:
            explain_methods(cls)
            guard_class(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note the arguments of `__init__`."""
        self = super().__new__(cls)
        # past the `__setattr__` of subclasses, which need not see it
        object.__setattr__(self, "_arguments", _bound(cls, args, kwargs))
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise absent(self, name)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain values: numbers, strings, lists, tuples, and dicts of these.

        Raises:
            ConfigError: an argument cannot be serialized.
        """
        arguments = self._config_arguments()
        if unnamed := [name for name in arguments if name.startswith("*")]:
            given = f"{unnamed[0]} = {shorten(arguments[unnamed[0]])}"
            fix = "take one list instead, or override get_config and from_config"
            raise ConfigError(f"{type(self).__name__} was made with arguments that have no name", given=given, fix=fix)
        return {name: _plain(value) for name, value in arguments.items()}

    def _config_arguments(self) -> dict[str, Any]:
        """Return the arguments that `get_config` writes down."""
        return self._arguments

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create an object from the arguments that `get_config` returned.

        Raises:
            ConfigError: the constructor does not take these arguments, or one of them is a lambda.
        """
        for name, value in config.items():
            if is_lambda(value):
                owner = f"{cls.__name__} {config['name']!r}" if "name" in config else cls.__name__
                raise lambda_refused(f"{lambda_name(value)}, for `{name}` of {owner}")
        arguments = {name: deserialize_keras_object(value) for name, value in config.items()}
        if not takes(cls, **arguments):
            raise ConfigError(
                f"the config does not fit the constructor of {cls.__name__}",
                given=f"config with {', '.join(config) or 'no arguments'}",
                expected=f"{', '.join(list(inspect.signature(cls.__init__).parameters)[1:]) or 'no arguments'}",
                fix="correct the names in the config, or override from_config where they differ",
            )
        return cls(**arguments)


explain_methods(Configurable)


def _plain(value: Any) -> Any:
    """Return a value as `serialize_keras_object` does, but tuples as they are: constructors take these."""
    if type(value) is not tuple:
        return serialize_keras_object(value)
    return tuple(_plain(item) for item in cast(tuple[Any, ...], value))


def _check_overrides(cls: type) -> None:
    """Check that a class outside of this package defines nothing that is never called."""
    if _is_ours(cls):
        return
    theirs = {name for base in cls.__mro__ if not _is_ours(base) for name in vars(base)}
    for base in cls.__mro__:
        for name, instead in vars(base).get("_never_called", {}).items():
            if name in theirs:
                given = f"a {base.__name__} that defines {name}"
                raise ModelError(f"{cls.__name__}.{name} would not be called", given=given, fix=instead)


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("keras_dist", "flax", "builtins")


def _bound(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return each parameter of the constructor with its value, defaults included; empty when the call does not fit.

    Arguments without names are there as `*name`, if there are any.
    """
    signature = inspect.signature(cls.__init__)
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError:
        return {}  # __init__ is about to say so better
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for index, (name, value) in enumerate(bound.arguments.items()):
        kind = signature.parameters[name].kind
        if index == 0:
            continue  # self
        if kind is inspect.Parameter.VAR_POSITIONAL:
            arguments.update({f"*{name}": value} if value else {})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        else:
            arguments[name] = value
    check_flags(cls.__init__, arguments)
    return arguments
