"""Losses that are said to go row by row do; all others are not said to."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.losses.row_by_row import goes_row_by_row

ROWS = 5
_generator = np.random.default_rng(0)
_few: Any = _generator.dirichlet(np.ones(4), (ROWS, 3)).astype(np.float32), _generator.integers(1, 4, (ROWS, 3))
PROBABILITIES, CLASSES = (np.concatenate([array, np.repeat(array[-1:], 3, 0)]) for array in _few)
ONE_HOT = np.eye(4, dtype=np.float32)[CLASSES]
WEIGHTS = np.arange(1.0, 9.0, dtype=np.float32)

TARGETS: dict[str, Any] = {
    "CTC": CLASSES[:, :2],
    "CategoricalGeneralizedCrossEntropy": CLASSES,
    "SparseCategoricalCrossentropy": CLASSES,
}
UNKNOWN = {"Circle", "Dice", "Loss", "LossFunctionWrapper", "Tversky"}
CLASSES_OF_LOSSES = {name: getattr(losses, name) for name in losses.__all__ if isinstance(getattr(losses, name), type)}
CLAIMED = {name: make() for name, make in CLASSES_OF_LOSSES.items() if name not in UNKNOWN} | {
    "SparseCategoricalCrossentropy of some": losses.SparseCategoricalCrossentropy(ignore_class=2),
    "MeanSquaredError summed": losses.MeanSquaredError(reduction="sum"),
}


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", CLAIMED)
def test_rows_that_a_mask_leaves_out_change_nothing(name: str, is_weighted: bool) -> None:
    loss, y = CLAIMED[name], TARGETS.get(name.partition(" ")[0], ONE_HOT)
    weight = WEIGHTS if is_weighted else None
    mask = jnp.arange(len(y)) < ROWS
    assert goes_row_by_row(loss)

    def filled(y_pred: Any) -> Any:
        return loss(y, y_pred, weight, mask), loss.divisor(y, y_pred, weight, mask)

    def few(y_pred: Any) -> Any:
        given = y[:ROWS], y_pred[:ROWS], None if weight is None else weight[:ROWS]
        return loss(*given), loss.divisor(*given)

    both = (jax.value_and_grad(function, has_aux=True)(PROBABILITIES) for function in (filled, few))
    for found, other in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(found, other, rtol=2e-6, atol=1e-6)


class OfAUser(losses.MeanSquaredError):
    """Looks at all rows."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return super().call(y_true, y_pred - jnp.mean(y_pred, 0))


def test_others_are_refused() -> None:
    own = losses.MeanSquaredError()
    vars(own)["call"] = lambda y_true, y_pred: jnp.mean(y_pred)
    others = (
        losses.Circle(),
        losses.Dice(),
        losses.Tversky(),
        losses.Loss(),
        losses.LossFunctionWrapper(losses.mean_squared_error),
        losses.CategoricalCrossentropy(axis=0),
        losses.CosineSimilarity(axis=-3),
        losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        losses.MeanSquaredError(dtype="bfloat16"),
        losses.MeanSquaredError(dtype="float16"),
        OfAUser(),
        own,
    )
    assert not any(map(goes_row_by_row, others))


def test_a_class_whose_call_was_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses.MeanSquaredError, "call", OfAUser.call)
    assert not goes_row_by_row(losses.MeanSquaredError())
