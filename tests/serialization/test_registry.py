"""Custom classes and functions by name."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import keras_dist as kd
from keras_dist import saving, serialization
from keras_dist.errors import ConfigError


class Plain:
    pass


class Configured(serialization.Configurable):
    pass


def double(x: Any) -> Any:
    return 2 * x


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is forgotten."""
    before = dict(saving.get_custom_objects())
    yield
    saving.get_custom_objects().clear()
    saving.get_custom_objects().update(before)


def test_a_registered_class_has_a_name() -> None:
    class Mine(Configured):
        pass

    assert saving.get_registered_name(Mine) == "Mine"
    assert saving.register_keras_serializable("shop")(Mine) is Mine
    assert saving.get_registered_name(Mine) == "shop>Mine"
    assert saving.get_registered_object("shop>Mine") is Mine
    assert saving.get_custom_objects()["shop>Mine"] is Mine


def test_package_and_name_have_defaults() -> None:
    def triple(x: Any) -> Any:
        return 3 * x

    saving.register_keras_serializable()(triple)
    assert saving.get_registered_name(triple) == "Custom>triple"
    saving.register_keras_serializable("shop", name="by_three")(triple)
    assert saving.get_registered_name(triple) == "shop>by_three"


def test_a_class_without_a_config_is_refused() -> None:
    with pytest.raises(ConfigError, match="Plain cannot be registered: it has no get_config"):
        saving.register_keras_serializable()(Plain)


def test_the_decorator_must_be_called() -> None:
    with pytest.raises(ConfigError, match="only when it is called") as caught:
        saving.register_keras_serializable(Configured)  # type: ignore[arg-type]
    assert "@saving.register_keras_serializable()" in caught.value.fix


def test_a_scope_ends() -> None:
    with saving.custom_object_scope({"double": double}):
        assert saving.get_registered_object("double") is double
        with saving.CustomObjectScope({"other": abs}):
            assert saving.get_registered_object("double") is double
            assert saving.get_registered_object("other") is abs
        assert saving.get_registered_object("other") is None
        assert "double" not in saving.get_custom_objects()
    assert saving.get_registered_object("double") is None
    with saving.custom_object_scope(None):
        pass


def test_a_scope_is_of_its_thread() -> None:
    found = []
    with saving.custom_object_scope({"double": double}):
        thread = threading.Thread(target=lambda: found.append(saving.get_registered_object("double")))
        thread.start()
        thread.join()
    assert found == [None]


def test_which_table_comes_first() -> None:
    first, second, third, fourth = (lambda: 1), (lambda: 2), (lambda: 3), (lambda: 4)
    saving.get_custom_objects()["it"] = third
    assert saving.get_registered_object("it", module_objects={"it": fourth}) is third
    with saving.custom_object_scope({"it": second}):
        assert saving.get_registered_object("it") is second
        assert saving.get_registered_object("it", {"it": first}) is first
    assert saving.get_registered_object("that", module_objects={"that": fourth}) is fourth


def test_a_kind_without_aliases_has_the_names_of_its_package():
    made = serialization.ObjectRegistry(
        "loss",
        "keras_dist.losses",
        kd.losses.Loss,
        accepted="a name",
        example="MeanSquaredError()",
        convert=lambda x: x,
    )
    assert isinstance(made.get("mean_squared_error"), kd.losses.MeanSquaredError)
