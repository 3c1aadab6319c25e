"""Names, configs, classes and objects as arguments."""

from typing import Any

import pytest

from keras_dist import saving
from keras_dist.errors import ConfigError, ModelError, UnknownNameError
from keras_dist.saving.object_registry import snake_case


class Small(saving.Configurable):
    def __init__(self, size: int = 1) -> None:
        self.size = size


class Needy(saving.Configurable):
    def __init__(self, size: int) -> None:
        self.size = size


def half(x: Any) -> Any:
    return x / 2


__all__ = ["Needy", "Small", "half"]
THINGS = saving.ObjectRegistry(
    "thing",
    __name__,
    saving.Configurable,
    accepted="a function",
    example="half",
    convert=lambda found: None if found == 7 else found,
    functions=True,
    aliases={"little": "Small"},
)
resolve = THINGS.get


def test_names_of_classes() -> None:
    names = [snake_case(name) for name in ("L1L2", "HeNormal", "Conv2DTranspose", "RMSprop", "STFT", "F1Score")]
    assert names == ["l1l2", "he_normal", "conv2d_transpose", "rm_sprop", "stft", "f1_score"]


def test_what_an_identifier_may_be() -> None:
    small = Small()
    assert resolve(small) is small
    for identifier in ("small", "Small", "SMALL", "little", Small):
        assert type(resolve(identifier)) is Small
    assert resolve("half") is half
    assert resolve(None) is None
    assert resolve({"class_name": "small", "config": {"size": 3}}).size == 3
    assert resolve({"class_name": "NEEDY", "config": {"size": 3}}).size == 3
    assert resolve({"class_name": "function", "config": "half", "module": "builtins"}) is half


def test_a_scope_goes_before_the_names() -> None:
    with saving.custom_object_scope({"half": abs, "Small": Needy}):
        assert resolve("half") is abs
        assert type(resolve({"class_name": "Small", "config": {"size": 3}})) is Needy


def test_unknown_names_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown thing 'smal' \(did you mean 'small'\?\)") as caught:
        resolve("smal")
    assert caught.value.expected == "one of Needy, Small, half, little, needy, small; or a function"
    assert "register_keras_serializable" in caught.value.fix


def test_registered_names_are_near_ones_too() -> None:
    saving.register_keras_serializable("tests_of_things", "Wheel")(Needy)
    try:
        with pytest.raises(UnknownNameError, match=r"did you mean 'tests_of_things>Wheel'"):
            resolve("tests_of_things>Whel")
        with pytest.raises(ConfigError, match="`thing` is a class that needs arguments") as caught:
            resolve("tests_of_things>Wheel")
        assert caught.value.fix == "pass an object: Needy(...)"
    finally:
        del saving.get_custom_objects()["tests_of_things>Wheel"]


def test_objects_of_another_kind_are_refused() -> None:
    with pytest.raises(ModelError, match="`thing` must be a function") as caught:
        resolve(7)
    assert (caught.value.given, caught.value.fix) == ("7 of type int", "for example half")
