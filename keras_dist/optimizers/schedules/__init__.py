"""Learning rates that follow from the number of steps taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.optimizers.schedules.cosine import CosineDecay, CosineDecayRestarts
from keras_dist.optimizers.schedules.decay import (
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
)
from keras_dist.optimizers.schedules.schedule import LearningRateSchedule
from keras_dist.saving import deserialize_keras_object, serialize_keras_object

__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "deserialize",
    "serialize",
]

_NAMES = {
    cls.__name__: cls
    for cls in (
        CosineDecay,
        CosineDecayRestarts,
        ExponentialDecay,
        InverseTimeDecay,
        PiecewiseConstantDecay,
        PolynomialDecay,
    )
}


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """The class and arguments of a schedule as plain values.

    Raises:
        ConfigError: an argument cannot be written down.

    Source: `keras.optimizers.schedules.serialize`.
    """
    return serialize_keras_object(learning_rate_schedule)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> LearningRateSchedule:
    """The schedule that `serialize` has written down, here or in Keras.

    Args:
        config: what `serialize` gave.
        custom_objects: classes and functions by name, beside the registered ones.

    Raises:
        ConfigError: a class or function is not known.

    Source: `keras.optimizers.schedules.deserialize`.
    """
    return deserialize_keras_object(config, custom_objects, module_objects=_NAMES)
