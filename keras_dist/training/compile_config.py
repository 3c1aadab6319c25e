"""`CompileConfig`: the arguments of `compile`, checked and with names resolved."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_dist import optimizers
from keras_dist.data.batch import BatchKeys
from keras_dist.distribution.consistency import Fingerprint, facts_of_config
from keras_dist.training.activations import Remat
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.loop import MAX_IN_FLIGHT, Mode
from keras_dist.training.objective import Objective
from keras_dist.training.optimization import Optimizer
from keras_dist.training.rowwise import Tables
from keras_dist.training.step import TrainStep
from keras_dist.training.step_protocol import StepProtocol


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """Options for running steps, independent of what the steps compute."""

    steps_per_execution: int | None = None  # steps of one dispatch; None: as many as are found to be fast
    jit: bool = True  # False: steps run operation by operation, and Python sees every value
    donate: bool = True  # a step may reuse the memory of the state before it
    check: bool = False  # compiled steps check indices, and keep the state if one is out of range
    prefetch: int = MAX_IN_FLIGHT  # executions that the loop is ahead of the devices
    pads: bool = False  # modules see padded rows where the mesh does not divide the batch
    micro_batches: int | None = None  # parts of a batch in pipelines; None: no layers are pipelined
    slot_memory: str | None = None  # kind of the memory of optimizer slots between steps; None: of the devices


@dataclasses.dataclass(frozen=True, eq=False)
class CompileConfig:
    """The arguments of `compile`, checked and with names resolved; the defaults are for prediction only."""

    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # as they were given
    optimizer: optimizers.Optimizer | optimizers.OptaxOptimizer | Mapping[str, Any] | None = None
    objective: Objective | None = None  # None when the train step needs neither loss nor metrics
    train_step: TrainStep | None = None  # a pure step; None for gradient descent on the loss
    protocol: StepProtocol | None = None  # the steps in the form of Keras that the model's class defines
    metrics: ModelMetrics = dataclasses.field(default_factory=lambda: ModelMetrics(None))
    options: StepOptions = dataclasses.field(default_factory=StepOptions)
    remat: Remat | None = None
    report: tuple[str, ...] = ()
    batch_keys: BatchKeys | None = None  # None where dicts are inputs
    rowwise: str | None = None  # rule for tables that are trained by rows
    optimizers: dict[str, Optimizer] = dataclasses.field(default_factory=dict)  # empty before the weights exist
    tables: Tables = frozenset()  # that `rowwise` matches

    def is_own(self, mode: Mode) -> bool:
        """Whether the user defined this step."""
        if self.protocol is not None and mode in self.protocol.steps:
            return True
        return mode == "train" and self.train_step is not None

    def facts(self) -> Fingerprint:
        """Return the numbers in the arguments, which must be equal in all processes of a job."""
        given = [facts_of_config(f"`{name}` of compile", value) for name, value in self.arguments.items()]
        return {name: value for facts in given for name, value in facts.items()}
