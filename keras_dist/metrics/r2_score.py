"""`R2Score`: the coefficient of determination."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_int, check_option
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.errors import ModelError
from keras_dist.losses.targets import align_ranks, as_arrays
from keras_dist.metrics.metric import Metric


class R2Score(Metric, direction="up"):
    """`1 - sum((y_true - y_pred)**2) / sum((y_true - mean(y_true))**2)`.

    Args:
        class_aggregation: `"uniform_average"` or `"variance_weighted_average"` over outputs; None for a value for each.
        num_regressors: number of inputs, for the adjusted score; 0 for the plain one.
        name, dtype, mesh: as in `Metric`.

    Raises:
        ModelError: an argument is invalid.
    """

    def __init__(
        self,
        class_aggregation: str | None = "uniform_average",
        num_regressors: int = 0,
        name: str | None = "r2_score",
        dtype: DTypeLike | None = None,
        mesh: object = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        options = (None, "uniform_average", "variance_weighted_average")
        self.class_aggregation = check_option("class_aggregation", class_aggregation, options)
        self.num_regressors = check_int("num_regressors", num_regressors, 0)
        self.num_samples = self.add_variable((), name="num_samples")
        self._built = False

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of targets and predictions (batch, outputs), with weights (batch,) or (batch, outputs)."""
        y_true, y_pred = align_ranks(*as_arrays("R2Score", y_true, y_pred))
        if y_true.ndim != 2 or y_true.shape != y_pred.shape:
            summary = "R2Score: targets and predictions must have one shape (batch, outputs)"
            given = f"y_true of shape {y_true.shape}, y_pred of shape {y_pred.shape}"
            raise ModelError(summary, given=given, fix="reshape them; one output is a last dim of 1")
        if not self._built:
            names = ("squared_sum", "sum", "residual", "count")
            self.squared_sum, self.sum, self.total_mse, self.count = (
                self.add_variable(y_pred.shape[1:], name=name) for name in names
            )
            self._built = True
        y_true, y_pred = y_true.astype(self.dtype), y_pred.astype(self.dtype)
        weight = jnp.asarray(1 if sample_weight is None else sample_weight, self.dtype)
        weight = jnp.broadcast_to(weight[:, None] if weight.ndim == 1 else weight, y_true.shape)
        weighted = y_true * weight
        self.sum.assign_add(jnp.sum(weighted, axis=0))
        self.squared_sum.assign_add(jnp.sum(y_true * weighted, axis=0))
        self.total_mse.assign_add(jnp.sum((y_true - y_pred) ** 2 * weight, axis=0))
        self.count.assign_add(jnp.sum(weight, axis=0))
        self.num_samples.assign_add(y_true.size)

    def result(self) -> jax.Array:
        """Return the score so far; NaN without values."""
        if not self._built:
            return jnp.asarray(jnp.nan)
        total = self.squared_sum - self.sum * (self.sum / self.count)
        scores = 1 - self.total_mse / total
        scores = jnp.where(jnp.isinf(scores), 0.0, scores)
        if self.class_aggregation == "uniform_average":
            scores = jnp.mean(scores)
        elif self.class_aggregation == "variance_weighted_average":
            scores = jnp.sum(total * scores) / jnp.sum(total)
        return self._adjusted(scores) if self.num_regressors else scores

    def _adjusted(self, score: jax.Array) -> jax.Array:
        spare = self.num_samples.value - self.num_regressors - 1
        if spare > 0:
            return 1 - (1 - score) * (self.num_samples.value - 1) / spare
        warn(
            f"R2Score: {self.num_regressors} regressors are too many for {int(self.num_samples)} values to adjust the "
            "score: it is the plain one"
        )
        return score
