"""Losses with the names, arguments and values of Keras.

A function such as `mean_squared_error(y_true, y_pred)` gives values, a `Loss` such as `MeanSquaredError()` makes one
number of them, with weights and masks. What differs from Keras stands under that heading in the docstrings.
"""

from keras_dist.losses.arguments import align_ranks as align_ranks
from keras_dist.losses.binary import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    binary_crossentropy,
    binary_focal_crossentropy,
)
from keras_dist.losses.categorical import (
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    CategoricalGeneralizedCrossEntropy,
    SparseCategoricalCrossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_generalized_cross_entropy,
    sparse_categorical_crossentropy,
)
from keras_dist.losses.contrastive import Circle, circle
from keras_dist.losses.identifiers import deserialize, get, serialize
from keras_dist.losses.loss import Loss
from keras_dist.losses.margin import CategoricalHinge, Hinge, SquaredHinge, categorical_hinge, hinge, squared_hinge
from keras_dist.losses.probabilistic import KLDivergence, Poisson, kl_divergence, poisson
from keras_dist.losses.regression import (
    CosineSimilarity,
    Huber,
    LogCosh,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    cosine_similarity,
    huber,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
)
from keras_dist.losses.segmentation import Dice, Tversky, dice, tversky
from keras_dist.losses.sequence import CTC, ctc
from keras_dist.losses.wrapper import LossFunctionWrapper

__all__ = [
    "CTC",
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "CategoricalHinge",
    "Circle",
    "CosineSimilarity",
    "Dice",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "Loss",
    "LossFunctionWrapper",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "Tversky",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy",
    "categorical_hinge",
    "circle",
    "cosine_similarity",
    "ctc",
    "deserialize",
    "dice",
    "get",
    "hinge",
    "huber",
    "kl_divergence",
    "log_cosh",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_logarithmic_error",
    "poisson",
    "serialize",
    "sparse_categorical_crossentropy",
    "squared_hinge",
    "tversky",
]
