"""Circle loss, for embeddings."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import shapes
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.errors import ModelError
from keras_dist.losses.loss import FunctionLoss
from keras_dist.losses.targets import as_arrays


def circle(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    ref_labels: ArrayLike | None = None,
    ref_embeddings: ArrayLike | None = None,
    remove_diagonal: bool = True,
    gamma: float = 80,
    margin: float = 0.4,
) -> jax.Array:
    """`softplus(logsumexp(near) + logsumexp(far))` of each embedding against references, by default the batch.

    With `d = max(1 - similarity, 0)`, `near = -gamma * max(margin + d, 0) * (margin - d)` over references of the same
    class, `far = gamma * max(1 + margin - d, 0) * (1 - margin - d)` over the others.

    Args:
        y_true: class indices (batch,) or (batch, 1).
        y_pred: embeddings (batch, n) of length 1.
        ref_labels: class indices of the references; None for `y_true`.
        ref_embeddings: (references, n) of length 1; None for `y_pred`.
        remove_diagonal: whether to skip the i-th reference for the i-th embedding, which is the same.
        gamma: scale of the exponents.
        margin: relaxation, from 0 to 1.

    Returns:
        (batch,); 0 for an embedding without references of its class, or without others.

    Raises:
        ModelError: the shapes do not fit.

    Source: `keras.losses.circle`; Sun et al., 2020, https://arxiv.org/abs/2002.10857.
    """
    labels, y_pred = _labelled("y_true", y_true, "y_pred", y_pred)
    references = (y_true if ref_labels is None else ref_labels, y_pred if ref_embeddings is None else ref_embeddings)
    ref_labels, ref_embeddings = _labelled("ref_labels", references[0], "ref_embeddings", references[1])
    distance = jnp.maximum(1 - y_pred @ ref_embeddings.T, 0)
    same = labels[:, None] == ref_labels[None, :]
    positive = same & ~jnp.eye(*same.shape, dtype=bool) if remove_diagonal else same
    near = -gamma * jnp.maximum(margin + distance, 0) * (margin - distance)
    far = gamma * jnp.maximum(1 + margin - distance, 0) * (1 - margin - distance)
    return jax.nn.softplus(_log_sum_exp(near, positive) + _log_sum_exp(far, ~same))


def _log_sum_exp(values: jax.Array, where: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(jnp.where(where, values, -jnp.inf), axis=1)


def _labelled(labels_name: str, labels: ArrayLike, name: str, embeddings: ArrayLike) -> tuple[jax.Array, jax.Array]:
    labels, embeddings = as_arrays("circle", labels, embeddings)
    if embeddings.ndim != 2 or labels.shape not in (embeddings.shape[:1], (embeddings.shape[0], 1)):
        summary = f"circle: `{labels_name}` must be (batch,) or (batch, 1), and `{name}` (batch, n)"
        fix = "let the model end with one vector for each example, and pass its class"
        raise ModelError(summary, given=shapes(**{labels_name: labels, name: embeddings}), fix=fix)
    return labels.reshape(-1).astype(jnp.int32), embeddings


class Circle(FunctionLoss, function=circle):
    """Circle loss of each embedding against all others of the batch, as a `Loss`.

    Arguments as in `circle` and `Loss`. Embeddings whose value is 0 do not count in the mean.
    """

    def __init__(
        self,
        gamma: float = 80.0,
        margin: float = 0.4,
        remove_diagonal: bool = True,
        reduction: str | None = "sum_over_batch_size",
        name: str = "circle",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, gamma=gamma, margin=margin, remove_diagonal=remove_diagonal)

    def _counts(self, y_true: ArrayLike, values: jax.Array) -> jax.Array:
        return values > 0
