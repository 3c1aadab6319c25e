"""`AdaptableModel`: what adapters need of a model; and `Adapters`, which it keeps of `enable_lora`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flax import nnx

from keras_dist.adapters.peft_files import common_and_others
from keras_dist.formats.weight_map import WeightMap
from keras_dist.layers.base.lora import Vector
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import Trainable
from keras_dist.variables.variable import Variable

OPTIONS = {"magnitude": "dora", "bias": "lora_bias"}
"""Options of `enable_lora` by the vectors that they add."""

Scales = Mapping[str, tuple[int, float]]
"""Rank and alpha of weights by path."""


@dataclasses.dataclass(frozen=True, eq=False)
class Adapters:
    """Rank and alpha by path of weights that `Model.enable_lora` adapts, and what it has done with the others."""

    weights: Scales
    dropout: float
    frozen: tuple[Variable, ...] = ()
    whole: tuple[str, ...] = ()  # paths of weights that are trained whole
    vector: Vector = ""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments with which `enable_lora` makes the same adapters."""
        scales = {re.escape(path): scale for path, scale in self.weights.items()}
        rank, ranks = common_and_others({path: rank for path, (rank, _) in scales.items()})
        alpha, alphas = common_and_others({path: alpha for path, (_, alpha) in scales.items()})
        given = {"rank": rank, "alpha": alpha, "dropout": self.dropout, "layers": [*scales]}
        whole = {"modules_to_save": [*map(re.escape, self.whole)]} if self.whole else {}
        vector = {OPTIONS[self.vector]: True} if self.vector else {}
        return {**given, "rank_pattern": ranks, "alpha_pattern": alphas, **whole, **vector}


class _Record(Protocol):
    adapters: Adapters | None
    source: Any  # the module, with the variables to train; None for a model of layers
    keras_model: Any  # of a `from_keras` model


class AdaptableModel(Protocol):
    """A model whose weights can change after they are created."""

    @property
    def name(self) -> str:
        """The name of the model."""
        ...

    @property
    def _record(self) -> _Record: ...

    def _with_weights(self) -> BuiltModel: ...

    def _check_idle(self, method: str) -> None: ...

    def _map_of_base(self) -> WeightMap | None: ...

    def _change_weights(
        self, modules: Mapping[str, nnx.Module], change: Callable[[], None], trainable: Trainable = None
    ) -> None: ...
