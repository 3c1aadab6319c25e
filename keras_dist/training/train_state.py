"""`TrainState`: everything a training run carries from step to step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything a training run carries from step to step: plain pytrees of arrays, placed as planned.

    Attributes:
        trainable: the trained variables, as nested dicts of attribute names.
        rest: all others: frozen parameters, statistics, RNG streams, buffers.
        slots: the state of each optimizer by name.
        step: number of steps taken, a scalar.
    """

    trainable: Any
    rest: Any
    slots: dict[str, Any]
    step: Any

    def replace(self, **changes: Any) -> TrainState:
        """A copy with some attributes exchanged."""
        return dataclasses.replace(self, **changes)
