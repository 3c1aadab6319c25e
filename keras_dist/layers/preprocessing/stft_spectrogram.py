"""`STFTSpectrogram`: the frequencies of a signal at each time, by kernels that can be trained."""

from __future__ import annotations

import math
import warnings
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from keras_dist import initializers
from keras_dist._support.arguments import (
    argument_error,
    check_option,
    check_optional,
    check_size,
)
from keras_dist._support.types import PyTree
from keras_dist.config.settings import check_data_format, epsilon
from keras_dist.errors import ArgumentTypeError, ModelError
from keras_dist.layers.input_spec import InputSpec
from keras_dist.layers.layer import Layer
from keras_dist.layers.weight_arguments import LayerArguments

MODES = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")


class STFTSpectrogram(Layer):
    """The short-time Fourier transform of signals, (batch, frames, channels * frequencies).

    Inputs are signals (batch, time, channels), or (batch, channels, time). The transform is a convolution, whose
    kernels `real_kernel` and `imag_kernel` (frame_length, 1, frequencies) are trained unless `trainable=False`.

    Args:
        mode: `"log"` magnitudes, `"magnitude"`, `"psd"` for the power spectral density, the `"real"` or the `"imag"`
            part, `"angle"`, or `"stft"` for both parts, one after the other.
        frame_length: the size of a frame.
        frame_step: how far apart frames begin; by default half of `frame_length`.
        fft_length: the size n of transforms, of n // 2 + 1 frequencies; by default the next power of 2.
        window: see `initializers.STFT`.
        periodic: see `initializers.STFT`.
        scaling: see `initializers.STFT`.
        padding: `"valid"`, or `"same"` for zeros at both ends.
        expand_dims: whether channels and frequencies are dims of their own, (batch, frames, frequencies, channels).
        data_format: `"channels_last"`, the default, or `"channels_first"` for outputs (batch, channels * frequencies,
            frames), or (batch, channels, frames, frequencies).
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
            warnings.warn(f"fft_length={fft_length} is not a power of 2, for which transforms are faster", stacklevel=2)
        self.window, self.periodic, self.scaling = window, periodic, scaling
        self._initializers = {side: initializers.STFT(side, window, scaling, periodic) for side in ("real", "imag")}
        self.padding = check_option("padding", padding, ("valid", "same"), self.name)
        self.expand_dims = bool(expand_dims)
        self.data_format = check_data_format(data_format, self.name)
        self.input_spec = InputSpec(ndim=3)

    def build(self, input_shape: PyTree = None) -> None:
        """Create `real_kernel` and `imag_kernel` (frame_length, 1, frequencies), or the one that `mode` needs."""
        size = self.fft_length or 2 ** math.ceil(math.log2(self.frame_length))
        for side in (self.mode,) if self.mode in ("real", "imag") else ("real", "imag"):
            name, shape = f"{side}_kernel", (self.frame_length, 1, size // 2 + 1)
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer=self._initializers[side]))

    def call(self, inputs: jax.Array) -> jax.Array:
        """Return what `mode` says of each frame and frequency."""
        if not jnp.issubdtype(inputs.dtype, jnp.floating):
            raise argument_error(
                "inputs", inputs.dtype, "floating-point numbers", layer=self.name, error=ArgumentTypeError
            )
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
            return power.at[..., 1:-1].multiply(2)  # what negative frequencies hold, too
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
    """Return `values` with this dim and the next one joined."""
    return values.reshape(*values.shape[:axis], -1, *values.shape[axis + 2 :])
