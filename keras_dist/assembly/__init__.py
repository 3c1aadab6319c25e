"""From config to objects, and runs of them: the only room that knows both.

What a config names by import path is imported here, and so run.
"""

from keras_dist.assembly.components import imported
from keras_dist.assembly.placing import PlanInputs, distribution_from_config, distribution_of, plan_inputs
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
