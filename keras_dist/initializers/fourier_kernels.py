"""`STFT`: kernels of convolutions for short-time Fourier transforms."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import argument_error, check_option, shapes
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.errors import ModelError
from keras_dist.initializers.initializer import Initializer


class STFT(Initializer):
    """Real or imaginary part of a windowed Fourier transform, as the kernel (T, 1, F) of a convolution.

    The window has T samples. The F frequencies belong to a transform of n = 2 * (F - 1) samples. Entry (t, 0, f) is the
    cosine or the sine of `-2 * pi * t * f / n`, times the window at t.

    Args:
        side: `"real"` or `"imag"`.
        window: the name of a window of `scipy.signal`, its T values, or None for no window.
        scaling: divisor of the window: `"density"` for the root of its sum of squares, `"spectrum"` for its sum of
            absolute values, None for 1.
        periodic: whether a named window is periodic.

    Raises:
        ModelError: an argument is invalid.

    Example:
        >>> from keras_dist import initializers
        >>> initializers.STFT("real", window=None)((2, 1, 3)).round(3).tolist()
        [[[1.0, 1.0, 1.0]], [[1.0, 0.0, -1.0]]]
    """

    def __init__(
        self,
        side: str = "real",
        window: str | Sequence[float] | ArrayLike | None = "hann",
        scaling: str | None = "density",
        periodic: bool = False,
    ) -> None:
        check_option("side", side, ("real", "imag"))
        check_option("scaling", scaling, (None, "density", "spectrum"))
        if isinstance(window, str):
            try:
                _window(window, 1, False)
            except ValueError:
                expected = "the name of a window of scipy.signal without parameters, values, or None"
                raise argument_error("window", window, expected, fix='for example window="hann"') from None
        self.side = side
        self.window = window
        self.scaling = scaling
        self.periodic = periodic

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", key: jax.Array | None = None) -> jax.Array:
        """Return a kernel of `shape` (T, 1, F)."""
        if len(shape) != 3:
            given = f"shape {tuple(shape)} of {len(shape)} dims"
            fix = "choose another initializer for this weight"
            raise ModelError("STFT initializes only kernels of shape (T, 1, F)", given=given, fix=fix)
        samples, _, frequencies = shape
        angle = -2 * np.pi * np.arange(samples)[:, None, None] * np.arange(frequencies) / (2 * (frequencies - 1))
        kernel = np.cos(angle) if self.side == "real" else np.sin(angle)
        return jnp.asarray(kernel * self._weights(samples)[:, None, None], dtype or "float32")

    def _weights(self, samples: int) -> np.ndarray:
        """Return the scaled window."""
        if self.window is None:
            return np.ones(samples)
        given: Any = self.window
        values = _window(given, samples, self.periodic) if isinstance(given, str) else np.asarray(given)
        if values.shape != (samples,):
            fix = "give a value for each sample, or the name of a window"
            raise ModelError(f"STFT: `window` must have the shape ({samples},)", given=shapes(window=values), fix=fix)
        if self.scaling is None:
            return values
        return values / (np.sqrt(np.sum(values**2)) if self.scaling == "density" else np.sum(np.abs(values)))


def _window(name: str, samples: int, is_periodic: bool) -> np.ndarray:
    signal: Any = importlib.import_module("scipy.signal")  # a dependency of jax that is slow to load
    return np.asarray(signal.get_window(name, samples, is_periodic))
