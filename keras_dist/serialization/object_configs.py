"""Objects to configs of plain values and back, in the form of Keras.

Code in files is never run, with `safe_mode=False` neither: `custom_objects` gives what it stood for. Whoever can write
a file could otherwise run code.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_dist.errors import ConfigError, ConfigTypeError, did_you_mean, shorten, with_type
from keras_dist.serialization.registry import (
    custom_object_scope,
    get_registered_name,
    get_registered_object,
    named_in_a_package,
    registered_names,
)
from keras_dist.serialization.shared_objects import conversion, converting, known, note_read, note_written

_HOUSE = "keras_dist"

# A config may come from anywhere: of the house it can mention what models are made of, not what reads files.
_ROOMS_OF_FUNCTIONS = ("activations", "losses", "metrics", "ops")
_ROOMS = {
    *_ROOMS_OF_FUNCTIONS,
    "callbacks",
    "constraints",
    "initializers",
    "layers",
    "mixed_precision",
    "models",
    "optimizers",
    "pretrained",
    "random",
    "regularizers",
}

# what plain values cannot say, by the names that configs give it
_VALUES = (
    "__bytes__",
    "__ellipsis__",
    "__lambda__",
    "__numpy__",
    "__slice__",
    "__tensor__",
    "__tuple__",
    "DTypePolicy",
)

_CODE = "4w"  # the first characters of Python code in base64, as `marshal` writes it


def serialize_keras_object(obj: Any) -> Any:
    """Convert an object to plain values that JSON can represent.

    Accepts numbers, strings, None, bytes of UTF-8, lists, tuples, dicts, slices, numpy arrays and dtypes, objects with
    `get_config`, also inside of configs, and named functions. The result of `get_build_config` is included if a class
    defines it. A lambda is written as its name, `module.<lambda>`: files contain no code.

    Raises:
        ConfigError: the object is of another kind.
    """
    if isinstance(obj, np.generic):
        return obj.item()
    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    if isinstance(obj, list):
        return [serialize_keras_object(item) for item in obj]
    if isinstance(obj, tuple):
        return {"class_name": "__tuple__", "config": {"value": [serialize_keras_object(item) for item in obj]}}
    if isinstance(obj, Mapping) and not hasattr(obj, "get_config"):
        return {key: serialize_keras_object(value) for key, value in obj.items()}
    if isinstance(obj, slice):
        bounds = {"start": obj.start, "stop": obj.stop, "step": obj.step}
        return {"class_name": "__slice__", "config": serialize_keras_object(bounds)}
    if obj is Ellipsis:
        return {"class_name": "__ellipsis__", "config": {}}
    if isinstance(obj, bytes) and (text := _as_text(obj)) is not None:
        return {"class_name": "__bytes__", "config": {"value": text}}
    if isinstance(obj, np.ndarray) or (type(obj).__module__.startswith(("jax", "jaxlib")) and hasattr(obj, "tolist")):
        array = np.asarray(obj)
        return {"class_name": "__numpy__", "config": {"value": array.tolist(), "dtype": array.dtype.name}}
    if isinstance(obj, np.dtype) or (isinstance(obj, type) and _is_scalar_type(obj)):
        return np.dtype(obj).name
    if inspect.isfunction(obj) and obj.__name__ == "<lambda>":
        if conversion().keeps_lambdas:
            return obj
        return {"class_name": "__lambda__", "config": {"name": f"{obj.__module__}.{obj.__qualname__}"}}
    if hasattr(obj, "get_config") and not isinstance(obj, type):
        described: Any = obj
        built = described.get_build_config() if _defines(obj, "get_build_config") else None
        config = _written(described.get_config())
        return note_written(obj, _description(type(obj), config) | ({} if built is None else {"build_config": built}))
    if callable(obj) and hasattr(obj, "__name__") and hasattr(obj, "__module__"):
        return {**_description(obj, obj.__name__), "class_name": "function"}
    summary = "a config cannot hold an object that has no get_config() and is neither a value nor a named function"
    fix = "give its class get_config() and from_config(), or override get_config() where it is used"
    raise ConfigError(summary, given=with_type(obj), fix=fix)


def _written(config: Any) -> Any:
    """Return what `get_config` gave, with its objects and tuples written down; the very same where there are none."""
    if config is None or isinstance(config, bool | int | float | str):
        return config
    if isinstance(config, dict):
        found = {key: _written(value) for key, value in config.items()}
        return config if all(found[key] is value for key, value in config.items()) else found
    if type(config) is list:
        items = [_written(item) for item in config]
        return config if all(map(operator.is_, items, config)) else items
    return serialize_keras_object(config)


def _as_text(obj: bytes) -> str | None:
    try:
        return obj.decode("utf-8")
    except UnicodeDecodeError:
        return None


def deserialize_keras_object(
    config: Any,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    module_objects: Mapping[str, Any] | None = None,
) -> Any:
    """Create the object that `serialize_keras_object` described.

    Args:
        config: plain values. Dicts with a `class_name` become objects.
        custom_objects: classes and functions by name, in addition to registered ones.
        safe_mode: as in Keras; not used, since code in a config never runs.
        module_objects: further objects that the outermost config may refer to by bare name.

    Raises:
        ConfigError: a class is unknown or registered under another name; the config contains a lambda; or it is
            damaged (also a `TypeError`).
    """
    with custom_object_scope(custom_objects):
        return _read(config, module_objects or {})


def lambdas_kept() -> contextlib.AbstractContextManager[object]:
    """Context manager in which configs contain lambdas themselves, for copies in this process and for pickles."""
    return converting(keeps_lambdas=True)


def is_lambda(written: Any) -> bool:
    """Whether a part of a config represents a lambda."""
    return isinstance(written, Mapping) and (written.get("class_name") == "__lambda__" or _is_code(written))


def _is_code(written: Mapping[str, Any]) -> bool:
    """Whether this is the code of a lambda as Keras writes it for an `activation`: without a class."""
    value = written.get("value") if len(written) == 1 else None
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and value[0].startswith(_CODE)


def lambda_name(written: Mapping[str, Any]) -> str:
    """Return the name of the lambda that a config represents."""
    inner = written.get("config")
    return shorten(inner["name"]) if isinstance(inner, Mapping) and "name" in inner else "its code is in the config"


def _read(config: Any, module_objects: Mapping[str, Any]) -> Any:
    if isinstance(config, list):
        return [_read(item, {}) for item in config]
    if isinstance(config, tuple):
        return tuple(_read(item, {}) for item in config)
    if not isinstance(config, Mapping):
        return config
    if "class_name" not in config or "config" not in config:
        return {key: _read(value, {}) for key, value in config.items()}
    class_name, inner = config["class_name"], config["config"]
    if class_name == "function":
        return _find(inner, config, module_objects)
    if (shared := known(config)) is not None:
        return shared
    if not isinstance(inner, Mapping):
        raise _damaged(config)
    if class_name in _VALUES:
        try:
            return _read_value(class_name, inner)
        except ConfigError:
            raise
        except (AttributeError, EOFError, KeyError, TypeError, ValueError) as error:
            raise _damaged(config) from error
    found = _find(class_name, config, module_objects)
    if not hasattr(found, "from_config"):
        raise _without_from_config(found) if isinstance(found, type) else _unknown(class_name, config, module_objects)
    made = found.from_config(dict(inner))
    note_read(config, made)
    if config.get("build_config") is not None and _defines(made, "build_from_config"):
        made.build_from_config(config["build_config"])
    return made


def _defines(obj: object, name: str) -> bool:
    """Whether an object has a method that is not the default one of layers, whose weights models create."""
    return hasattr(obj, name) and not hasattr(getattr(obj, name), "is_default")


def _read_value(class_name: str, inner: Mapping[str, Any]) -> Any:
    if class_name == "__tuple__":
        return tuple(_read(item, {}) for item in inner["value"])
    if class_name == "__lambda__":
        raise lambda_refused(lambda_name({"config": inner}))
    if class_name == "__slice__":
        return slice(*(_read(inner[name], {}) for name in ("start", "stop", "step")))
    if class_name == "__ellipsis__":
        return ...
    if class_name == "__bytes__":
        return inner["value"].encode("utf-8")
    if class_name == "DTypePolicy":  # in configs that Keras wrote
        return inner["name"]
    return np.asarray(inner["value"], inner["dtype"])


def _is_scalar_type(cls: type) -> bool:
    """Whether `cls` is `numpy.float32`, `jax.numpy.float32` or the like."""
    return issubclass(cls, np.generic) or (cls.__module__.split(".")[0] == "jax" and hasattr(cls, "dtype"))


def _description(obj: Any, config: Any) -> dict[str, Any]:
    """Return the config of a class or a function, with the first package of keras_dist that exports it."""
    registered_name, module = get_registered_name(obj), str(obj.__module__)
    if module.split(".")[0] == _HOUSE and registered_name == obj.__name__:
        packages = (name for name in _packages(module) if obj.__name__ in getattr(sys.modules.get(name), "__all__", ()))
        module, registered_name = next(packages, module), None
    return {"module": module, "class_name": obj.__name__, "config": config, "registered_name": registered_name}


def _find(name: Any, config: Mapping[str, Any], module_objects: Mapping[str, Any]) -> Any:
    """Return the class or function `name`: registered, of this package, or of `module_objects`; import nothing else."""
    if not isinstance(name, str):
        raise _damaged(config)
    for key in (config.get("registered_name"), name):
        found = get_registered_object(key) if isinstance(key, str) else None
        if found is not None:
            return found
    found = _exported(name, config.get("module"))
    if found is not None and config.get("registered_name") not in (None, "", "function", name):
        raise _imitated(name, config)
    if found is None:
        found = module_objects.get(name)
    if found is None and config.get("module") == "builtins":  # until Keras 3.6 functions were written without packages
        found = named_in_a_package(name)
    if found is None:
        raise _unknown(name, config, module_objects)
    return found


def _exported(name: str, module: Any) -> Any:
    """Return the class or function that `module` exports as `name`, if configs may mention it; else None."""
    if module == "builtins":  # Keras writes so of every function
        found = (_exported(name, f"{_HOUSE}.{room}") for room in _ROOMS_OF_FUNCTIONS)
        return next((function for function in found if function is not None and not isinstance(function, type)), None)
    house, *rooms = str(module).split(".")
    if (
        house not in (_HOUSE, "keras")
        or not set(rooms[:1]) <= _ROOMS
        or any(room.startswith("_") or not room.isidentifier() for room in rooms)
    ):
        return None
    for package_name in _packages(".".join([_HOUSE, *rooms])):
        try:
            package = importlib.import_module(package_name)
        except ModuleNotFoundError as error:
            if str(error.name).split(".")[0] == _HOUSE:
                return None
            raise
        if name in getattr(package, "__all__", ()):
            found = getattr(package, name)
            room = (*str(getattr(found, "__module__", "")).split("."), "")[1]
            return found if room in (_ROOMS if isinstance(found, type) else _ROOMS_OF_FUNCTIONS) else None
    return None


def _packages(module: str) -> list[str]:
    """Return `keras_dist.a`, `keras_dist.a.b`, ... up to `module`; for `keras_dist` itself `keras_dist` alone."""
    parts = module.split(".")
    return [".".join(parts[:depth]) for depth in range(min(2, len(parts)), len(parts) + 1)]


def _unknown(name: str, config: Mapping[str, Any], module_objects: Iterable[str] = ()) -> ConfigError:
    near = did_you_mean(name, [*module_objects, *registered_names()])
    fix = f"decorate it with @saving.register_keras_serializable(), or pass custom_objects={{{name!r}: {name}}}"
    return ConfigError(
        f"the config mentions {name!r}, which is not known{near}",
        given=f"class_name={config.get('class_name')!r}, module={config.get('module')!r}, "
        f"registered_name={config.get('registered_name')!r}",
        fix=f"correct the name, or {fix}" if near else fix,
    )


def _without_from_config(cls: type) -> ConfigTypeError:
    summary = f"{cls.__name__} cannot be made from its config: it has no from_config"
    fix = "@classmethod def from_config(cls, config): return cls(**config)"
    return ConfigTypeError(summary, given=shorten(cls), fix=fix)


def _imitated(name: str, config: Mapping[str, Any]) -> ConfigError:
    registered = config["registered_name"]
    summary = f"the config gives {name!r}, which is of keras_dist, a name of something else"
    fix = "import the module that registers it; or pass custom_objects={...}; or take the name out of the config"
    return ConfigError(summary, given=f"registered_name={shorten(registered)}, which is not registered", fix=fix)


def _damaged(config: Mapping[str, Any]) -> ConfigTypeError:
    fix = 'write {"class_name": <name>, "config": {...}}, as serialize_keras_object does'
    return ConfigTypeError("the config of an object cannot be read", given=shorten(dict(config)), fix=fix)


def lambda_refused(what: str, fix: str = "") -> ConfigError:
    """Return the error for a lambda in a config; `what` is its name or position, `fix` a further way out."""
    return ConfigError(
        f"the config holds a lambda: {what}",
        given="a lambda, whose code is not run, with safe_mode=False neither",
        fix=f"{fix}decorate a named function with @saving.register_keras_serializable(), and save the model with it; "
        "or make the model in code, and then model.load_weights(path)",
    )
