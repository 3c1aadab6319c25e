"""`ops.math` gives what Keras gives."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.ops.agreement import Draws, agree, properties

SEGMENTS = np.array([0, 2, 2, 1, 0, 2])


def segments(name):
    def case(d):
        rows = d.array(d.one_of((6,), (6, 2)), d.one_of("float32", "int32"))
        is_sorted = d.one_of(False, True)
        ids = np.sort(SEGMENTS) if is_sorted else SEGMENTS
        return name, (rows, ids), {"num_segments": d.one_of(3, 4), "sorted": is_sorted, "batch": False}

    return case


def pair(d, shape=(2, 8)):
    return d.array(shape), d.array(shape)


CASES = {
    **{f"segment_{name}": segments(f"segment_{name}") for name in ("sum", "max", "min", "prod")},
    "top_k": lambda d: ("top_k", (d.array((3, 6), d.one_of("float32", "int32"), -50, 50),), {"k": d.one_of(1, 3)}),
    "in_top_k": lambda d: ("in_top_k", (d.array((3,), "int32", 0, 5), d.array((3, 6))), {"k": d.one_of(1, 3)}),
    # Keras says that it is float32
    "logsumexp": lambda d: (
        "logsumexp",
        (d.floats(2, 3),),
        {
            "axis": d.one_of(None, 0, -1, (0, 1)),
            "keepdims": d.one_of(False, True),
            "symbolic": False,
        },  # float32 in Keras
    ),
    "cdist": lambda d: ("cdist", (d.array((2, 3, 4)), d.array((2, 5, 4))), {}),
    "extract_sequences": lambda d: (
        "extract_sequences",
        (d.array(d.one_of((16,), (2, 16))),),
        {"sequence_length": 5, "sequence_stride": d.one_of(2, 5), "batch": False},
    ),
    "fft": lambda d: ("fft", (pair(d),), {}),
    "fft2": lambda d: ("fft2", (pair(d, (2, 4, 8)),), {}),
    "ifft2": lambda d: ("ifft2", (pair(d, (2, 4, 8)),), {}),
    "rfft": lambda d: ("rfft", (d.array((2, 8)), d.one_of(None, 6, 10)), {}),
    "irfft": lambda d: ("irfft", (pair(d, (2, 5)), d.one_of(None, 6, 9)), {}),
    "rsqrt": lambda d: ("rsqrt", (d.floats(low=0.5),), {}),
    "erf": lambda d: ("erf", (d.floats(),), {}),
    "erfc": lambda d: ("erfc", (d.floats(),), {}),
    "erfinv": lambda d: ("erfinv", (d.floats(low=-0.9, high=0.9),), {}),
    "logdet": lambda d: ("logdet", (d.array((2, 3, 3)) + 4 * np.eye(3, dtype="float32"),), {}),
    "view_as_complex": lambda d: ("view_as_complex", (d.array((3, 2)),), {}),
    "view_as_real": lambda d: ("view_as_real", (d.array((3, 2)) + 1j * d.array((3, 2)),), {"symbolic": False}),
}
WINDOWS = {"sequence_length": 8, "sequence_stride": 4, "fft_length": 16}


@properties
@hypothesis.given(data=st.data())
def test_gives_what_keras_gives(keras, data):
    for case in CASES.values():
        name, args, kwargs = case(Draws(data))
        agree(keras, name, *args, **kwargs)


@pytest.mark.parametrize("window", ["hann", "hamming", None, np.linspace(0.1, 1, 8, dtype="float32")], ids=str)
@pytest.mark.parametrize("center", [True, False])
def test_windows_of_signals(keras, window, center):
    random = np.random.default_rng(0)
    signal = random.normal(size=(2, 40)).astype("float32")
    options = {**WINDOWS, "window": window, "center": center}
    agree(keras, "stft", signal, **options, tolerance=1e-4, symbolic=False)
    spectra = tuple(random.normal(size=(2, 2, 7, 9)).astype("float32"))
    for length in (None, 24):
        agree(keras, "istft", spectra, **options, length=length, tolerance=1e-4, symbolic=False)
