"""Constraints: what weights are brought back to after each step."""

from keras_dist.constraints.constraint import Constraint
from keras_dist.constraints.identifiers import deserialize, get, serialize
from keras_dist.constraints.non_negative import NonNeg
from keras_dist.constraints.norms import MaxNorm, MinMaxNorm, UnitNorm

# Keras knows the classes under these names, too
max_norm = MaxNorm
min_max_norm = MinMaxNorm
non_neg = NonNeg
unit_norm = UnitNorm

__all__ = [
    "Constraint",
    "MaxNorm",
    "MinMaxNorm",
    "NonNeg",
    "UnitNorm",
    "deserialize",
    "get",
    "max_norm",
    "min_max_norm",
    "non_neg",
    "serialize",
    "unit_norm",
]
