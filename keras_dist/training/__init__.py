"""Training: a module as pure functions, its state, the compiled steps and the loop that runs them."""

from keras_dist.training.equivalence import EquivalenceReport, check_equivalence
from keras_dist.training.optimization import TrainState

__all__ = ["EquivalenceReport", "TrainState", "check_equivalence"]
