"""Weights and arguments that do not fit the shapes of a batch."""

import numpy as np
import pytest

from keras_dist import metrics
from keras_dist.errors import ModelError

ROWS = np.eye(3, dtype="f4")
GRID = np.ones((2, 3), "i4")

WRONG = {
    "top_k": (lambda: metrics.Precision(top_k=4)(ROWS, ROWS), "Precision: `top_k` is larger than the number of cl"),
    "top_k of recall": (lambda: metrics.Recall(top_k=4)(ROWS, ROWS), "Recall: `top_k` is larger"),
    "too few for F1": (lambda: metrics.F1Score()(ROWS, ROWS, np.ones(2)), "F1Score: `sample_weight` must have"),
    "each class for F1": (lambda: metrics.F1Score()(ROWS, ROWS, ROWS), "F1Score: `sample_weight` must have"),
    "too few for FBeta": (lambda: metrics.FBetaScore()(ROWS, ROWS, np.ones(2)), "FBetaScore: `sample_weight`"),
    "too few for IoU": (lambda: metrics.IoU(2, [1])(GRID, GRID, np.ones(3, "i4")), "`sample_weight` does not fit"),
    "turned for IoU": (lambda: metrics.MeanIoU(2)(GRID, GRID, np.ones((3, 2), "i4")), "`sample_weight` does not fit"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_told(wrong, message):
    with pytest.raises(ModelError, match=message) as caught:
        wrong()
    assert "shape" in caught.value.given and caught.value.fix


@pytest.mark.parametrize("shape", [(), (3,), (3, 1)])
def test_weights_of_rows_fit_f_scores(shape):
    np.testing.assert_allclose(metrics.F1Score()(ROWS, ROWS, np.full(shape, 2.0)), np.ones(3), rtol=1e-6)


@pytest.mark.parametrize("weight", [2, [1, 3], [[1], [3]], [[1, 1, 1], [3, 3, 3]], [1, 1, 1, 3, 3, 3]])
def test_weights_of_examples_and_of_predictions_fit_iou(weight):
    metric = metrics.BinaryIoU([1])
    metric.update_state(GRID, GRID, np.array(weight))
    assert int(metric.total_cm.value[1, 1]) == 12
