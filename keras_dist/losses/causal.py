"""`causal_lm`: the loss of a language model that predicts each token from the tokens before it."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_int, check_number, check_optional, check_size, shapes
from keras_dist._support.integer_checks import check_indices
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError
from keras_dist.losses.loss import FunctionLoss
from keras_dist.losses.targets import as_arrays
from keras_dist.losses.vocabulary import Projection, statistics

CHUNK_SIZE = 8192  # vocabulary entries whose logits are in memory at the same time: 256 MiB in float32 for 8,192 tokens


def causal_lm(
    y_true: ArrayLike,
    y_pred: ArrayLike | Projection,
    ignore_class: int | None = -100,
    z_loss: float = 0.0,
    chunk_size: int = CHUNK_SIZE,
) -> jax.Array:
    """`-log(softmax(y_pred[:, t - 1])[y_true[:, t]])` for each token `t`, (batch, length); 0 for the first token.

    Logits at `t - 1` predict token `t`. They are not copied to float32.

    Args:
        y_true: tokens (batch, length), as the model gets them: the loss shifts them.
        y_pred: logits (batch, length, vocabulary).
        ignore_class: the token whose values are 0; the loss `CausalLM` does not count them. None for none.
        z_loss: factor of `logsumexp(logits)**2`, which is added and keeps logits small; usually 0 or 1e-4.
        chunk_size: see `CausalLM`.

    Raises:
        ModelError: the shapes do not fit.
        DataError: a token is out of range; in compiled steps only with `compile(check=True)`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import losses
        >>> values = losses.causal_lm(np.array([[1, 0, 2]]), np.zeros((1, 3, 4)))
        >>> [round(float(value), 4) for value in values[0]]  # log(4)
        [0.0, 1.3863, 1.3863]

    Source: the shift as in `transformers`; the z-loss is of https://arxiv.org/abs/2204.02311.
    """
    tokens, logits = _checked(y_true, y_pred)
    counts, size = _counts(tokens, ignore_class), logits.shape[-1]
    tokens = jnp.where(counts, tokens, 0).astype(jnp.int32)
    check_indices(
        tokens,
        size,
        "causal_lm: token in `y_true` out of range for `y_pred`",
        "a logit for each token of the tokenizer; ignore_class, or any valid token of weight 0, for padding",
    )
    following = jnp.roll(tokens, -1, axis=-1)
    total, of_label = statistics(logits, following, chunk_size)
    values = total - of_label + z_loss * jnp.square(total)
    values = jnp.where((following >= 0) & (following < size), values, jnp.nan)
    return jnp.where(counts, jnp.roll(values, 1, axis=-1), 0)


def _checked(y_true: ArrayLike, y_pred: ArrayLike | Projection) -> tuple[jax.Array, jax.Array | Projection]:
    if isinstance(y_pred, Projection):
        tokens, logits = jnp.asarray(y_true), y_pred
    else:
        tokens, logits = as_arrays("causal_lm", y_true, y_pred)
    if len(logits.shape) < 3 or tokens.shape != logits.shape[:-1]:
        given = shapes(y_true=tokens, y_pred=logits)
        fix = "y_true: the tokens that the model gets, not shifted; y_pred: logits (batch, length, vocabulary)"
        raise ModelError("causal_lm: `y_true` must be a token for each position of `y_pred`", given=given, fix=fix)
    return tokens, logits


def _counts(tokens: jax.Array, ignore_class: int | None) -> jax.Array:
    """Return the tokens that are predicted and count."""
    follows = jnp.broadcast_to(jnp.arange(tokens.shape[-1]) > 0, tokens.shape)
    return follows if ignore_class is None else follows & (tokens != ignore_class)


class CausalLM(FunctionLoss, function=causal_lm):
    """Cross entropy of the next token, `sum(weight * causal_lm) / sum(weight)`, as a `Loss`.

    Metrics get each token beside the logits that predict it. Weighted ones leave out padding and the first tokens of
    segments: `weighted_metrics=["accuracy", metrics.Perplexity(from_logits=True)]`.

    `sample_weight` (batch, length) is the weight of predicting a token; the first token of a row never counts. The mean
    is per token over the global batch, over all batches of an update with `gradient_accumulation_steps`, and in the
    logs over all batches of the epoch.

    If the vocabulary of a device has more than `chunk_size` entries, and no metric reads the logits of a `Dense` or
    `ReversibleEmbedding` without bias and activation, compiled steps compute them in chunks and never store them. That
    costs one more multiplication by the kernel.

    Args:
        ignore_class: label that does not count, in addition to weights of 0; None for none.
        z_loss: see `causal_lm`.
        chunk_size: number of vocabulary entries on a device whose logits are in memory at the same time.
        reduction: see `Loss`.
        name: the name.

    Raises:
        ModelError: an argument is invalid.

    Example:
        >>> import numpy as np
        >>> from keras_dist import losses
        >>> loss = losses.CausalLM()
        >>> weights = np.array([[0.0, 1.0, 0.0]])
        >>> round(float(loss(np.array([[1, 0, 2]]), np.zeros((1, 3, 4)), weights)), 4)
        1.3863
    """

    is_mean_by_weight: ClassVar[bool] = True
    chunk_size: int

    def __init__(
        self,
        ignore_class: int | None = -100,
        z_loss: float = 0.0,
        chunk_size: int = CHUNK_SIZE,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "causal_lm",
    ) -> None:
        check_optional(check_int, "ignore_class", ignore_class)
        check_number("z_loss", z_loss, 0)
        check_size("chunk_size", chunk_size, name)
        super().__init__(reduction, name, None, ignore_class=ignore_class, z_loss=z_loss, chunk_size=chunk_size)

    def for_metrics(self, y_true: Any, y_pred: Any, sample_weight: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
        """Return the tokens from the second on, the logits that predict them, their weights and their mask."""
        tokens, logits = _checked(y_true, y_pred)
        weight = _counts(jnp.asarray(tokens), vars(self)["ignore_class"]).astype(jnp.float32)
        tokens = jnp.where(weight > 0, tokens, 0)
        if sample_weight is not None:
            weight = weight * jnp.reshape(sample_weight, (len(sample_weight), -1))
        mask = None if mask is None else mask[:, 1:]
        return tokens[:, 1:], jnp.asarray(logits)[:, :-1], weight[:, 1:], mask

    def uses(self, projection: Projection) -> bool:
        """Whether the loss is computed from a projection instead of its logits."""
        return projection.shard_size > self.chunk_size

    def _cast(self, tree: PyTree) -> PyTree:
        return tree  # logits keep their dtype

    def _counts(self, y_true: ArrayLike, values: jax.Array) -> jax.Array | None:
        return _counts(jnp.asarray(y_true), vars(self)["ignore_class"])
