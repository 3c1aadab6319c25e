"""Objects to configs of plain values and back, in the form of Keras."""

from __future__ import annotations

import base64
import importlib
import inspect
import marshal
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist.errors import ConfigError, shorten
from keras_dist.saving.registry import custom_object_scope, get_registered_name, get_registered_object

_HOUSE = "keras_dist"


def serialize_keras_object(obj: Any) -> Any:
    """`obj` as plain values, which JSON can hold.

    Numbers, strings, None, lists, tuples, dicts, numpy arrays and dtypes; objects with `get_config`; named functions.

    Raises:
        ConfigError: it is none of these.

    Source: `keras.saving.serialize_keras_object`.
    """
    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    if isinstance(obj, list):
        return [serialize_keras_object(item) for item in obj]
    if isinstance(obj, tuple):
        return {"class_name": "__tuple__", "config": {"value": [serialize_keras_object(item) for item in obj]}}
    if isinstance(obj, Mapping):
        return {key: serialize_keras_object(value) for key, value in obj.items()}
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, np.ndarray) or (type(obj).__module__.startswith(("jax", "jaxlib")) and hasattr(obj, "tolist")):
        array = np.asarray(obj)
        return {"class_name": "__numpy__", "config": {"value": array.tolist(), "dtype": array.dtype.name}}
    if isinstance(obj, np.dtype) or (isinstance(obj, type) and issubclass(obj, np.generic)):
        return np.dtype(obj).name
    if isinstance(obj, types.FunctionType) and obj.__name__ == "<lambda>":
        code = base64.b64encode(marshal.dumps(obj.__code__)).decode("ascii")
        return {"class_name": "__lambda__", "config": {"value": code}}
    if hasattr(obj, "get_config") and not isinstance(obj, type):
        return _description(type(obj), obj.get_config())
    if callable(obj) and hasattr(obj, "__name__") and hasattr(obj, "__module__"):
        return {**_description(obj, obj.__name__), "class_name": "function"}
    raise ConfigError(
        "an object cannot be written down in a config",
        given=f"{shorten(obj)} of type {type(obj).__name__}",
        expected="plain values, arrays, named functions, or objects with get_config()",
        fix="give its class get_config() and from_config(), or override get_config() where it is used",
    )


def deserialize_keras_object(
    config: Any, custom_objects: Mapping[str, Any] | None = None, safe_mode: bool = True
) -> Any:
    """What `serialize_keras_object` has written down.

    Args:
        config: plain values. Dicts with a `class_name` become objects.
        custom_objects: classes and functions by name, beside the registered ones.
        safe_mode: whether lambdas are refused, whose code would run.

    Raises:
        ConfigError: a class or function is not known, or a lambda is refused.

    Source: `keras.saving.deserialize_keras_object`.
    """
    with custom_object_scope(custom_objects or {}):
        return _read(config, safe_mode)


def _read(config: Any, safe_mode: bool) -> Any:
    if isinstance(config, list | tuple):
        return type(config)(_read(item, safe_mode) for item in config)
    if not isinstance(config, Mapping):
        return config
    if "class_name" not in config or "config" not in config:
        return {key: _read(value, safe_mode) for key, value in config.items()}
    class_name, inner = config["class_name"], config["config"]
    if class_name == "__tuple__":
        return tuple(_read(item, safe_mode) for item in inner["value"])
    if class_name == "__numpy__":
        return np.asarray(inner["value"], inner["dtype"])
    if class_name == "__lambda__":
        return _read_lambda(inner["value"], safe_mode)
    if class_name == "function":
        return _find(str(inner), config)
    cls = _find(class_name, config)
    if not hasattr(cls, "from_config"):
        raise _unknown(class_name, config)
    if "safe_mode" in inspect.signature(cls.from_config).parameters:
        return cls.from_config(inner, safe_mode=safe_mode)
    return cls.from_config(inner)


def _description(obj: Any, config: Any) -> dict[str, Any]:
    registered_name = get_registered_name(obj)
    module = obj.__module__
    if module.split(".")[0] == _HOUSE:
        module = ".".join(module.split(".")[:2])
    known = registered_name if registered_name != obj.__name__ or module.split(".")[0] != _HOUSE else None
    return {"module": module, "class_name": obj.__name__, "config": config, "registered_name": known}


def _find(name: str, config: Mapping[str, Any]) -> Any:
    """The class or function `name`: registered, or one of this package. Nothing else is ever imported."""
    for key in (config.get("registered_name"), name):
        found = get_registered_object(key) if key else None
        if found is not None:
            return found
    module = str(config.get("module") or "")
    house, _, room = module.partition(".")
    if house in (_HOUSE, "keras") and room.split(".")[0].isidentifier() and not room.startswith("_"):
        try:
            package = importlib.import_module(f"{_HOUSE}.{room.split('.')[0]}")
        except ModuleNotFoundError:
            raise _unknown(name, config) from None
        if name in getattr(package, "__all__", ()):
            return getattr(package, name)
    raise _unknown(name, config)


def _unknown(name: str, config: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"the config mentions {name!r}, which is not known",
        given=f"class_name={config.get('class_name')!r}, module={config.get('module')!r}, "
        f"registered_name={config.get('registered_name')!r}",
        expected="a class or function of keras_dist, or a registered one",
        fix=f"decorate it with @saving.register_keras_serializable(), or pass custom_objects={{{name!r}: {name}}}",
    )


def _read_lambda(code: str, safe_mode: bool) -> Any:
    if safe_mode:
        raise ConfigError(
            "the config holds a lambda, whose code would run",
            given="a lambda",
            expected="named functions, while safe_mode=True",
            fix="pass safe_mode=False if you trust where it comes from, or register a named function instead",
        )
    return types.FunctionType(marshal.loads(base64.b64decode(code)), {"__builtins__": __builtins__}, "<lambda>")
