"""State of a model outside of its NNX graph."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_dist._support.types import PyTree
from keras_dist.adapters.adaptable_model import Adapters
from keras_dist.callbacks import History
from keras_dist.data.conversion import Arrays
from keras_dist.distribution.strategy import Distribution
from keras_dist.layers.base.layer_record import LayerRecord
from keras_dist.models.module_source import KerasModel, ModuleSource
from keras_dist.symbolic.tensors import KerasTensor
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.compile_config import CompileConfig
from keras_dist.training.loop import Mode


@dataclasses.dataclass(eq=False)
class ModelRecord(LayerRecord):
    """State of a model outside of its NNX graph."""

    built: BuiltModel | None = None  # arrays and steps; None before the weights are created
    source: ModuleSource | None = None  # of a `from_nnx` or `from_keras` model
    compile_config: CompileConfig | None = None  # None before `compile`
    history: History | None = None  # of the last `fit`
    batch: Arrays | None = None  # shapes of its batches
    made_under: Distribution | None = None  # current when the model was made, or set by `redistribute`
    built_for: PyTree = None  # symbolic tensors for which the weights were created, if that is one argument
    built_by_name: dict[str, PyTree] = dataclasses.field(default_factory=dict[str, PyTree])  # by argument, if several
    start: KerasTensor | None = None  # input of a `Sequential`
    seen: tuple[Any, Any] | None = None  # symbolic input and output of a `Sequential` without `Input`
    keras_model: KerasModel | None = None  # of a `from_keras` model
    losses_given: list[Any] | None = None  # value of `losses` while a loss is computed from values of variables
    stops: set[Mode] = dataclasses.field(default_factory=set[Mode])  # set by callbacks before there are weights
    adapters: Adapters | None = None  # of `enable_lora`
    built_before: BuiltModel | None = None  # of a `Sequential` before layers were added or removed
