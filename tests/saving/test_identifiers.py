"""Names, configs, classes and objects as arguments."""

from typing import Any

import pytest

from keras_dist import saving
from keras_dist.errors import ConfigError, UnknownNameError


class Small(saving.Configurable):
    def __init__(self, size: int = 1) -> None:
        self.size = size


class Needy(saving.Configurable):
    def __init__(self, size: int) -> None:
        self.size = size


def half(x: Any) -> Any:
    return x / 2


NAMES = {**saving.names_of(Small, Needy), "half": half}


def resolve(identifier: Any) -> Any:
    return saving.resolve(identifier, NAMES, "thing", "a function")


def test_names_of_classes() -> None:
    classes = [type(name, (), {}) for name in ("L1L2", "HeNormal", "Conv2DTranspose", "RMSprop", "STFT")]
    assert saving.names_of(*classes).keys() >= {"l1l2", "he_normal", "conv2d_transpose", "rm_sprop", "stft"}


def test_what_an_identifier_may_be() -> None:
    small = Small()
    assert resolve(small) is small
    assert type(resolve("small")) is type(resolve("Small")) is type(resolve(Small)) is Small
    assert resolve("half") is half
    assert resolve(7) == 7
    assert resolve({"class_name": "small", "config": {"size": 3}}).size == 3
    assert resolve({"class_name": "function", "config": "half", "module": "builtins"}) is half


def test_a_scope_goes_before_the_names() -> None:
    with saving.custom_object_scope({"half": abs, "Small": Needy}):
        assert resolve("half") is abs
        assert type(resolve({"class_name": "Small", "config": {"size": 3}})) is Needy


def test_unknown_names_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown thing 'smal' \(did you mean 'small'\?\)") as caught:
        resolve("smal")
    assert caught.value.expected == "one of Needy, Small, half, needy, small; or a function"
    assert "register_keras_serializable" in caught.value.fix


def test_a_class_that_needs_arguments_is_named() -> None:
    for identifier in (Needy, "needy"):
        with pytest.raises(ConfigError, match="`thing` is a class that needs arguments") as caught:
            resolve(identifier)
        assert caught.value.fix == "pass an object: Needy(...)"
