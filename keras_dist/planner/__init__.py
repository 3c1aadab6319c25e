"""What a train step needs before it runs: where its state lives, what moves between devices, and what it computes."""

from keras_dist.planner.comparison import Comparison
from keras_dist.planner.compiled import CompiledFigures, compile_for, figures
from keras_dist.planner.golden import assert_plan
from keras_dist.planner.hardware import Chip
from keras_dist.planner.planning import plan
from keras_dist.planner.propagation import Collective, Propagated, propagate
from keras_dist.planner.report import PlanReport
from keras_dist.planner.roofline import Roofline, roofline
from keras_dist.planner.targets import Target, devices, target
from keras_dist.planner.tracing import StepProgram, trace_step

__all__ = [
    "Chip",
    "Collective",
    "Comparison",
    "CompiledFigures",
    "PlanReport",
    "Propagated",
    "Roofline",
    "StepProgram",
    "Target",
    "assert_plan",
    "compile_for",
    "devices",
    "figures",
    "plan",
    "propagate",
    "roofline",
    "target",
    "trace_step",
]
