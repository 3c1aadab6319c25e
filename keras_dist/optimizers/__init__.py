"""Optimizers of Keras as optax transformations, with the learning rate in their state.

The learning rate can be read and set between steps without recompilation.

Source: names, arguments and defaults as in `keras.optimizers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import optax

from keras_dist._support.missing_names import missing_from
from keras_dist.errors import ModelError
from keras_dist.optimizers import schedules
from keras_dist.optimizers.adam import Adam as Adam
from keras_dist.optimizers.adam import Adamax as Adamax
from keras_dist.optimizers.adam import AdamW as AdamW
from keras_dist.optimizers.adam import Lamb as Lamb
from keras_dist.optimizers.adam import Nadam as Nadam
from keras_dist.optimizers.adam import ScheduleFreeAdamW as ScheduleFreeAdamW
from keras_dist.optimizers.adam8bit import Adam8bit as Adam8bit
from keras_dist.optimizers.adam8bit import AdamW8bit as AdamW8bit
from keras_dist.optimizers.adaptive import Adadelta as Adadelta
from keras_dist.optimizers.adaptive import Adafactor as Adafactor
from keras_dist.optimizers.adaptive import Adagrad as Adagrad
from keras_dist.optimizers.adaptive import Ftrl as Ftrl
from keras_dist.optimizers.adaptive import RMSprop as RMSprop
from keras_dist.optimizers.adaptive import RowWiseAdagrad as RowWiseAdagrad
from keras_dist.optimizers.arguments import LearningRateState as LearningRateState
from keras_dist.optimizers.arguments import ScheduledRateState as ScheduledRateState
from keras_dist.optimizers.arguments import checked_rate as checked_rate
from keras_dist.optimizers.arguments import scale_by_rate as scale_by_rate
from keras_dist.optimizers.arguments import with_learning_rate as with_learning_rate
from keras_dist.optimizers.loss_scale import LossScaleOptimizer as LossScaleOptimizer
from keras_dist.optimizers.loss_scale import LossScaleState as LossScaleState
from keras_dist.optimizers.momentum import SGD as SGD
from keras_dist.optimizers.momentum import Lion as Lion
from keras_dist.optimizers.multi_optimizer import MultiOptimizer as MultiOptimizer
from keras_dist.optimizers.multi_optimizer import MultiOptimizerState as MultiOptimizerState
from keras_dist.optimizers.multi_optimizer import OptimizerMap as OptimizerMap
from keras_dist.optimizers.muon import Muon as Muon
from keras_dist.optimizers.muon import NeuronState as NeuronState
from keras_dist.optimizers.optax_optimizer import AccumulationState as AccumulationState
from keras_dist.optimizers.optax_optimizer import OptaxOptimizer as OptaxOptimizer
from keras_dist.optimizers.optimizer import Optimizer as Optimizer
from keras_dist.optimizers.optimizer import OptimizerState as OptimizerState
from keras_dist.optimizers.optimizer_variables import ModelState as ModelState
from keras_dist.serialization.object_configs import serialize_keras_object
from keras_dist.serialization.object_registry import ObjectRegistry


def _converted(found: Any) -> Any:
    if isinstance(found, Optimizer | OptaxOptimizer):
        return found
    if callable(getattr(found, "init", None)) and callable(getattr(found, "update", None)):
        return optax.with_extra_args_support(found)
    return None


_OPTIMIZERS = ObjectRegistry(
    "optimizer",
    __name__,
    (Optimizer, OptaxOptimizer),
    accepted="an Optimizer, or an optax transformation such as optax.adam(1e-3)",
    example='optimizer="adam", optimizer=Adam(1e-3) or optimizer=optax.adam(1e-3)',
    convert=_converted,
    spell=str.lower,
)


def get(identifier: Any, learning_rate: float | None = None) -> Any:
    """Return the optimizer of a name, class or config; return optimizers, optax transformations and None unchanged.

    Args:
        identifier: the name of an optimizer (in any case), a class, a config of `serialize`, an `Optimizer`, an optax
            transformation, or None.
        learning_rate: for a name, another rate than Keras's default.

    Raises:
        UnknownNameError: no optimizer has this name.
        ModelError: `identifier` is neither of these, or does not take a rate.
        ConfigError: a config names an unknown class or function.

    Example:
        >>> from keras_dist import optimizers
        >>> float(optimizers.get("adam", learning_rate=0.01).init({}).learning_rate)
        0.009999999776482582
    """
    found = _OPTIMIZERS.get(identifier)
    if found is None or learning_rate is None:
        return found
    if not isinstance(identifier, str):
        given = f"learning_rate={learning_rate!r} and {identifier!r}"
        fix = f"give the rate to the optimizer itself: {type(found).__name__}({learning_rate!r})"
        raise ModelError("`learning_rate` goes with the name of an optimizer", given=given, fix=fix)
    return type(found)(learning_rate)


def is_config(identifier: Any) -> bool:
    """Whether `identifier` is a config of `serialize`, and not a dict of optimizers."""
    return isinstance(identifier, Mapping) and isinstance(identifier.get("class_name"), str)


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """Return the class and arguments of an optimizer as plain values.

    Raises:
        ConfigError: an argument cannot be serialized.
    """
    return serialize_keras_object(optimizer)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Optimizer:
    """Create an optimizer from the config that `serialize`, here or in Keras, returns. The case of names is ignored.

    Args:
        config: the config.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        ConfigError: a class or function is unknown.
    """
    return _OPTIMIZERS.deserialize(config, custom_objects)


_EXPORTED = [
    name
    for name, value in vars().items()
    if getattr(value, "__module__", "").startswith(__name__) and not name.startswith("_")
]
__all__ = ["schedules", *_EXPORTED]  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:
    __getattr__ = missing_from(__name__)
