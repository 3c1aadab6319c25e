"""Fourier transforms of signals, whole and in windows. Complex numbers are pairs of their real and imaginary parts."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_option, check_optional, check_size, is_int
from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops.operation import as_array, operation

__all__ = ["extract_sequences", "fft", "fft2", "ifft2", "irfft", "istft", "rfft", "stft"]

Complex: TypeAlias = tuple[ArrayLike, ArrayLike]


@operation
def fft(x: Complex) -> tuple[jax.Array, jax.Array]:
    """Return the Fourier transform of complex numbers along the last dim; `x` is `(real, imaginary)`."""
    return _parts(jnp.fft.fft(_complex("fft", x)))


@operation
def fft2(x: Complex) -> tuple[jax.Array, jax.Array]:
    """Return the Fourier transform of complex numbers along the last two dims; `x` is `(real, imaginary)`."""
    return _parts(jnp.fft.fft2(_complex("fft2", x)))


@operation
def ifft2(x: Complex) -> tuple[jax.Array, jax.Array]:
    """Return the inverse of `fft2`."""
    return _parts(jnp.fft.ifft2(_complex("ifft2", x)))


@operation
def rfft(x: ArrayLike, fft_length: int | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the Fourier transform of real numbers along the last dim, (..., fft_length // 2 + 1).

    Args:
        x: an array.
        fft_length: the size to which the last dim is cut or zero-padded; None for its own size.
    """
    return _parts(jnp.fft.rfft(as_array(x), n=fft_length))


@operation
def irfft(x: Complex, fft_length: int | None = None) -> jax.Array:
    """Return the inverse of `rfft`, of size `fft_length`; None for the even size."""
    return _inverse("irfft", x, fft_length)


@operation
def extract_sequences(x: ArrayLike, sequence_length: int, sequence_stride: int) -> jax.Array:
    """Return windows (..., windows, sequence_length) of the last dim, `sequence_stride` apart."""
    array = as_array(x)
    return array[..., _positions(array.shape[-1], sequence_length, sequence_stride)]


@operation
def stft(
    x: ArrayLike,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    window: str | ArrayLike | None = "hann",
    center: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Return the short-time Fourier transform of a signal, (..., windows, fft_length // 2 + 1).

    Args:
        x: floats (..., time).
        sequence_length: size of a window.
        sequence_stride: distance of the starts of windows.
        fft_length: size to which windows are zero-padded, at both ends.
        window: weights of a window: `"hann"`, `"hamming"`, `sequence_length` numbers, or None for ones.
        center: whether the middle of the n-th window is at `n * sequence_stride`; the signal is mirrored at its ends.

    Returns:
        Real and imaginary parts.
    """
    array = as_array(x)
    if array.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"stft takes float32, not {array.dtype}: ops.cast(x, 'float32')")
    weights = window_weights("stft", window, sequence_length, sequence_stride, fft_length)
    return _parts(spectra(array, weights.astype(array.dtype), sequence_stride, center))


@operation
def istft(
    x: Complex,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    length: int | None = None,
    window: str | ArrayLike | None = "hann",
    center: bool = True,
) -> jax.Array:
    """Return the inverse of `stft` with the same arguments: a signal (..., time).

    Args:
        x: real and imaginary parts, (..., windows, fft_length // 2 + 1).
        length: size of the result; None for the size of all windows.
        sequence_length, sequence_stride, fft_length, window, center: as in `stft`.
    """
    frames = _inverse("istft", x, fft_length)
    weights = window_weights("istft", window, sequence_length, sequence_stride, fft_length).astype(frames.dtype)
    size = fft_length + sequence_stride * (frames.shape[-2] - 1)
    places = _positions(size, fft_length, sequence_stride)

    def added_up(parts: jax.Array) -> jax.Array:
        return jnp.zeros((*parts.shape[:-2], size), parts.dtype).at[..., places].add(parts)

    covered = added_up(jnp.broadcast_to(jnp.square(weights), places.shape))
    signal = added_up(frames * weights) / jnp.where(covered > 1e-10, covered, 1)
    if window is None:
        signal = signal * (fft_length / sequence_stride)  # as Keras on JAX scales it
    start = fft_length // 2 if center else 0
    return signal[..., start : size - start if length is None else start + length]


def spectra(signals: jax.Array, weights: jax.Array, stride: int, center: bool) -> jax.Array:
    """Return the Fourier transforms of weighted windows of signals (..., time): (..., windows, frequencies)."""
    size = len(weights)
    if center:
        signals = jnp.pad(signals, [(0, 0)] * (signals.ndim - 1) + [(size // 2, size // 2)], mode="reflect")
    return jnp.fft.rfft(signals[..., _positions(signals.shape[-1], size, stride)] * weights)


def window_weights(name: str, window: str | ArrayLike | None, length: int, stride: int, fft_length: int) -> jax.Array:
    """Return the weights of a window, zero-padded at both ends to `fft_length`; ones for None."""
    if not is_int(stride, 1) or fft_length < length:
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


def _positions(size: int, length: int, stride: int) -> np.ndarray:
    """Return the positions (windows, length) of the elements of windows."""
    length, stride = operator.index(length), operator.index(stride)  # a uint8 would overflow
    return np.arange(0, size - length + 1, stride)[:, None] + np.arange(length)


def _complex(name: str, x: Complex) -> jax.Array:
    parts = [as_array(part) for part in x] if isinstance(x, Sequence) else []
    if len(parts) != 2 or parts[0].shape != parts[1].shape or {part.dtype.kind for part in parts} - {"f", "V"}:
        summary = f"{name} takes complex numbers as two arrays of floats of one shape: real and imaginary parts"
        given = f"{[(part.shape, part.dtype.name) for part in parts] or type(x).__name__}"
        raise ModelError(summary, given=given, fix=f"{name}((real, ops.zeros_like(real)))")
    return jax.lax.complex(*(part.astype(jnp.result_type(part, jnp.float32)) for part in parts))


def _inverse(name: str, x: Complex, fft_length: int | None) -> jax.Array:
    size = check_optional(check_size, "fft_length", fft_length)  # from 2 ** 63 on XLA ends the process
    return jnp.fft.irfft(_complex(name, x), n=size)


def _parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.real(x), jnp.imag(x)
