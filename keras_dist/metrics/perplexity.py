"""`Perplexity` of language models."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.losses.categorical import sparse_categorical_crossentropy
from keras_dist.losses.targets import as_arrays
from keras_dist.metrics.confusion import spread
from keras_dist.metrics.metric import Metric
from keras_dist.metrics.reduction import divide_no_nan


class Perplexity(Metric, direction="down"):
    """`exp(mean(-log(y_pred[y_true])))` over all tokens.

    Args:
        from_logits: whether predictions are logits.
        mask_token_id: targets with this value do not count.
        dtype, name, mesh: as in `Metric`.

    Source: `keras_hub.metrics.Perplexity`.
    """

    def __init__(
        self,
        from_logits: bool = False,
        mask_token_id: int | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = "perplexity",
        mesh: object = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype, mesh=mesh)
        self.from_logits = from_logits
        self.mask_token_id = mask_token_id
        self.aggregate_crossentropy = self.add_variable((), dtype=self.dtype, name="aggregate_crossentropy")
        self.number_of_samples = self.add_variable((), dtype=self.dtype, name="number_of_samples")

    def update_state(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        """Add a batch of tokens (batch, length) and of probabilities or logits (batch, length, vocabulary)."""
        y_true, y_pred = as_arrays("Perplexity", y_true, y_pred)
        values = sparse_categorical_crossentropy(
            y_true, y_pred.astype(self.dtype), self.from_logits, ignore_class=self.mask_token_id
        )
        weight = jnp.ones_like(values) if sample_weight is None else spread(sample_weight, values)
        if self.mask_token_id is not None:
            weight = jnp.where(y_true.reshape(values.shape) == self.mask_token_id, 0, weight)
        self.aggregate_crossentropy.assign_add(jnp.sum(values * weight))
        self.number_of_samples.assign_add(jnp.sum(weight))

    def result(self) -> jax.Array:
        """Return the perplexity so far; 0.0 without values."""
        count = self.number_of_samples.value
        mean = divide_no_nan(self.aggregate_crossentropy.value, count)
        return jnp.where(count == 0, 0.0, jnp.exp(mean))
