"""The learning rates of a model, for callbacks that set them."""

from __future__ import annotations

from typing import Any

from keras_dist.callbacks.callback import EpochLogs
from keras_dist.errors import ArgumentTypeError, ModelError
from keras_dist.optimizers import MultiOptimizer


def check_settable(model: Any, callback: str) -> None:
    """Raise if the learning rate of an optimizer of the model cannot be set."""
    for _, optimizer in labelled(model):
        try:
            optimizer.learning_rate = optimizer.learning_rate
        except ModelError as error:
            summary = f"{callback} cannot set the learning rate: {error.summary}"
            fix = f"{error.fix}; or leave out {callback}"
            raise ArgumentTypeError(summary, given=error.given, expected=error.expected, fix=fix) from error


def labelled(model: Any) -> list[tuple[str, Any]]:
    """Return the optimizers of the model with their suffixes in messages and logs; a single one has an empty suffix."""
    found: dict[str, Any] = {}
    for name, optimizer in model.optimizers.items():
        parts = optimizer.optimizers if isinstance(optimizer, MultiOptimizer) else [optimizer]
        for part in parts:
            label = part.name if isinstance(optimizer, MultiOptimizer) else name
            same = sum(one == label or one.startswith(f"{label}_") for one in found)
            found[f"{label}_{same}" if same else label] = part
    return [*found.items()] if len(found) > 1 else [("", one) for one in found.values()]


def log_rates(model: Any, logs: EpochLogs | None) -> None:
    """Add the learning rates to the logs of an epoch."""
    if logs is not None:
        for label, optimizer in labelled(model):
            logs[f"learning_rate_{label}" if label else "learning_rate"] = float(optimizer.learning_rate)
