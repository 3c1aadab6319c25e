import pytest

from keras_dist.distribution.render import render_axes, render_bytes, render_shape


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ((None, "model"), "(-, model)"),
        ((("data", "model"), None), "(data+model, -)"),
        ((None, None), "replicated"),
        ((), "replicated"),
    ],
)
def test_axes(axes: tuple, text: str) -> None:
    assert render_axes(axes) == text


@pytest.mark.parametrize(("shape", "text"), [((64, 128), "64 x 128"), ((3,), "3"), ((), "scalar")])
def test_shape(shape: tuple[int, ...], text: str) -> None:
    assert render_shape(shape) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_bytes(nbytes: int, text: str) -> None:
    assert render_bytes(nbytes) == text
