"""Windows of signals: their positions, and the weights of their elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_option
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError


def positions(size: int, length: int, stride: int) -> np.ndarray:
    """Return the positions (windows, length) of the elements of windows."""
    starts = np.arange(0, size - length + 1, stride)
    return starts[:, None] + np.arange(length)


def spectra(signals: jax.Array, weights: jax.Array, stride: int, center: bool) -> jax.Array:
    """Return the Fourier transforms of weighted windows of signals (..., time), (..., windows, len(weights) // 2 + 1).

    With `center`, the n-th window has its middle at `n * stride`: signals are mirrored at their ends.
    """
    size = len(weights)
    if center:
        signals = jnp.pad(signals, [(0, 0)] * (signals.ndim - 1) + [(size // 2, size // 2)], mode="reflect")
    return jnp.fft.rfft(signals[..., positions(signals.shape[-1], size, stride)] * weights)


def window_weights(name: str, window: str | ArrayLike | None, length: int, stride: int, fft_length: int) -> jax.Array:
    """Return the weights of a window, with zeros at its ends up to `fft_length`; of none ones."""
    if not isinstance(stride, int) or stride <= 0 or fft_length < length:
        summary = f"{name} takes a stride above 0, and a fft_length of at least sequence_length"
        given = f"sequence_length={length}, sequence_stride={stride!r}, fft_length={fft_length}"
        fix = f"{name}(x, sequence_length=256, sequence_stride=128, fft_length=256)"
        raise ModelError(summary, given=given, fix=fix)
    if window is None:
        return jnp.ones(fft_length)
    if isinstance(window, str):
        share = {"hann": 0.5, "hamming": 0.54}[check_option("window", window, ("hann", "hamming"))]
        window = share - (1 - share) * np.cos(2 * np.pi * np.arange(length) / length)
    weights = jnp.asarray(window)
    if weights.shape != (length,):
        summary = f"{name}: the window must have sequence_length={length} numbers"
        raise ModelError(summary, given=f"shape {weights.shape}", fix='window="hann"')
    before = (fft_length - length) // 2
    return jnp.pad(weights, (before, fft_length - length - before))
