"""When the loss of a model must be scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist.errors import ModelError
from keras_dist.mixed_precision.policy import DTypePolicy
from keras_dist.optimizers import LossScaleOptimizer


def with_loss_scale(optimizer: Any, policy: DTypePolicy) -> Any:
    """`optimizer`, in a `LossScaleOptimizer` where the policy is "mixed_float16".

    Args:
        optimizer: one optimizer, or a dict of them that all have a `loss_scale_factor`.
        policy: of the model.

    Raises:
        ModelError: several optimizers share one loss, and do not scale it.
    """
    if policy.name != "mixed_float16" or isinstance(optimizer, LossScaleOptimizer):
        return optimizer
    if not isinstance(optimizer, Mapping):
        return LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    optimizers = [entry[0] if isinstance(entry, tuple) else entry for entry in optimizer.values()]
    if any(getattr(one, "loss_scale_factor", None) is None for one in optimizers):
        raise ModelError(
            "several optimizers cannot find out one scale of the loss",
            given=f'the optimizers {list(optimizer)} under "mixed_float16"',
            expected="one optimizer, or the same loss_scale_factor in all of them",
            fix='give them loss_scale_factor=1024.0, pass auto_scale_loss=False, or choose "mixed_bfloat16"',
        )
    return optimizer
