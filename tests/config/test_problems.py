"""How key paths and values are shown."""

from collections.abc import Callable

import pytest

from keras_dist.config.problems import show
from keras_dist.errors import ConfigError


def test_long_values_are_cut() -> None:
    assert len(show("x" * 1000)) < 100
    assert len(show(["x" * 1000] * 1000)) < 1000
    assert len(show({str(i): [[["x"]]] for i in range(1000)})) < 1000


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("training.epochs = 0", "a number >= 1"),
        ("training.seed = 9_999_999_999", "a number < 4294967296"),
        ("training.epochs = 1.5", "an integer"),
        ("training.dtype_policy = 1", "text in quotes"),
        ("training.shuffle = 1", "true or false"),
        ("cluster.hang_timeout_s = 'x'", "a number"),
        ("model = {name = 'a:b', config = 3}", "a table"),
        (
            "model = {name = 'a:b', day = [1979-05-27]}",
            "text in quotes, a number, true or false, or a list or table of these",
        ),
    ],
)
def test_what_was_expected_is_in_our_words(refused: Callable[..., ConfigError], setting: str, expected: str) -> None:
    error = refused(f'mesh.shape = "data=8"\n{setting}')
    assert (error.expected, error.fix) == (expected, f"give {expected}")
