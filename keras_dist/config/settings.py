"""What `keras.config` keeps for the process: defaults of arguments, for code that sets them once. Imports no JAX.

The dtype policy is kept in `mixed_precision`. All else that layers, losses and training need is their argument.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NoReturn

from keras_dist._support.arguments import (
    check_int,
    check_number,
    check_option,
    check_optional,
)
from keras_dist.errors import ModelError

_DATA_FORMATS = ("channels_last", "channels_first")


@dataclasses.dataclass
class _Settings:
    """The settings of the process, each with Keras's default."""

    epsilon: float = 1e-7
    image_data_format: str = "channels_last"
    logs_interactively: bool = True
    filters_tracebacks: bool = True
    flash_attention: bool | None = None
    max_epochs: int | None = None
    max_steps_per_epoch: int | None = None


_current = _Settings()


def backend() -> str:
    """Return `"jax"`, the only backend.

    Source: `keras.config.backend`.
    """
    return "jax"


def set_backend(backend: str) -> None:
    """Accept `"jax"`, the only backend.

    Raises:
        ModelError: another one is asked for.

    Source: `keras.config.set_backend`.
    """
    check_option("backend", backend, ("jax",))


def epsilon() -> float:
    """Return the number that keeps logarithms and quotients in losses, metrics and layers finite: 1e-7.

    Source: `keras.config.epsilon`.
    """
    return _current.epsilon


def set_epsilon(value: float) -> None:
    """Set `epsilon()`, for what is computed or compiled from now on: compiled steps keep the number they have.

    Args:
        value: a number of at least 0.

    Raises:
        ModelError: it is none.

    Source: `keras.config.set_epsilon`.
    """
    _current.epsilon = check_number("value", value, 0, example=1e-7)


def image_data_format() -> str:
    """Return the `data_format` of layers that are made without one: `"channels_last"` until another is set.

    Source: `keras.config.image_data_format`.
    """
    return _current.image_data_format


def set_image_data_format(data_format: str) -> None:
    """Set the `data_format` of layers that are made from now on without one. Configs of layers name theirs.

    Args:
        data_format: `"channels_last"` or `"channels_first"`.

    Raises:
        ModelError: it is neither.

    Source: `keras.config.set_image_data_format`.
    """
    _current.image_data_format = check_option("data_format", data_format, _DATA_FORMATS)


def check_data_format(data_format: str | None, owner: str = "") -> str:
    """Return the format of images that `data_format` names; for None that of the process. Errors name the `owner`."""
    if data_format is None:
        return image_data_format()
    return check_option("data_format", data_format, _DATA_FORMATS, owner)


def enable_interactive_logging() -> None:
    """Let `fit`, `evaluate`, `predict` and `Progbar` show their progress, unless `verbose=0`. So they do by default.

    Source: `keras.config.enable_interactive_logging`.
    """
    _current.logs_interactively = True


def disable_interactive_logging() -> None:
    """Let `fit`, `evaluate`, `predict` and `Progbar` show nothing: their lines go to the logger `"keras_dist"`.

    Source: `keras.config.disable_interactive_logging`.
    """
    _current.logs_interactively = False


def is_interactive_logging_enabled() -> bool:
    """Return whether progress is shown.

    Source: `keras.config.is_interactive_logging_enabled`.
    """
    return _current.logs_interactively


def enable_traceback_filtering() -> None:
    """Let `is_traceback_filtering_enabled` return True, which is all that it does.

    No frames are left out of tracebacks but JAX's own, by `jax_traceback_filtering` of `jax.config`.

    Source: `keras.config.enable_traceback_filtering`.
    """
    _current.filters_tracebacks = True


def disable_traceback_filtering() -> None:
    """Let `is_traceback_filtering_enabled` return False, which is all that it does.

    No frames are left out of tracebacks but JAX's own, by `jax_traceback_filtering` of `jax.config`.

    Source: `keras.config.disable_traceback_filtering`.
    """
    _current.filters_tracebacks = False


def is_traceback_filtering_enabled() -> bool:
    """Return what was set last, True in the beginning; frames of keras_dist are never left out of tracebacks.

    Source: `keras.config.is_traceback_filtering_enabled`.
    """
    return _current.filters_tracebacks


def enable_unsafe_deserialization() -> NoReturn:
    """Raise: files are never taken for code.

    Raises:
        ModelError: always.

    Source: `keras.config.enable_unsafe_deserialization`.
    """
    summary = "deserialization cannot be made unsafe: nothing that is read from a file is run"
    fix = "@keras_dist.saving.register_keras_serializable() on functions, or load_model(..., custom_objects=...)"
    raise ModelError(summary, given="enable_unsafe_deserialization()", fix=fix)


def enable_flash_attention() -> None:
    """Let attention layers choose their kernel, as they do by default.

    Source: `keras.config.enable_flash_attention`.
    """
    _current.flash_attention = None


def disable_flash_attention() -> None:
    """Ask for attention without fused kernels, which is what JAX chooses anyway.

    A layer that is made with `flash_attention=True` insists on the kernel, as in Keras.

    Source: `keras.config.disable_flash_attention`.
    """
    _current.flash_attention = False


def is_flash_attention_enabled() -> bool | None:
    """Return False after `disable_flash_attention()`; else None: JAX chooses.

    Source: `keras.config.is_flash_attention_enabled`.
    """
    return _current.flash_attention


def is_nnx_enabled() -> bool:
    """Return True: layers are modules of `flax.nnx`.

    Source: `keras.config.is_nnx_enabled`.
    """
    return True


def max_epochs() -> int | None:
    """Return how many epochs `fit` trains at most; None for as many as it is told.

    Source: `keras.config.max_epochs`.
    """
    return _current.max_epochs


def set_max_epochs(max_epochs: int | None) -> None:
    """Set `max_epochs()`, to try a program out.

    Args:
        max_epochs: a number of epochs; None for no limit.

    Raises:
        ModelError: it is neither.

    Source: `keras.config.set_max_epochs`.
    """
    _current.max_epochs = check_optional(check_int, "max_epochs", max_epochs, 0, alternative="None")


def max_steps_per_epoch() -> int | None:
    """Return how many batches an epoch of `fit`, `evaluate` or `predict` has at most; None for all of them.

    Source: `keras.config.max_steps_per_epoch`.
    """
    return _current.max_steps_per_epoch


def set_max_steps_per_epoch(max_steps_per_epoch: int | None) -> None:
    """Set `max_steps_per_epoch()`, to try a program out.

    Args:
        max_steps_per_epoch: a number of batches; None for no limit.

    Raises:
        ModelError: it is neither.

    Source: `keras.config.set_max_steps_per_epoch`.
    """
    name = "max_steps_per_epoch"
    _current.max_steps_per_epoch = check_optional(check_int, name, max_steps_per_epoch, 0, alternative="None")


def limited(argument: str, asked: Any, limit: int | None) -> Any:
    """Return what an argument asks for, or the limit where that is less, with a warning as Keras gives it."""
    if not limit or (asked is not None and asked <= limit):
        return asked
    warnings.warn(f"Limiting {argument} to {limit}", UserWarning, stacklevel=4)
    return limit
