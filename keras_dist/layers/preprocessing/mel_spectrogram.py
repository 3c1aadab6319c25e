"""`MelSpectrogram`: how loud a signal is at each time and pitch."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_number, check_size
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.errors import ModelError
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import LayerArguments
from keras_dist.ops.windows import spectra, window_weights


class MelSpectrogram(Layer):
    """The strength of a signal in windows of time and bands of pitch, (..., num_mel_bins, windows).

    Inputs are signals (time,) or (batch, time).

    Args:
        fft_length: the size of Fourier transforms.
        sequence_stride: how far apart windows begin.
        sequence_length: the size of a window; by default `fft_length`.
        window: `"hann"`, `"hamming"`, `sequence_length` numbers, or None.
        sampling_rate: of the signal [1/s].
        num_mel_bins: the number of bands, which are equally wide on the mel scale.
        min_freq: the least frequency [1/s].
        max_freq: the largest one; by default half of `sampling_rate`.
        power_to_db: whether strengths are logarithms [dB].
        top_db: strengths are cut this far below the largest one in a batch [dB].
        mag_exp: the power of magnitudes: 1 for these, 2 for power.
        min_power: the least strength.
        ref_power: the strength that is 0 dB.
        **kwargs: see `Layer`.

    Example:
        >>> import jax.numpy as jnp
        >>> from keras_dist import layers
        >>> layers.MelSpectrogram(256, 128, num_mel_bins=20)(jnp.ones((2, 1000))).shape
        (2, 20, 8)
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
        """Return the strengths."""
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
        """Return by how much each frequency belongs to each band, (num_spectrogram_bins, num_mel_bins)."""
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
