"""`Recipe`: how a model is trained."""

from __future__ import annotations

import dataclasses

from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.compiled import StepOptions
from keras_dist.training.objective import Objective
from keras_dist.training.optimization import Optimizer
from keras_dist.training.step import TrainStep


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """How a model is trained: what `compile` was given, resolved.

    Attributes:
        objective: loss and metrics; None when the train step needs none.
        optimizers: by name.
        train_step: the user's own step, or None for gradient descent on the loss.
        measures: the metric objects, which tell what was measured last.
        options: how the steps run.
    """

    objective: Objective | None
    optimizers: dict[str, Optimizer]
    train_step: TrainStep | None
    measures: ModelMetrics
    options: StepOptions
