"""`MelSpectrogram` and `STFTSpectrogram`: spectra of signals over time."""

from __future__ import annotations

import math
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist import initializers
from keras_dist._support.arguments import argument_error, check_number, check_option, check_optional, check_size
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist.config.settings import check_data_format, epsilon
from keras_dist.errors import ArgumentTypeError, ModelError
from keras_dist.layers.call_arguments import InputSpec
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops.spectra import spectra, window_weights


class MelSpectrogram(Layer):
    """Mel spectrogram (..., num_mel_bins, windows) of signals (time,) or (batch, time).

    Args:
        fft_length: size of Fourier transforms.
        sequence_stride: distance of the starts of windows.
        sequence_length: size of a window; by default `fft_length`.
        window: `"hann"`, `"hamming"`, `sequence_length` numbers, or None.
        sampling_rate: sampling rate of the signal [1/s].
        num_mel_bins: number of bands of equal width on the mel scale.
        min_freq: lowest frequency [1/s].
        max_freq: highest frequency [1/s]; by default half of `sampling_rate`.
        power_to_db: whether to return logarithms [dB].
        top_db: results are limited to this distance from the largest one in a batch [dB].
        mag_exp: exponent of magnitudes: 1 for magnitude, 2 for power.
        min_power: smallest power.
        ref_power: power of 0 dB.
        **kwargs: see `Layer`.
    """

    def __init__(
        self,
        fft_length: int = 2048,
        sequence_stride: int = 512,
        sequence_length: int | None = None,
        window: Any = "hann",
        sampling_rate: int = 16000,
        num_mel_bins: int = 128,
        min_freq: float = 20.0,
        max_freq: float | None = None,
        power_to_db: bool = True,
        top_db: float = 80.0,
        mag_exp: float = 2.0,
        min_power: float = 1e-10,
        ref_power: float = 1.0,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.fft_length = check_size("fft_length", fft_length, self.name)
        self.sequence_stride = check_size("sequence_stride", sequence_stride, self.name)
        self.sequence_length = check_size("sequence_length", sequence_length or fft_length, self.name)
        self.window = window
        self.sampling_rate = check_number("sampling_rate", sampling_rate, above=0, layer=self.name)
        self.num_mel_bins = check_size("num_mel_bins", num_mel_bins, self.name)
        self.min_freq, self.max_freq = min_freq, max_freq or int(sampling_rate / 2)
        self.power_to_db, self.top_db = bool(power_to_db), top_db
        self.mag_exp, self.min_power, self.ref_power = mag_exp, min_power, ref_power
        self._weights_of_window()

    def call(self, inputs: jax.Array) -> jax.Array:
        if inputs.ndim not in (1, 2):
            summary = f"layer {self.name!r} takes signals (time,) or (batch, time)"
            raise ModelError(summary, given=f"shape {inputs.shape}", fix="take one channel: x[..., 0]")
        half = self.fft_length // 2
        found = spectra(inputs.astype("float32"), self._weights_of_window(), self.sequence_stride, center=True)
        strengths = jnp.abs(found) ** self.mag_exp
        edges = (self.sampling_rate, self.min_freq, self.max_freq)
        found = strengths @ self.linear_to_mel_weight_matrix(self.num_mel_bins, half + 1, *edges)
        if self.power_to_db:
            found = 10 * jnp.log10(jnp.maximum(found, self.min_power))
            found = found - 10 * np.log10(max(abs(self.ref_power), self.min_power))
            found = jnp.maximum(found, jnp.max(found) - self.top_db)
        return jnp.swapaxes(found, -1, -2).astype(self.compute_dtype)

    def linear_to_mel_weight_matrix(
        self,
        num_mel_bins: int = 20,
        num_spectrogram_bins: int = 129,
        sampling_rate: float = 8000,
        lower_edge_hertz: float = 125.0,
        upper_edge_hertz: float = 3800.0,
        dtype: DTypeLike = "float32",
    ) -> jax.Array:
        """Return the weight of each frequency in each band, (num_spectrogram_bins, num_mel_bins)."""
        edges = np.linspace(_mel(lower_edge_hertz), _mel(upper_edge_hertz), num_mel_bins + 2)
        pitches = _mel(np.linspace(0, sampling_rate / 2, num_spectrogram_bins))[:, None]
        lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
        shares = np.minimum((pitches - lower) / (centre - lower), (upper - pitches) / (upper - centre))
        shares[0] = 0
        return jnp.asarray(np.maximum(shares, 0), dtype)

    def _weights_of_window(self) -> jax.Array:
        sizes = (self.sequence_length, self.sequence_stride, self.fft_length)
        return window_weights(f"layer {self.name!r}", self.window, *sizes).astype("float32")


def _mel(frequencies: ArrayLike) -> np.ndarray:
    return 1127.0 * np.log(1.0 + np.asarray(frequencies, "float64") / 700.0)


MODES = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")


class STFTSpectrogram(Layer):
    """Short-time Fourier transform (batch, frames, channels * frequencies) of signals (batch, time, channels).

    The transform is a convolution with trainable kernels `real_kernel` and `imag_kernel` (frame_length, 1,
    frequencies).

    Args:
        mode: `"log"` for log-magnitudes, `"magnitude"`, `"psd"` for the power spectral density, `"real"`, `"imag"`,
            `"angle"`, or `"stft"` for real and imaginary parts, concatenated.
        frame_length: size of a frame.
        frame_step: distance of the starts of frames; by default half of `frame_length`.
        fft_length: size n of transforms with n // 2 + 1 frequencies; by default the next power of 2.
        window, periodic, scaling: see `initializers.STFT`.
        padding: `"valid"`, or `"same"` for zero padding at both ends.
        expand_dims: whether channels and frequencies are separate dims, (batch, frames, frequencies, channels).
        data_format: `"channels_last"`, the default, or `"channels_first"` for inputs (batch, channels, time) and
            outputs (batch, channels * frequencies, frames), or (batch, channels, frames, frequencies).
        **kwargs: see `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.STFTSpectrogram(frame_length=256)(jnp.ones((2, 1000, 1))).shape
        (2, 6, 129)
    """

    def __init__(
        self,
        mode: str = "log",
        frame_length: int = 256,
        frame_step: int | None = None,
        fft_length: int | None = None,
        window: Any = "hann",
        periodic: bool = False,
        scaling: str | None = "density",
        padding: str = "valid",
        expand_dims: bool = False,
        data_format: str | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.mode = check_option("mode", mode, MODES, self.name)
        self.frame_length = check_size("frame_length", frame_length, self.name)
        self.frame_step = check_optional(check_size, "frame_step", frame_step, self.name)
        self.fft_length = check_optional(check_size, "fft_length", fft_length, self.name)
        if (frame_step or 1) > frame_length:
            raise argument_error("frame_step", frame_step, f"at most frame_length={frame_length}", layer=self.name)
        if (fft_length or frame_length) < frame_length:
            raise argument_error("fft_length", fft_length, f"at least frame_length={frame_length}", layer=self.name)
        if fft_length is not None and fft_length.bit_count() != 1:
            warn(f"fft_length={fft_length} is not a power of 2, for which transforms are faster")
        self.window, self.periodic, self.scaling = window, periodic, scaling
        self._initializers = {side: initializers.STFT(side, window, scaling, periodic) for side in ("real", "imag")}
        self.padding = check_option("padding", padding, ("valid", "same"), self.name)
        self.expand_dims = bool(expand_dims)
        self.data_format = check_data_format(data_format, self.name)
        self.input_spec = InputSpec(ndim=3)

    def build(self, input_shape: PyTree = None) -> None:
        """Create the kernels (frame_length, 1, frequencies) that `mode` requires."""
        size = self.fft_length or 2 ** math.ceil(math.log2(self.frame_length))
        for side in (self.mode,) if self.mode in ("real", "imag") else ("real", "imag"):
            name, shape = f"{side}_kernel", (self.frame_length, 1, size // 2 + 1)
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer=self._initializers[side]))

    def call(self, inputs: jax.Array) -> jax.Array:
        if not jnp.issubdtype(inputs.dtype, jnp.floating):
            expected = "floating-point numbers"
            raise argument_error("inputs", inputs.dtype, expected, layer=self.name, error=ArgumentTypeError)
        signals = jnp.swapaxes(inputs, 1, 2) if self.data_format == "channels_last" else inputs
        if self.padding == "valid" and signals.shape[-1] < self.frame_length:
            summary = f"signals of layer {self.name!r} must have at least frame_length={self.frame_length} numbers"
            given = f"{signals.shape[-1]} in inputs of shape {inputs.shape}, data_format={self.data_format!r}"
            fix = 'padding="same", a smaller frame_length, or the other data_format'
            raise ModelError(summary, given=given, fix=fix)
        found = self._spectra(signals)  # (batch, channels, frames, frequencies)
        if self.data_format == "channels_first":
            return found if self.expand_dims else _joined(jnp.swapaxes(found, 2, 3), 1)
        return jnp.transpose(found, (0, 2, 3, 1)) if self.expand_dims else _joined(jnp.swapaxes(found, 1, 2), 2)

    def _spectra(self, signals: jax.Array) -> jax.Array:
        if self.mode in ("real", "imag"):
            return self._convolved(signals, self.mode)
        real, imag = self._convolved(signals, "real"), self._convolved(signals, "imag")
        if self.mode == "angle":
            return jnp.arctan2(imag, real)
        if self.mode == "stft":
            return jnp.concatenate([real, imag], -1)
        power = jnp.square(real) + jnp.square(imag)
        if self.mode == "psd":
            return power.at[..., 1:-1].multiply(2)  # negative frequencies
        magnitude = jnp.sqrt(jnp.maximum(power, epsilon()))
        return magnitude if self.mode == "magnitude" else jnp.log(jnp.maximum(magnitude, epsilon()))

    def _convolved(self, signals: jax.Array, side: str) -> jax.Array:
        kernel = getattr(self, f"{side}_kernel")[...].astype(signals.dtype)
        found = jax.lax.conv_general_dilated(
            signals.reshape(-1, signals.shape[-1], 1),
            kernel,
            (self.frame_step or max(self.frame_length // 2, 1),),
            self.padding.upper(),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )
        return found.reshape(*signals.shape[:2], *found.shape[1:])


def _joined(values: jax.Array, axis: int) -> jax.Array:
    return values.reshape(*values.shape[:axis], -1, *values.shape[axis + 2 :])
