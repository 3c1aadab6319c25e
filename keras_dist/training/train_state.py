"""`TrainState`: the state that a training carries from step to step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state that a training carries from step to step: pytrees of arrays, laid out as planned.

    Attributes:
        trainable: trained variables, as nested dicts of attribute names.
        rest: all other variables: frozen parameters, statistics, RNG streams, buffers.
        slots: state of each optimizer by name.
        step: number of steps taken, a scalar.
    """

    trainable: Any
    rest: Any
    slots: dict[str, Any]
    step: Any

    def replace(self, **changes: Any) -> TrainState:
        """Return a copy with other values of some attributes."""
        return dataclasses.replace(self, **changes)
