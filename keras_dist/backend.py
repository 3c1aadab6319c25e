"""Names of `keras.backend`, and `name_scope`, `device`, `remat` and `version` of `keras`, for JAX.

Source: names, arguments and defaults as in `keras.backend`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import argument_error
from keras_dist._support.missing_names import missing_from
from keras_dist._support.raw_errors import explain_functions
from keras_dist._support.types import DTypeLike
from keras_dist.config.settings import backend, epsilon, image_data_format, set_epsilon, set_image_data_format
from keras_dist.distribution.devices import find_device
from keras_dist.layers import Layer
from keras_dist.layers.base.remat_scope import RematScope as RematScope
from keras_dist.layers.base.remat_scope import checkpointed
from keras_dist.mixed_precision import floatx, set_floatx
from keras_dist.symbolic.tensors import is_keras_tensor
from keras_dist.variables.new_variables import named

__all__ = [
    "backend",
    "clear_session",
    "epsilon",
    "floatx",
    "get_uid",
    "image_data_format",
    "is_float_dtype",
    "is_int_dtype",
    "is_keras_tensor",
    "result_type",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "standardize_dtype",
]

_OF_PYTHON: dict[Any, str] = {bool: "bool", int: "int32", "int": "int32", float: "float32", "float": "float32"}
_OF_PYTHON |= {complex: "complex64", str: "string", "string": "string"}
_WEAK: dict[Any, Any] = {int: 0, float: 0.0}
"""Numbers of Python, which adapt to the dtypes of arrays."""
_KERAS = "3.15.1"

_uids: collections.Counter[str] = collections.Counter()


def clear_session(free_memory: bool = True) -> None:
    """Reset the counts of `get_uid` and, with `free_memory`, collect garbage.

    Names are numbered within each model, and unreferenced models are freed, so that nothing else needs to be cleared.
    The distribution and the dtype policy do not change.
    """
    _uids.clear()
    if free_memory:
        gc.collect()


def get_uid(prefix: str = "") -> int:
    """Return the number of calls with `prefix`, from 1."""
    _uids[prefix] += 1
    return _uids[prefix]


def standardize_dtype(dtype: DTypeLike | None) -> str:
    """Return the name of a dtype.

    Args:
        dtype: a name, a type of Python, numpy or JAX, or None for `floatx()`.

    Raises:
        ModelError: the dtype is unknown.

    Example:
        >>> from keras_dist import backend
        >>> backend.standardize_dtype(float), backend.standardize_dtype("bfloat16")
        ('float32', 'bfloat16')
    """
    if dtype is None:
        return floatx()
    try:
        found = _OF_PYTHON.get(dtype) or jnp.dtype(dtype).name
    except Exception:  # numpy raises several
        found = "object"
    if found == "object":
        raise argument_error("dtype", dtype, "the name of an element type", example="float32")
    return found


def is_float_dtype(dtype: DTypeLike | None) -> bool:
    """Return whether `dtype` is a floating point type."""
    return standardize_dtype(dtype).startswith(("float", "bfloat"))


def is_int_dtype(dtype: DTypeLike | None) -> bool:
    """Return whether `dtype` is an integer type."""
    return standardize_dtype(dtype).startswith(("int", "uint"))


def result_type(*dtypes: DTypeLike | None) -> str:
    """Return the name of the dtype to which these dtypes promote, by JAX's rules.

    Args:
        *dtypes: names or types; None for `floatx()`, and `int` and `float` for numbers of Python.

    Raises:
        ModelError: a dtype is unknown, or types of 8 bits do not promote.

    Example:
        >>> from keras_dist import backend
        >>> backend.result_type("bfloat16", int), backend.result_type("int32", "float16")
        ('bfloat16', 'float16')
    """
    weak = [_WEAK.get(dtype) for dtype in dtypes]
    given = [standardize_dtype(dtype) if value is None else value for dtype, value in zip(dtypes, weak, strict=True)]
    if any(str(dtype).startswith("float8") for dtype in given):
        expected = "types of at least 16 bits; types of 8 bits must be cast"
        raise argument_error("dtypes", dtypes, expected, example="bfloat16")
    return jnp.result_type(*given).name if given else floatx()


def name_scope(
    name: str, caller: object = None, deduplicate: bool = True, override_parent: str | None = None
) -> contextlib.AbstractContextManager[None]:
    """Name operations in compiled programs and profiles, and variables outside of layers.

    Paths of weights of layers consist of attributes.

    Args:
        name: a string without "/".
        caller, deduplicate, override_parent: unused.

    Raises:
        ModelError: `name` is not such a string.

    Source: `keras.name_scope`.
    """
    del caller, deduplicate, override_parent
    if not isinstance(name, str) or "/" in name:
        raise argument_error("name", name, 'a string without "/"', example="block")
    return _named_scope(name)


@contextlib.contextmanager
def _named_scope(name: str) -> Iterator[None]:
    with jax.named_scope(name), named(name):
        yield


def device(device_name: Any) -> contextlib.AbstractContextManager[Any]:
    """Create arrays and compute on a device outside of models, which use their mesh.

    Args:
        device_name: a name, such as `"cpu:0"`, as in `list_devices`; or a device of JAX.

    Raises:
        MeshError: the device does not exist.

    Source: `keras.device`.
    """
    if isinstance(device_name, str):
        name = device_name.lower()
        return jax.default_device(find_device(name if ":" in name else f"{name}:0"))
    return jax.default_device(device_name)


def remat(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` with intermediate results recomputed in the backward pass instead of stored.

    `remat=` of `compile` does this for the layers of a model.

    Args:
        f: a function of arrays, or a layer that is called in the `call` of another one.

    Raises:
        ModelError: `f` cannot be called.

    Example:
        >>> import jax, keras_dist as kd
        >>> jax.grad(kd.remat(lambda x: x**3))(2.0)
        Array(12., dtype=float32, weak_type=True)

    Source: `keras.remat`.
    """
    if not callable(f):
        raise argument_error("f", f, "a function of arrays, or a layer", fix="remat(function)(inputs)")
    if not isinstance(f, Layer):
        return jax.checkpoint(f)

    @functools.wraps(type(f).__call__)
    def call(*args: Any, **kwargs: Any) -> Any:
        return checkpointed(type(f).__call__, f, args, kwargs)

    return call


def version() -> str:
    """Return the version of Keras that keras_dist follows; `keras_dist.__version__` is the version of this package."""
    return _KERAS


explain_functions(vars())
if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
