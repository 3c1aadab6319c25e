"""`LearningRateSchedule`: a rate for each step."""

from __future__ import annotations

import jax

from keras_dist._support.types import ArrayLike
from keras_dist.errors import ModelError
from keras_dist.saving.configurable import Configurable


class LearningRateSchedule(Configurable):
    """A rate for each step. Subclasses define `__call__` with `jax.numpy`: the step is traced.

    Example:
        >>> from keras_dist import optimizers
        >>> class Reciprocal(optimizers.schedules.LearningRateSchedule):
        ...     def __init__(self, initial_learning_rate):
        ...         self.initial_learning_rate = initial_learning_rate
        ...     def __call__(self, step):
        ...         return self.initial_learning_rate / (step + 1)
        >>> float(optimizers.SGD(Reciprocal(0.5)).init({}).learning_rate)
        0.5
    """

    def __call__(self, step: ArrayLike) -> jax.Array:
        """Return the rate after `step` steps."""
        summary = f"the schedule {type(self).__name__} defines no `__call__`"
        fix = "for example return self.initial_learning_rate / (step + 1)"
        raise ModelError(summary, given=f"{type(self).__name__} without __call__(self, step)", fix=fix)
