"""Layers for signals give what those of Keras give."""

import types
from typing import Any

import numpy as np
import pytest

from keras_dist import layers
from tests.parity.compare import assert_close

SIGNALS = np.random.default_rng(0).normal(size=(2, 600)).astype("float32")
SMALL: dict[str, Any] = {"fft_length": 128, "sequence_stride": 64, "num_mel_bins": 8}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"power_to_db": False, "window": "hamming", "mag_exp": 1.0},
        {"sequence_length": 100, "ref_power": 2.0, "top_db": 10.0, "min_freq": 300.0, "max_freq": 4000.0},
    ],
)
def test_pitches_as_in_keras(keras: types.ModuleType, options: dict[str, Any]) -> None:
    theirs, ours = keras.layers.MelSpectrogram(**SMALL, **options), layers.MelSpectrogram(**SMALL, **options)
    assert ours.get_config().items() >= {**SMALL, **options}.items()
    for signals in (SIGNALS, SIGNALS[0]):
        assert_close(ours(signals), theirs(signals))
    assert ours.compute_output_shape((None, 600)) == (None, 8, 10)
    assert theirs.linear_to_mel_weight_matrix().shape == ours.linear_to_mel_weight_matrix().shape
    with pytest.raises(ValueError, match="takes signals"):
        ours(SIGNALS[None])


STFT: list[dict[str, Any]] = [
    {},
    {"mode": "magnitude", "padding": "same", "frame_length": 60},
    {"mode": "psd", "frame_step": 20, "expand_dims": True, "scaling": "spectrum"},
    {"mode": "real", "window": "hamming", "periodic": True, "data_format": "channels_first"},
    {"mode": "imag", "fft_length": 128, "scaling": None},
    {"mode": "angle", "window": None, "expand_dims": True, "data_format": "channels_first"},
    {"mode": "stft", "window": np.linspace(1, 2, 64)},
]


@pytest.mark.parametrize("options", STFT, ids=lambda options: options.get("mode", "log"))
def test_frequencies_as_in_keras(keras: types.ModuleType, options: dict[str, Any]) -> None:
    options = {"frame_length": 64, **options}
    theirs, ours = keras.layers.STFTSpectrogram(**options), layers.STFTSpectrogram(**options)
    signals = SIGNALS.reshape(2, 3, 200) if options.get("data_format") else SIGNALS.reshape(2, 200, 3)
    expected = theirs(signals)
    pair = (ours(signals), expected)
    assert_close(*(pair if ours.mode != "angle" else [np.exp(1j * np.asarray(angle)) for angle in pair]), 1e-4)
    assert ours.compute_output_shape((None, *signals.shape[1:])) == (None, *expected.shape[1:])
    assert [weight.name for weight in ours.trainable_weights] == [weight.name for weight in theirs.trainable_weights]


def test_frames_that_do_not_fit() -> None:
    for options in ({"frame_step": 300}, {"fft_length": 64}, {"mode": "loud"}, {"padding": "causal"}, {"window": "no"}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
            layers.STFTSpectrogram(**options)
    with pytest.warns(UserWarning, match="not a power of 2"):
        layer = layers.STFTSpectrogram(fft_length=300)
    with pytest.raises(TypeError, match="floating-point"):
        layer(np.ones((2, 400, 1), "int32"))


def test_signals_that_are_too_short(keras: types.ModuleType) -> None:
    signals = SIGNALS[..., None]
    for package in (keras.layers, layers):
        with pytest.raises(ValueError, match=r"empty output|at least frame_length"):
            package.STFTSpectrogram(frame_length=601)(signals)
    assert layers.STFTSpectrogram(frame_length=601, padding="same")(signals).shape == (2, 2, 513)
