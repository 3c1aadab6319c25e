"""Objects that know what they were made with."""

from typing import Any

import pytest

import keras_dist as kd
from keras_dist import serialization
from keras_dist.errors import ConfigError, ModelError


class Point(serialization.Configurable):
    def __init__(self, x: float, y: float = 2.0, *, name: str | None = None, **extra: Any) -> None:
        self.sum = x + y
        self.extra = extra


class Pair(serialization.Configurable):
    def __init__(self, function: Any, second: Any = (1, 2)) -> None:
        self.function = function
        self.second = second


class Sum(serialization.Configurable):
    def __init__(self, *parts: float, scale: float = 1.0) -> None:
        self.parts = parts


class Narrow(Point):
    def __init__(self, x: float) -> None:
        super().__init__(x, y=10.0, name="narrow")


class Bare(serialization.Configurable):
    pass


def test_a_config_holds_every_argument() -> None:
    assert Point(1.0).get_config() == {"x": 1.0, "y": 2.0, "name": None}
    assert Point(1.0, name="p", colour="red").get_config() == {"x": 1.0, "y": 2.0, "name": "p", "colour": "red"}
    assert Bare().get_config() == {}


def test_a_config_makes_the_object_again() -> None:
    again = Point.from_config(Point(1.0, y=5.0, colour="red").get_config())
    assert (again.sum, again.extra) == (6.0, {"colour": "red"})


def test_arguments_for_the_base_are_not_those_of_the_subclass() -> None:
    assert Narrow(3.0).get_config() == {"x": 3.0}
    assert Narrow.from_config({"x": 3.0}).sum == 13.0


def test_arguments_without_names_are_not_lost_in_silence() -> None:
    with pytest.raises(ConfigError, match="arguments that have no name") as caught:
        Sum(1.0, 2.0).get_config()
    assert "(1.0, 2.0)" in caught.value.given
    assert Sum(scale=2.0).get_config() == {"scale": 2.0}


def test_a_config_with_other_arguments_is_named() -> None:
    with pytest.raises(ConfigError, match="does not fit the constructor of Narrow") as caught:
        Narrow.from_config({"x": 1.0, "z": 2.0})
    assert caught.value.given == "config with x, z"
    assert caught.value.expected == "x"
    with pytest.raises(ConfigError, match="config with no arguments"):
        Narrow.from_config({})


def test_an_argument_that_cannot_be_written_down_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot hold"):
        Pair(object()).get_config()


def forgetful(base: type) -> Any:
    """An object of a subclass whose constructor does not call that of its base."""
    return type("Forgetful", (base,), {"__init__": lambda self: None})()


@pytest.mark.parametrize(
    ("base", "use"),
    [
        (kd.layers.Dense, lambda layer: layer.build((None, 2))),
        (kd.layers.Layer, repr),
        (kd.Model, lambda model: None),  # a model says so when it is made
        (kd.Sequential, lambda model: None),
        (kd.metrics.Metric, lambda metric: metric(0, 0)),
        (kd.metrics.Metric, lambda metric: metric.name),
        (kd.losses.Loss, lambda loss: loss([[1.0]], [[1.0]])),
        (kd.optimizers.SGD, lambda optimizer: optimizer.init({})),
        (kd.callbacks.EarlyStopping, lambda stopping: stopping.on_epoch_end(0, {})),
        (kd.callbacks.CSVLogger, lambda logger: logger.on_train_begin()),
    ],
)
def test_a_constructor_that_forgets_its_base_is_named(base: type, use: Any) -> None:
    with pytest.raises(ModelError, match=r"Forgetful.__init__ does not call super\(\).__init__\(\)") as caught:
        use(forgetful(base))
    assert caught.value.fix
