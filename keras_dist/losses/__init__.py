"""Losses with the names, arguments and values of Keras.

A function such as `mean_squared_error(y_true, y_pred)` returns values. A `Loss` such as `MeanSquaredError()` reduces
them to a scalar, with weights and masks. Docstrings list differences under "Differs from Keras".

Source: names, arguments and defaults as in `keras.losses`.
"""

from keras_dist._support.raw_errors import explain_functions
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.losses.causal import CausalLM as CausalLM
from keras_dist.losses.causal import causal_lm as causal_lm
from keras_dist.losses.contrastive import Circle as Circle
from keras_dist.losses.contrastive import circle as circle
from keras_dist.losses.crossentropies import BinaryCrossentropy as BinaryCrossentropy
from keras_dist.losses.crossentropies import BinaryFocalCrossentropy as BinaryFocalCrossentropy
from keras_dist.losses.crossentropies import CategoricalCrossentropy as CategoricalCrossentropy
from keras_dist.losses.crossentropies import CategoricalFocalCrossentropy as CategoricalFocalCrossentropy
from keras_dist.losses.crossentropies import CategoricalGeneralizedCrossEntropy as CategoricalGeneralizedCrossEntropy
from keras_dist.losses.crossentropies import SparseCategoricalCrossentropy as SparseCategoricalCrossentropy
from keras_dist.losses.crossentropies import binary_crossentropy as binary_crossentropy
from keras_dist.losses.crossentropies import binary_focal_crossentropy as binary_focal_crossentropy
from keras_dist.losses.crossentropies import categorical_crossentropy as categorical_crossentropy
from keras_dist.losses.crossentropies import categorical_focal_crossentropy as categorical_focal_crossentropy
from keras_dist.losses.crossentropies import (
    categorical_generalized_cross_entropy as categorical_generalized_cross_entropy,
)
from keras_dist.losses.crossentropies import sparse_categorical_crossentropy as sparse_categorical_crossentropy
from keras_dist.losses.identifiers import deserialize as deserialize
from keras_dist.losses.identifiers import get as get
from keras_dist.losses.identifiers import serialize as serialize
from keras_dist.losses.loss import Loss as Loss
from keras_dist.losses.loss import LossFunctionWrapper as LossFunctionWrapper
from keras_dist.losses.preference import DPO as DPO
from keras_dist.losses.preference import dpo as dpo
from keras_dist.losses.regression import CategoricalHinge as CategoricalHinge
from keras_dist.losses.regression import CosineSimilarity as CosineSimilarity
from keras_dist.losses.regression import Hinge as Hinge
from keras_dist.losses.regression import Huber as Huber
from keras_dist.losses.regression import KLDivergence as KLDivergence
from keras_dist.losses.regression import LogCosh as LogCosh
from keras_dist.losses.regression import MeanAbsoluteError as MeanAbsoluteError
from keras_dist.losses.regression import MeanAbsolutePercentageError as MeanAbsolutePercentageError
from keras_dist.losses.regression import MeanSquaredError as MeanSquaredError
from keras_dist.losses.regression import MeanSquaredLogarithmicError as MeanSquaredLogarithmicError
from keras_dist.losses.regression import Poisson as Poisson
from keras_dist.losses.regression import SquaredHinge as SquaredHinge
from keras_dist.losses.regression import categorical_hinge as categorical_hinge
from keras_dist.losses.regression import cosine_similarity as cosine_similarity
from keras_dist.losses.regression import hinge as hinge
from keras_dist.losses.regression import huber as huber
from keras_dist.losses.regression import kl_divergence as kl_divergence
from keras_dist.losses.regression import log_cosh as log_cosh
from keras_dist.losses.regression import mean_absolute_error as mean_absolute_error
from keras_dist.losses.regression import mean_absolute_percentage_error as mean_absolute_percentage_error
from keras_dist.losses.regression import mean_squared_error as mean_squared_error
from keras_dist.losses.regression import mean_squared_logarithmic_error as mean_squared_logarithmic_error
from keras_dist.losses.regression import poisson as poisson
from keras_dist.losses.regression import squared_hinge as squared_hinge
from keras_dist.losses.segmentation import Dice as Dice
from keras_dist.losses.segmentation import Tversky as Tversky
from keras_dist.losses.segmentation import dice as dice
from keras_dist.losses.segmentation import tversky as tversky
from keras_dist.losses.sequence import CTC as CTC
from keras_dist.losses.sequence import ctc as ctc

explain_functions(vars(), hides_mesh)
__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "").startswith(f"{__name__}.")]  # pyright: ignore[reportUnsupportedDunderAll]
