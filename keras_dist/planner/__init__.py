"""Plans of train steps, before anything is allocated: memory, communication and time, and layouts that reduce them."""

from keras_dist._support.raw_errors import explain_functions
from keras_dist.planner.auto import AutoParallel
from keras_dist.planner.calibration import Calibration, Measurement, calibrate
from keras_dist.planner.comparison import Comparison
from keras_dist.planner.compiled import CompiledFigures, compile_for, figures
from keras_dist.planner.dim_classes import DimClass, DimClasses, Unsharded, dim_classes
from keras_dist.planner.estimates import Estimate
from keras_dist.planner.frontier import Frontier, Point
from keras_dist.planner.generation import GenerationReport, Phase
from keras_dist.planner.logical_rules import LogicalRules
from keras_dist.planner.plan_snapshots import assert_plan
from keras_dist.planner.planning import CheckReport, check, plan
from keras_dist.planner.propagated import Collective, Propagated, Repeated
from keras_dist.planner.propagation import propagate
from keras_dist.planner.report import PlanReport
from keras_dist.planner.roofline import Roofline, roofline
from keras_dist.planner.search import Candidate
from keras_dist.planner.search_result import SearchResult
from keras_dist.planner.targets import Chip, Target, devices, target, target_of
from keras_dist.planner.tracing import StepProgram, trace_step

__all__ = [
    "AutoParallel",
    "Calibration",
    "Candidate",
    "CheckReport",
    "Chip",
    "Collective",
    "Comparison",
    "CompiledFigures",
    "DimClass",
    "DimClasses",
    "Estimate",
    "Frontier",
    "GenerationReport",
    "LogicalRules",
    "Measurement",
    "Phase",
    "PlanReport",
    "Point",
    "Propagated",
    "Repeated",
    "Roofline",
    "SearchResult",
    "StepProgram",
    "Target",
    "Unsharded",
    "assert_plan",
    "calibrate",
    "check",
    "compile_for",
    "devices",
    "dim_classes",
    "figures",
    "plan",
    "propagate",
    "roofline",
    "target",
    "target_of",
    "trace_step",
]

explain_functions(vars())
