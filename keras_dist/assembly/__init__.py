"""Runs of configs: creates the objects that a config describes, and imports modules by import path."""

from keras_dist.assembly.components import imported
from keras_dist.assembly.distributions import PlanInputs, distribution_from_config, distribution_of, plan_inputs
from keras_dist.assembly.runs import Run, build, train

__all__ = [
    "PlanInputs",
    "Run",
    "build",
    "distribution_from_config",
    "distribution_of",
    "imported",
    "plan_inputs",
    "train",
]
