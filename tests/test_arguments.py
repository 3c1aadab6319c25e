"""Arguments are checked in one place, with one kind of error."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist._support import arguments
from keras_dist.errors import DataError, ModelError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3), jnp.int32(3)])
def test_integers(value):
    found = arguments.check_int("n", value, 0)
    assert found == 3 and type(found) is int
    assert type(arguments.check_number("n", value)) is float


@pytest.mark.parametrize("value", [True, np.True_, 2.0, "2", None, [2], np.array([2]), math.nan, -1, 8])
def test_what_is_no_integer_from_0_to_7(value):
    with pytest.raises(ModelError) as caught:
        arguments.check_int("n", value, 0, 7)
    assert caught.value.summary == "`n` must be an integer from 0 to 7"
    assert caught.value.given == f"n={value!r}" and caught.value.fix == "for example n=1"


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.array(0.5), jnp.float32(0.5)])
def test_numbers(value):
    found = arguments.check_number("rate", value, 0, below=1)
    assert found == 0.5 and type(found) is float


@pytest.mark.parametrize(
    "value", [True, np.False_, "0.5", None, 0.5j, [0.5], np.array([0.5]), math.nan, math.inf, 10**400, -0.1, 1]
)
def test_what_is_no_number_from_0_to_below_1(value):
    with pytest.raises(DataError, match=r"`rate` of layer 'noise' must be a finite number") as caught:
        arguments.check_number("rate", value, 0, below=1, layer="noise", example=0.5, error=DataError)
    assert (
        caught.value.summary.endswith(" of at least 0 and below 1") and caught.value.given and not caught.value.expected
    )


def test_none_stands_for_an_optional_number():
    assert arguments.check_optional(arguments.check_number, "rate", None, 0) is None
    assert arguments.check_optional(arguments.check_number, "rate", 1, 0) == 1.0
    with pytest.raises(ModelError, match="`rate` must be a finite number"):
        arguments.check_optional(arguments.check_number, "rate", -1, 0)


def test_options():
    options = (None, True, "auto", "Sum", 3)
    for value, found in ((None, None), ("AUTO", "auto"), ("sum", "Sum"), (np.True_, True), (np.int8(3), 3)):
        assert arguments.check_option("by", value, options) is found or found == 3
    with pytest.raises(ModelError, match=r"(?s)`by` must be one of .* \(did you mean 'auto'\?\).*by=True"):
        arguments.check_option("by", "aut", options)
    for value in (2, [], {}, np.ones(2), "3", len):
        with pytest.raises(ModelError, match="`by` must be one of"):
            arguments.check_option("by", value, options)


@pytest.mark.parametrize(
    "check, found",
    [
        (lambda: arguments.check_sizes("s", np.int64(2), 2), (2, 2)),
        (lambda: arguments.check_sizes("s", np.array([2, 3]), 2), (2, 3)),
        (lambda: arguments.check_shape("s", [np.int64(2), 0]), (2, 0)),
        (lambda: arguments.check_axes("s", -1), (-1,)),
        (lambda: arguments.check_axes("s", (1, 2)), (1, 2)),
        (lambda: arguments.check_axes_exist("s", (-1, 1), (4, 5, 6)), (1, 2)),
        (lambda: arguments.check_numbers("s", np.eye(2), "layer"), ((1.0, 0.0), (0.0, 1.0))),
    ],
)
def test_several_at_once(check, found):
    assert check() == found


@pytest.mark.parametrize(
    "check",
    [
        lambda: arguments.check_sizes("s", (2, 3, 4), 2),
        lambda: arguments.check_sizes("s", 0, 2),
        lambda: arguments.check_sizes("s", (), 2),
        lambda: arguments.check_size("s", 2**31),
        lambda: arguments.check_shape("s", 3),
        lambda: arguments.check_shape("s", (2, -1)),
        lambda: arguments.check_shape("s", "23"),
        lambda: arguments.check_axes("s", ()),
        lambda: arguments.check_axes("s", (1, 1)),
        lambda: arguments.check_axes("s", (1, True)),
        lambda: arguments.check_axes_exist("s", (1, -1), (4, 5)),
        lambda: arguments.check_axes_exist("s", (2,), (4, 5)),
        lambda: arguments.check_numbers("s", "abc", "layer"),
        lambda: arguments.check_callable("s", lambda x: x, "x, y"),
    ],
)
def test_what_is_refused_is_named(check):
    with pytest.raises(ModelError, match=r"^`s` "):
        check()
