"""Fourier transforms of signals, whole and in windows. Complex numbers are pairs of their real and imaginary parts."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.ops import windows
from keras_dist.ops.operation import as_array, names_in, operation

Complex: TypeAlias = tuple[ArrayLike, ArrayLike]


@operation
def fft(x: Complex) -> tuple[jax.Array, jax.Array]:
    """Return the Fourier transform along the last dim, as that of real and imaginary parts `x`."""
    return _parts(jnp.fft.fft(_complex("fft", x)))


@operation
def fft2(x: Complex) -> tuple[jax.Array, jax.Array]:
    """Return the Fourier transform along the last two dims, as that of real and imaginary parts `x`."""
    return _parts(jnp.fft.fft2(_complex("fft2", x)))


@operation
def ifft2(x: Complex) -> tuple[jax.Array, jax.Array]:
    """Return the inverse of `fft2`."""
    return _parts(jnp.fft.ifft2(_complex("ifft2", x)))


@operation
def rfft(x: ArrayLike, fft_length: int | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the Fourier transform of real numbers along the last dim: frequencies from 0 to `fft_length // 2`.

    Args:
        x: an array.
        fft_length: to which the dim is cut, or padded with zeros; None for its size.
    """
    return _parts(jnp.fft.rfft(as_array(x), n=fft_length))


@operation
def irfft(x: Complex, fft_length: int | None = None) -> jax.Array:
    """Return the inverse of `rfft`.

    Args:
        x: real and imaginary parts.
        fft_length: the size of the result; None for the even one.
    """
    return jnp.fft.irfft(_complex("irfft", x), n=fft_length)


@operation
def extract_sequences(x: ArrayLike, sequence_length: int, sequence_stride: int) -> jax.Array:
    """Return windows (..., windows, sequence_length) of the last dim, which begin `sequence_stride` apart."""
    array = as_array(x)
    return array[..., windows.positions(array.shape[-1], sequence_length, sequence_stride)]


@operation
def stft(
    x: ArrayLike,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    window: str | ArrayLike | None = "hann",
    center: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Return the Fourier transforms of windows of a signal, (..., windows, fft_length // 2 + 1).

    Args:
        x: floats (..., time).
        sequence_length: the size of a window.
        sequence_stride: how far apart they begin.
        fft_length: to which they are padded, at both ends.
        window: by what they are multiplied: `"hann"`, `"hamming"`, `sequence_length` numbers, or None for nothing.
        center: whether the n-th window has its middle at `n * sequence_stride`: the signal is mirrored at its ends.

    Returns:
        Real and imaginary parts.
    """
    array = as_array(x)
    if array.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"stft takes float32, not {array.dtype}: ops.cast(x, 'float32')")
    weights = windows.window_weights("stft", window, sequence_length, sequence_stride, fft_length)
    return _parts(windows.spectra(array, weights.astype(array.dtype), sequence_stride, center))


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
    """Return the signal (..., time) of which `stft` with the same arguments gives `x`.

    Args:
        x: real and imaginary parts, (..., windows, fft_length // 2 + 1).
        sequence_length: the size of a window.
        sequence_stride: how far apart they begin.
        fft_length: to which they are padded, at both ends.
        length: the size of the result; None for that of all windows.
        window: by what they were multiplied.
        center: whether the n-th window has its middle at `n * sequence_stride`.
    """
    spectra = _complex("istft", x)
    weights = windows.window_weights("istft", window, sequence_length, sequence_stride, fft_length)
    frames = jnp.fft.irfft(spectra, n=fft_length)
    weights = weights.astype(frames.dtype)
    size = fft_length + sequence_stride * (frames.shape[-2] - 1)
    places = windows.positions(size, fft_length, sequence_stride)

    def added_up(parts: jax.Array) -> jax.Array:
        return jnp.zeros((*parts.shape[:-2], size), parts.dtype).at[..., places].add(parts)

    covered = added_up(jnp.broadcast_to(jnp.square(weights), places.shape))
    signal = added_up(frames * weights) / jnp.where(covered > 1e-10, covered, 1)
    if window is None:
        signal = signal * (fft_length / sequence_stride)  # as Keras on JAX scales it
    start = fft_length // 2 if center else 0
    if length is not None:
        return signal[..., start : start + length]
    return signal[..., start : size - start]


def _complex(name: str, x: Complex) -> jax.Array:
    parts = [as_array(part) for part in x] if isinstance(x, Sequence) else []
    if len(parts) != 2 or parts[0].shape != parts[1].shape or {part.dtype.kind for part in parts} - {"f", "V"}:
        summary = f"{name} takes complex numbers as two arrays of floats of one shape: real and imaginary parts"
        given = f"{[(part.shape, part.dtype.name) for part in parts] or type(x).__name__}"
        raise ModelError(summary, given=given, fix=f"{name}((real, ops.zeros_like(real)))")
    return jax.lax.complex(*(part.astype(jnp.result_type(part, jnp.float32)) for part in parts))


def _parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.real(x), jnp.imag(x)


__all__ = names_in(vars())  # pyright: ignore[reportUnsupportedDunderAll]
