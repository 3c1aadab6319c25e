"""Metrics, with state that is updated by every batch.

Source: names, arguments and defaults as in `keras.metrics`.
"""

from keras_dist._support.raw_errors import explain_functions
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.losses.crossentropies import binary_crossentropy as binary_crossentropy
from keras_dist.losses.crossentropies import binary_focal_crossentropy as binary_focal_crossentropy
from keras_dist.losses.crossentropies import categorical_crossentropy as categorical_crossentropy
from keras_dist.losses.crossentropies import categorical_focal_crossentropy as categorical_focal_crossentropy
from keras_dist.losses.crossentropies import sparse_categorical_crossentropy as sparse_categorical_crossentropy
from keras_dist.losses.regression import categorical_hinge as categorical_hinge
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
from keras_dist.metrics.accuracy import Accuracy as Accuracy
from keras_dist.metrics.accuracy import BinaryAccuracy as BinaryAccuracy
from keras_dist.metrics.accuracy import CategoricalAccuracy as CategoricalAccuracy
from keras_dist.metrics.accuracy import SparseCategoricalAccuracy as SparseCategoricalAccuracy
from keras_dist.metrics.accuracy import SparseTopKCategoricalAccuracy as SparseTopKCategoricalAccuracy
from keras_dist.metrics.accuracy import TopKCategoricalAccuracy as TopKCategoricalAccuracy
from keras_dist.metrics.accuracy import binary_accuracy as binary_accuracy
from keras_dist.metrics.accuracy import categorical_accuracy as categorical_accuracy
from keras_dist.metrics.accuracy import sparse_categorical_accuracy as sparse_categorical_accuracy
from keras_dist.metrics.accuracy import sparse_top_k_categorical_accuracy as sparse_top_k_categorical_accuracy
from keras_dist.metrics.accuracy import top_k_categorical_accuracy as top_k_categorical_accuracy
from keras_dist.metrics.auc import AUC as AUC
from keras_dist.metrics.confusion import FalseNegatives as FalseNegatives
from keras_dist.metrics.confusion import FalsePositives as FalsePositives
from keras_dist.metrics.confusion import Precision as Precision
from keras_dist.metrics.confusion import PrecisionAtRecall as PrecisionAtRecall
from keras_dist.metrics.confusion import Recall as Recall
from keras_dist.metrics.confusion import RecallAtPrecision as RecallAtPrecision
from keras_dist.metrics.confusion import SensitivityAtSpecificity as SensitivityAtSpecificity
from keras_dist.metrics.confusion import SpecificityAtSensitivity as SpecificityAtSensitivity
from keras_dist.metrics.confusion import TrueNegatives as TrueNegatives
from keras_dist.metrics.confusion import TruePositives as TruePositives
from keras_dist.metrics.identifiers import deserialize as deserialize
from keras_dist.metrics.identifiers import get as get
from keras_dist.metrics.identifiers import get_all as get_all
from keras_dist.metrics.identifiers import serialize as serialize
from keras_dist.metrics.means import BinaryCrossentropy as BinaryCrossentropy
from keras_dist.metrics.means import CategoricalCrossentropy as CategoricalCrossentropy
from keras_dist.metrics.means import CategoricalHinge as CategoricalHinge
from keras_dist.metrics.means import ConcordanceCorrelation as ConcordanceCorrelation
from keras_dist.metrics.means import CosineSimilarity as CosineSimilarity
from keras_dist.metrics.means import Hinge as Hinge
from keras_dist.metrics.means import KLDivergence as KLDivergence
from keras_dist.metrics.means import LogCoshError as LogCoshError
from keras_dist.metrics.means import MeanAbsoluteError as MeanAbsoluteError
from keras_dist.metrics.means import MeanAbsolutePercentageError as MeanAbsolutePercentageError
from keras_dist.metrics.means import MeanSquaredError as MeanSquaredError
from keras_dist.metrics.means import MeanSquaredLogarithmicError as MeanSquaredLogarithmicError
from keras_dist.metrics.means import PearsonCorrelation as PearsonCorrelation
from keras_dist.metrics.means import Perplexity as Perplexity
from keras_dist.metrics.means import Poisson as Poisson
from keras_dist.metrics.means import RootMeanSquaredError as RootMeanSquaredError
from keras_dist.metrics.means import SparseCategoricalCrossentropy as SparseCategoricalCrossentropy
from keras_dist.metrics.means import SquaredHinge as SquaredHinge
from keras_dist.metrics.means import concordance_correlation as concordance_correlation
from keras_dist.metrics.means import pearson_correlation as pearson_correlation
from keras_dist.metrics.metric import Metric as Metric
from keras_dist.metrics.reduction import Mean as Mean
from keras_dist.metrics.reduction import MeanMetricWrapper as MeanMetricWrapper
from keras_dist.metrics.reduction import Sum as Sum
from keras_dist.metrics.scores import BinaryIoU as BinaryIoU
from keras_dist.metrics.scores import F1Score as F1Score
from keras_dist.metrics.scores import FBetaScore as FBetaScore
from keras_dist.metrics.scores import IoU as IoU
from keras_dist.metrics.scores import MeanIoU as MeanIoU
from keras_dist.metrics.scores import OneHotIoU as OneHotIoU
from keras_dist.metrics.scores import OneHotMeanIoU as OneHotMeanIoU
from keras_dist.metrics.scores import R2Score as R2Score

explain_functions(vars(), hides_mesh)
_PACKAGES = (f"{__name__}.", "keras_dist.losses.")
__all__ = [name for name, value in vars().items() if getattr(value, "__module__", "").startswith(_PACKAGES)]  # pyright: ignore[reportUnsupportedDunderAll]
