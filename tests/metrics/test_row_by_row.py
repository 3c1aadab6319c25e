"""Metrics that are said to go row by row do; all others are not said to."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses, metrics
from keras_dist.metrics.row_by_row import goes_row_by_row
from keras_dist.training.tallies import Observation

ROWS = 5
_generator = np.random.default_rng(0)
_few: Any = _generator.dirichlet(np.ones(4), ROWS).astype(np.float32), _generator.integers(0, 4, ROWS)
PROBABILITIES, CLASSES = (np.concatenate([array, np.repeat(array[-1:], 3, 0)]) for array in _few)
ONE_HOT = np.eye(4, dtype=np.float32)[CLASSES]
WEIGHTS = np.arange(1.0, 9.0, dtype=np.float32)

UNKNOWN = {
    *("BinaryIoU", "IoU", "MeanIoU", "OneHotIoU", "OneHotMeanIoU"),  # count in integers, and warn of weights
    *("Mean", "Sum"),  # of values, not of targets and predictions
    *("Metric", "R2Score"),
}
ARGUMENTS: dict[str, Any] = {
    "MeanMetricWrapper": losses.mean_squared_error,
    "PrecisionAtRecall": 0.5,
    "RecallAtPrecision": 0.5,
    "SensitivityAtSpecificity": 0.5,
    "SpecificityAtSensitivity": 0.5,
    "TopKCategoricalAccuracy": 2,
    "SparseTopKCategoricalAccuracy": 2,
}


def _made(name: str) -> Callable[[], metrics.Metric]:
    return lambda: getattr(metrics, name)(*([ARGUMENTS[name]] if name in ARGUMENTS else []))


NAMES = {
    name
    for name in metrics.__all__
    if isinstance(getattr(metrics, name), type) and issubclass(getattr(metrics, name), metrics.Metric)
}
CLAIMED: dict[str, Callable[[], metrics.Metric]] = {name: _made(name) for name in sorted(NAMES - UNKNOWN)} | {
    "AUC of labels": lambda: metrics.AUC(multi_label=True, curve="PR"),
    "F1Score of all": lambda: metrics.F1Score("micro", 0.3),
    "Precision of the best": lambda: metrics.Precision(top_k=2),
    "Perplexity of some": lambda: metrics.Perplexity(mask_token_id=1),
    "accuracy": lambda: metrics.get_all("accuracy")[0],
    "crossentropy": lambda: metrics.get_all("crossentropy")[0],
}


@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("name", CLAIMED)
def test_rows_that_a_mask_leaves_out_change_nothing(name: str, weight: Any) -> None:
    is_sparse = name.startswith(("Sparse", "Perplexity"))
    y, mask = CLASSES if is_sparse else ONE_HOT, np.arange(len(CLASSES)) < ROWS
    filled, few = CLAIMED[name](), CLAIMED[name]()
    for metric in (filled, few):
        assert goes_row_by_row(metric)
        metric.update_state(y, PROBABILITIES)
    started = [variable.value for variable in filled.variables]
    mine = Observation(filled, y, PROBABILITIES, weight, mask).added_to(tuple(started))
    given = None if weight is None else weight[:ROWS]
    other = Observation(few, y[:ROWS], PROBABILITIES[:ROWS], given).added_to(tuple(started))
    for left, right in zip(mine, other, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-6)


class OfAUser(metrics.MeanSquaredError):
    """Counts all rows."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_true, y_pred)


def test_others_are_refused() -> None:
    own = metrics.Precision()
    vars(own)["update_state"] = lambda y_true, y_pred, sample_weight=None: None
    others = (
        *(metrics.BinaryIoU(), metrics.IoU(2, [0]), metrics.MeanIoU(2), metrics.OneHotIoU(2, [0])),
        *(metrics.OneHotMeanIoU(2), metrics.Mean(), metrics.Sum(), metrics.Metric(), metrics.R2Score()),
        metrics.MeanMetricWrapper(lambda y_true, y_pred: jnp.mean(y_pred)),
        metrics.MeanMetricWrapper(losses.categorical_crossentropy, axis=0),
        metrics.CosineSimilarity(axis=0),
        metrics.SparseCategoricalCrossentropy(ignore_class=0),
        OfAUser(),
        own,
    )
    assert not any(map(goes_row_by_row, others))


@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("name", ["MeanSquaredError", "RootMeanSquaredError", "Hinge"])
def test_copies_of_an_infinite_row_change_nothing(name: str, weight: Any) -> None:
    metric, y_pred = CLAIMED[name](), np.where(np.arange(len(CLASSES))[:, None] < ROWS - 1, PROBABILITIES, -np.inf)
    observed = Observation(metric, ONE_HOT, y_pred, weight, np.arange(len(CLASSES)) < ROWS)
    total, _ = observed.added_to(tuple(variable.value for variable in metric.variables))
    assert np.isposinf(total)


def test_a_class_whose_update_state_was_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics.MeanSquaredError, "update_state", OfAUser.update_state)
    assert not goes_row_by_row(metrics.MeanSquaredError())
