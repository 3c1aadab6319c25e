"""The settings of `keras.config`: process-wide defaults of arguments. `mixed_precision` has the dtype policy."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NoReturn

from keras_dist._support.arguments import check_int, check_number, check_option, check_optional
from keras_dist._support.raw_errors import explain_functions
from keras_dist.errors import ModelError

_DATA_FORMATS = ("channels_last", "channels_first")


@dataclasses.dataclass
class _Settings:
    epsilon: float = 1e-7
    image_data_format: str = "channels_last"
    logs_interactively: bool = True
    filters_tracebacks: bool = True
    flash_attention: bool | None = None
    max_epochs: int | None = None
    max_steps_per_epoch: int | None = None


_current = _Settings()


def backend() -> str:
    """Return `"jax"`, the only backend."""
    return "jax"


def set_backend(backend: str) -> None:
    """Accept `"jax"`, the only backend.

    Raises:
        ModelError: `backend` is not `"jax"`.
    """
    check_option("backend", backend, ("jax",))


def epsilon() -> float:
    """Return the number that keeps logarithms and quotients in losses, metrics and layers finite: 1e-7."""
    return _current.epsilon


def set_epsilon(value: float) -> None:
    """Set `epsilon()`. Compiled steps keep the old number.

    Args:
        value: a number of at least 0.

    Raises:
        ModelError: `value` is not such a number.
    """
    _current.epsilon = check_number("value", value, 0, example=1e-7)


def image_data_format() -> str:
    """Return the default `data_format` of layers: `"channels_last"` unless another is set."""
    return _current.image_data_format


def set_image_data_format(data_format: str) -> None:
    """Set the default `data_format` of layers that are created later. Configs of layers contain the format.

    Args:
        data_format: `"channels_last"` or `"channels_first"`.

    Raises:
        ModelError: `data_format` is another value.
    """
    _current.image_data_format = check_option("data_format", data_format, _DATA_FORMATS)


def check_data_format(data_format: str | None, owner: str = "") -> str:
    """Return `data_format`, if it is valid, or the default for None. Errors name the `owner`."""
    if data_format is None:
        return image_data_format()
    return check_option("data_format", data_format, _DATA_FORMATS, owner)


def enable_interactive_logging() -> None:
    """Let `fit`, `evaluate`, `predict` and `Progbar` show progress, unless `verbose=0`. This is the default."""
    _current.logs_interactively = True


def disable_interactive_logging() -> None:
    """Let `fit`, `evaluate`, `predict` and `Progbar` log to the logger `"keras_dist"` instead of printing."""
    _current.logs_interactively = False


def is_interactive_logging_enabled() -> bool:
    """Return whether progress is shown."""
    return _current.logs_interactively


def enable_traceback_filtering() -> None:
    """Let `is_traceback_filtering_enabled` return True, without other effects.

    Only frames of JAX are removed from tracebacks, by `jax_traceback_filtering` of `jax.config`.
    """
    _current.filters_tracebacks = True


def disable_traceback_filtering() -> None:
    """Let `is_traceback_filtering_enabled` return False, without other effects.

    Only frames of JAX are removed from tracebacks, by `jax_traceback_filtering` of `jax.config`.
    """
    _current.filters_tracebacks = False


def is_traceback_filtering_enabled() -> bool:
    """Return the setting, True by default. Frames of keras_dist are never removed from tracebacks."""
    return _current.filters_tracebacks


def enable_unsafe_deserialization() -> NoReturn:
    """Raise: code in files is never run.

    Raises:
        ModelError: always.
    """
    summary = "unsafe deserialization is not supported: code in files is never run"
    fix = "@keras_dist.saving.register_keras_serializable() on functions, or load_model(..., custom_objects=...)"
    raise ModelError(summary, given="enable_unsafe_deserialization()", fix=fix)


def enable_flash_attention() -> None:
    """Let attention layers choose the kernel, as by default."""
    _current.flash_attention = None


def disable_flash_attention() -> None:
    """Use attention without fused kernels, which JAX prefers anyway.

    A layer with `flash_attention=True` uses the fused kernel, as in Keras.
    """
    _current.flash_attention = False


def is_flash_attention_enabled() -> bool | None:
    """Return False after `disable_flash_attention()`; else None: JAX chooses."""
    return _current.flash_attention


def is_nnx_enabled() -> bool:
    """Return True: layers are modules of `flax.nnx`."""
    return True


def max_epochs() -> int | None:
    """Return the largest number of epochs of `fit`; None for no limit."""
    return _current.max_epochs


def set_max_epochs(max_epochs: int | None) -> None:
    """Set `max_epochs()`, for trial runs.

    Args:
        max_epochs: a number of epochs; None for no limit.

    Raises:
        ModelError: `max_epochs` is not a number or None.
    """
    _current.max_epochs = check_optional(check_int, "max_epochs", max_epochs, 0, alternative="None")


def max_steps_per_epoch() -> int | None:
    """Return the largest number of batches per epoch of `fit`, `evaluate` and `predict`; None for no limit."""
    return _current.max_steps_per_epoch


def set_max_steps_per_epoch(max_steps_per_epoch: int | None) -> None:
    """Set `max_steps_per_epoch()`, for trial runs.

    Args:
        max_steps_per_epoch: a number of batches; None for no limit.

    Raises:
        ModelError: `max_steps_per_epoch` is not a number or None.
    """
    name = "max_steps_per_epoch"
    _current.max_steps_per_epoch = check_optional(check_int, name, max_steps_per_epoch, 0, alternative="None")


def limited(argument: str, asked: Any, limit: int | None) -> Any:
    """Return the smaller of an argument and a limit, with Keras's warning."""
    if not limit or (asked is not None and asked <= limit):
        return asked
    warnings.warn(f"Limiting {argument} to {limit}", UserWarning, stacklevel=4)
    return limit


explain_functions(vars())
