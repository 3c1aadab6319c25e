"""Regularizers: penalties on weights and outputs, which are added to the loss."""

from keras_dist.regularizers.identifiers import deserialize, get, serialize
from keras_dist.regularizers.norms import L1, L1L2, L2
from keras_dist.regularizers.orthogonality import OrthogonalRegularizer
from keras_dist.regularizers.regularizer import Regularizer

# Keras knows the classes under these names, too
l1 = L1
l1_l2 = L1L2
l2 = L2
orthogonal_regularizer = OrthogonalRegularizer

__all__ = [
    "L1",
    "L1L2",
    "L2",
    "OrthogonalRegularizer",
    "Regularizer",
    "deserialize",
    "get",
    "l1",
    "l1_l2",
    "l2",
    "orthogonal_regularizer",
    "serialize",
]
