"""Errors that NumPy, JAX or Python raise for the arguments of a public function, as errors that name these arguments.

Errors of users' code, of files and of JAX's own classes pass unchanged. Nothing is checked before a call succeeds, so
that every value which a function can use stays accepted.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from keras_dist._support.arguments import argument_error, is_int, is_number, names_error
from keras_dist._support.signatures import is_method, takes
from keras_dist.errors import ArgumentTypeError, DataError, KerasDistError, ModelError, shorten

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Object = TypeVar("_Object")

NAMELESS = (ArithmeticError, AttributeError, LookupError, NameError, RecursionError)
"""Errors that name neither the function nor the argument, also where `jax.numpy` raises them."""
_RAW = (*NAMELESS, TypeError, ValueError)
_LIBRARIES = {"keras_dist", "jax", "jaxlib", "numpy", "flax", "optax", "ml_dtypes", "PIL", *sys.stdlib_module_names}
_NAMES = "array bool eq float ge gt hash index int iter le len lt ne repr str"
_OF_VALUES = {f"__{name}__" for name in _NAMES.split()}
"""Methods of a value that a check of it calls: what they refuse is a wrong value."""
_SCALARS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("True or False", lambda value: isinstance(value, bool) or is_int(value, 0, 1)),
    "int": ("an integer", is_int),
    "float": ("a finite number", is_number),
    "str": ("a string", lambda value: isinstance(value, str)),
}
_INNER = ("build", "call", "gather")
"""Methods that public ones call, in each step."""
_explained_classes: set[type] = set()


@functools.cache
def explained(
    function: _Function, decorate: Callable[[Any], Any] | None = None, kinds: tuple[type[Exception], ...] = _RAW
) -> _Function:
    """Decorate a public function or method: raw errors for its arguments, of these kinds, become errors that name them.

    `decorate` is applied first.
    """
    if getattr(function, "explaining", None) is function or not (function.__module__ or "").startswith("keras_dist."):
        return function

    function = function if decorate is None else decorate(function)
    nested = (list, dict, tuple) if kinds == NAMELESS else (list, dict)  # tuples are arguments of each step, too

    @functools.wraps(function)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        try:
            for value in (*args, *kwargs.values()):
                if isinstance(value, nested) and _contains_itself(value):
                    raise RecursionError("a list or dict contains itself")
            return function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, KerasDistError) or not _is_raw(error, kinds):
                raise
            if not takes(function, *args, **kwargs):
                if (wrong := names_error(function, args, kwargs)) is not None:
                    raise wrong from None
                raise
            raise _explanation(function, args, kwargs, error) from error

    explaining.explaining = explaining  # type: ignore[attr-defined]  # which `functools.wraps` copies to others
    return explaining  # type: ignore[return-value]


def explain_functions(package: dict[str, Any], decorate: Callable[[Any], Any] | None = None) -> None:
    """Apply `explained` to what a package exports, there and in the modules that define it."""
    for name, found in [*package.items()]:
        module = getattr(found, "__module__", None) or ""
        if name.startswith("_") or not (module.startswith(package["__name__"]) or name in package.get("__all__", ())):
            continue
        if inspect.isfunction(found) and inspect.signature(found).parameters:
            package[name] = explained(found, decorate)
            setattr(sys.modules[module], found.__name__, package[name])
        elif inspect.isclass(found):
            explain_methods(found)


def explain_methods(cls: type[_Object]) -> type[_Object]:
    """Apply `explained` to the public methods of a class and its bases in this package; return the class."""
    for owner in cls.__mro__:
        is_new = owner not in _explained_classes and owner.__module__.startswith("keras_dist.")
        _explained_classes.add(owner)
        for name, member in [*vars(owner).items()] if is_new else []:
            is_inner = name in _INNER or name.startswith(("_", "pop", "on_"))  # `pop` raises KeyError, as of a dict
            is_public = name in ("__init__", "__call__") or not is_inner
            function: Any = getattr(member, "__func__", member)
            if inspect.isfunction(function) and function.__qualname__ == name:  # of a module, in a table of methods
                inspect.unwrap(function).__qualname__ = function.__qualname__ = f"{owner.__qualname__}.{name}"
            if is_public and inspect.isfunction(member):
                setattr(owner, name, explained(member))
            elif is_public and isinstance(member, classmethod):
                setattr(owner, name, classmethod(explained(member.__func__)))  # pyright: ignore
    return cls


def _contains_itself(value: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether a short list or dict contains itself: flattened once, it breaks `jax.tree` for good on Python 3.11."""
    if not isinstance(value, list | tuple | dict) or len(value) > 100 or len(within) > 3:  # pyright: ignore
        return False
    items: Any = value.values() if isinstance(value, dict) else value  # pyright: ignore
    within = (*within, value)  # pyright: ignore
    return any(any(item is outer for outer in within) or _contains_itself(item, within) for item in items)


def _is_raw(error: Exception, kinds: tuple[type[Exception], ...]) -> bool:
    """Whether a library has raised an error of these kinds below the decorated function, or a method of a value."""
    if isinstance(error, NameError) and error.name is not None:  # a mistake in code: JAX's own have no `name`
        return False
    kind = type(error)
    is_of_arrays = kind.__module__.partition(".")[0] in ("builtins", "numpy") or kind.__name__ == "TypePromotionError"
    is_common = isinstance(error, kinds) and is_of_arrays
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES:
            is_of_value = frame.f_code.co_name in _OF_VALUES and not frame.f_code.co_flags & inspect.CO_GENERATOR
            return is_of_value and isinstance(error, RuntimeError | TypeError | ValueError)
    return is_common


def _explanation(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> KerasDistError:
    signature = inspect.signature(function)
    given = dict(signature.bind(*args, **kwargs).arguments)
    is_bound = is_method(function) and "cls" not in given
    owner = given.pop(next(iter(given))) if is_bound else None  # of a subclass, perhaps
    names = [cls.__name__ for cls in type(owner).__mro__ if not cls.__name__.startswith("_")]
    called = function.__qualname__ if owner is None else f"{names[0]}.{function.__name__}"
    called = re.sub(r"\.(__init__|__call__|call|with_reported)$", "", called)
    is_of_data = function.__module__.startswith("keras_dist.data")
    kind = DataError if is_of_data else ArgumentTypeError if isinstance(error, TypeError) else ModelError
    for name, value in given.items():
        expected, fits = _SCALARS.get(str(signature.parameters[name].annotation).removesuffix(" | None"), ("", None))
        if fits is not None and value is not None and not fits(value):
            return argument_error(name, value, expected, error=kind)
    given.pop("cls", None)
    cause = f"{type(error).__name__}: {' '.join(str(error).split())}"[:240]
    return kind(
        f"`{called}` cannot use its arguments: {cause}",
        given=", ".join(f"{name}={_text(value)}" for name, value in given.items()) or "no arguments",
        fix="correct the kind, the shape or the size of an argument",
    )


def _text(value: Any) -> str:
    """Return shape and dtype of an array, or the repr of another value."""
    try:
        return f"{value.dtype} array of shape {tuple(value.shape)}"
    except Exception:  # the user's own __getattr__
        return shorten(value)
