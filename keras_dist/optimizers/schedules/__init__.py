"""Learning rates as functions of the number of steps taken.

Source: names, arguments and defaults as in `keras.optimizers.schedules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.optimizers.schedules.cosine import CosineDecay as CosineDecay
from keras_dist.optimizers.schedules.cosine import CosineDecayRestarts as CosineDecayRestarts
from keras_dist.optimizers.schedules.decay import ExponentialDecay as ExponentialDecay
from keras_dist.optimizers.schedules.decay import InverseTimeDecay as InverseTimeDecay
from keras_dist.optimizers.schedules.decay import PiecewiseConstantDecay as PiecewiseConstantDecay
from keras_dist.optimizers.schedules.decay import PolynomialDecay as PolynomialDecay
from keras_dist.optimizers.schedules.schedule import LearningRateSchedule as LearningRateSchedule
from keras_dist.saving.object_registry import ObjectRegistry
from keras_dist.saving.serialization import serialize_keras_object

_SCHEDULES = ObjectRegistry(
    "learning_rate_schedule",
    __name__,
    LearningRateSchedule,
    accepted="a LearningRateSchedule",
    example="schedules.CosineDecay(0.1, decay_steps=1000)",
    convert=lambda found: found if callable(found) else None,
)


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """Return the class and arguments of a schedule as plain values.

    Raises:
        ConfigError: an argument cannot be serialized.
    """
    return serialize_keras_object(learning_rate_schedule)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> LearningRateSchedule:
    """Return the schedule of a config of `serialize`, here or in Keras.

    Args:
        config: the config.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        ConfigError: a class or function is unknown.
    """
    return _SCHEDULES.deserialize(config, custom_objects)


__all__ = [
    name
    for name, value in vars().items()
    if getattr(value, "__module__", "").startswith(__name__) and not name.startswith("_")
]  # pyright: ignore[reportUnsupportedDunderAll]
