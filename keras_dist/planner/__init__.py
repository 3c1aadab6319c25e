"""What a train step needs before it runs: where its state lives, what moves between devices, and what it computes."""

from keras_dist.planner.propagation import Collective, Propagated, propagate
from keras_dist.planner.report import PlanReport

__all__ = ["Collective", "PlanReport", "Propagated", "propagate"]
