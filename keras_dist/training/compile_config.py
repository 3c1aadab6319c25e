"""`CompileConfig`: how a model is trained, as `compile` was given it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_dist import optimizers
from keras_dist.data.batch import BatchKeys
from keras_dist.distribution.jobs.consistency import Fingerprint, facts_of_config
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.loop import MAX_IN_FLIGHT, Mode
from keras_dist.training.objective import Objective
from keras_dist.training.optimization import Optimizer
from keras_dist.training.rematerialisation import Remat
from keras_dist.training.step import TrainStep
from keras_dist.training.step_protocol import StepProtocol


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """How steps run, whatever it is that they compute.

    Attributes:
        steps_per_execution: how many steps one dispatch runs; None to find out what is fast.
        jit: whether steps are compiled; else they run operation by operation, and Python sees every value.
        donate: whether a step may reuse the memory of the state before it.
        check: whether compiled steps check indices, and leave the state as it is where one is wrong.
        prefetch: how many executions the loop is ahead of the devices.
        pads: whether modules see rows that the mesh does not divide with padding.
    """

    steps_per_execution: int | None = None
    jit: bool = True
    donate: bool = True
    check: bool = False
    prefetch: int = MAX_IN_FLIGHT
    pads: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class CompileConfig:
    """What `compile` was given, checked and with names resolved; without it, nothing but how predictions run.

    Attributes:
        arguments: as they were given.
        optimizer: one, or a dict of them.
        objective: loss and metrics; None when the train step needs none.
        train_step: the user's own pure step, or None for gradient descent on the loss.
        protocol: the steps that the model's class defines in the form of Keras; None where it defines none.
        metrics: the metric objects, which tell what was measured last.
        options: how the steps run.
        remat: what the backward pass computes again; None for nothing.
        report: names of values of the training itself that are logged.
        batch_keys: of inputs, targets and weights in batches that are dicts; None where dicts are inputs.
        optimizers: by name, with the variables they update; none before the weights exist.
    """

    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: optimizers.Optimizer | optimizers.OptaxOptimizer | Mapping[str, Any] | None = None
    objective: Objective | None = None
    train_step: TrainStep | None = None
    protocol: StepProtocol | None = None
    metrics: ModelMetrics = dataclasses.field(default_factory=lambda: ModelMetrics(None))
    options: StepOptions = dataclasses.field(default_factory=StepOptions)
    remat: Remat | None = None
    report: tuple[str, ...] = ()
    batch_keys: BatchKeys | None = None
    optimizers: dict[str, Optimizer] = dataclasses.field(default_factory=dict)

    def is_own(self, mode: Mode) -> bool:
        """Whether the user wrote this step."""
        if self.protocol is not None and mode in self.protocol.steps:
            return True
        return mode == "train" and self.train_step is not None

    def facts(self) -> Fingerprint:
        """What must be equal in all processes of a job: each number of each argument."""
        given = [facts_of_config(f"`{name}` of compile", value) for name, value in self.arguments.items()]
        return {name: value for facts in given for name, value in facts.items()}
