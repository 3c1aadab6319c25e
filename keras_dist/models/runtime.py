"""`ModelRuntime`: what a model knows beside its NNX graph."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_dist._support.types import PyTree
from keras_dist.callbacks import History
from keras_dist.distribution.strategy import Distribution
from keras_dist.interop.keras_models import KerasModel
from keras_dist.layers.runtime import LayerRuntime
from keras_dist.models.modules import ModuleSource
from keras_dist.symbolic.tensors import KerasTensor
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.compile_config import CompileConfig
from keras_dist.training.loop import Mode


@dataclasses.dataclass(eq=False)
class ModelRuntime(LayerRuntime):
    """What a model knows beside its NNX graph.

    Attributes:
        session: its arrays and steps; None before its weights are created.
        source: the module that it is made of; None for models of layers.
        choices: what `compile` was given; None before.
        history: of the last `fit`.
        made_under: the distribution that was current when it was made, or that it was moved to; None without any.
        built_for: the symbolic tensors for which its weights were created, where that is one argument.
        built_by_name: those, by the names of the arguments, where there are several.
        is_constructing: whether its constructor runs.
        start: the input of a `Sequential`, as soon as it is known.
        seen: the symbolic input and output of a `Sequential` without `Input`, since its first call.
        keras_model: the model object of Keras that it was made of; None for others.
        losses_given: what `losses` is while a loss is computed from values of the variables; None else.
        stops: the modes whose runs callbacks have ended before there is a session, which has its own.
        session_before: of a `Sequential` what it had before layers were added or taken out.
    """

    session: BuiltModel | None = None
    source: ModuleSource | None = None
    choices: CompileConfig | None = None
    history: History | None = None
    made_under: Distribution | None = None
    built_for: PyTree = None
    built_by_name: dict[str, PyTree] = dataclasses.field(default_factory=dict[str, PyTree])
    is_constructing: bool = False
    start: KerasTensor | None = None
    seen: tuple[Any, Any] | None = None
    keras_model: KerasModel | None = None
    losses_given: list[Any] | None = None
    stops: set[Mode] = dataclasses.field(default_factory=set[Mode])
    session_before: BuiltModel | None = None
