"""The error for user code that needs the values of arrays which JAX traces: `if`, `float`, NumPy, boolean indices."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Generator

import jax
import numpy

from keras_dist.errors import ArgumentTypeError

_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_LIBRARIES = tuple(f"{os.path.dirname(library.__file__ or library.__name__)}{os.sep}" for library in (jax, numpy))


@contextlib.contextmanager
def explaining_traced_values(what: str) -> Generator[None]:
    """Enter a context in which JAX's errors for values of traced arrays become an error that names `what` and the line.

    Raises:
        ArgumentTypeError: the code in the context needs the values of a traced array.
    """
    try:
        yield
    except _NEEDS_VALUES as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)][-1]
        raise ArgumentTypeError(
            f"{what} needs the values of an array, which has none while JAX traces the computation",
            given=f"{type(error).__name__} in {line.filename}:{line.lineno}: {line.line}",
            fix="use keras_dist.ops or jax.numpy for numpy; jnp.where(condition, a, b) or jax.lax.cond for `if`",
        ) from error
