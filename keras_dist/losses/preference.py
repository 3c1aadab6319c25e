"""`dpo`: the loss of preferences between answers, from their log-probabilities under the model and a reference.

Both answers of a pair are one example, so that no shuffle, partial batch or mesh can separate them.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from keras_dist._support.arguments import check_number, check_size, shapes
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.errors import ModelError, shorten
from keras_dist.losses.causal import CHUNK_SIZE, causal_lm
from keras_dist.losses.loss import FunctionLoss
from keras_dist.losses.vocabulary import Projection

IGNORED = -100
"""Target of tokens that are not part of an answer."""


def answer_log_probabilities(targets: ArrayLike, y_pred: ArrayLike | Projection, chunk_size: int) -> jax.Array:
    """Return `sum(log(softmax(y_pred[..., t - 1, :])[targets[..., t]]))` over the targets that are not ignored."""
    return -jnp.sum(causal_lm(targets, y_pred, IGNORED, 0.0, chunk_size), axis=-1)


def dpo(
    y_true: Mapping[str, ArrayLike],
    y_pred: ArrayLike | Projection,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    chunk_size: int = CHUNK_SIZE,
) -> jax.Array:
    """`-log(sigmoid(beta * ((logp_0 - reference_0) - (logp_1 - reference_1))))` for each pair of answers, (pairs,).

    `logp` is the log-probability of an answer: the sum over its tokens. Answer 0 is preferred to answer 1.

    Args:
        y_true: a dict of `targets` (pairs, 2, length): the tokens of answers in their places, as the model gets them,
            and -100 for all others; and `reference` (pairs, 2): log-probabilities of a model that is not trained.
        y_pred: logits (pairs, 2, length, vocabulary).
        beta: factor of the margin. A smaller one lets the model depart further from the reference.
        label_smoothing: probability that a preference is the other way round, from 0 to below 0.5.
        chunk_size: see `CausalLM`.

    Raises:
        ModelError: `y_true` has another form, or the shapes do not fit.
        DataError: a token is out of range; in compiled steps only with `compile(check=True)`.

    Source: Rafailov et al. 2023, arXiv:2305.18290; label smoothing: https://ericmitchell.ai/cdpo.pdf.
    """
    return _values(_margins(y_true, y_pred, beta, chunk_size), label_smoothing)


def _values(margin: jax.Array, label_smoothing: float) -> jax.Array:
    return -(1 - label_smoothing) * jax.nn.log_sigmoid(margin) - label_smoothing * jax.nn.log_sigmoid(-margin)


def _margins(y_true: Any, y_pred: Any, beta: float, chunk_size: int) -> jax.Array:
    """Return how much larger `beta * (logp - reference)` is for answer 0 than for answer 1 (pairs,)."""
    fix = "pass the pairs of kd.data.preferences to fit, with a model that takes tokens (pairs, 2, length)"
    given = shorten(y_true)
    if not isinstance(y_true, Mapping) or not {"targets", "reference"} <= y_true.keys():
        raise ModelError("dpo: `y_true` must be a dict of `targets` and `reference`", given=given, fix=fix)
    targets, reference = (jnp.asarray(y_true[name]) for name in ("targets", "reference"))
    logits = y_pred if isinstance(y_pred, Projection) else jnp.asarray(y_pred)
    if targets.ndim != 3 or targets.shape != logits.shape[:-1] or reference.shape != (len(targets), 2):
        expected = "(pairs, 2, length), (pairs, 2) and (pairs, 2, length, vocabulary)"
        given = shapes(targets=targets, reference=reference, y_pred=logits)
        raise ModelError("dpo: targets, reference and logits do not fit", given=given, expected=expected, fix=fix)
    rewards = beta * (answer_log_probabilities(targets, logits, chunk_size) - reference)
    return rewards[:, 0] - rewards[:, 1]


class DPO(FunctionLoss, function=dpo):
    """Direct preference optimization, the mean of `dpo` over pairs, as a `Loss`.

    The logs also have `reward_accuracy`, the share of pairs whose preferred answer has the larger
    `beta * (logp - reference)`, and `reward_margin`, the mean difference. Weights of pairs do not change these.

    As with `CausalLM`, compiled steps do not store the logits of a large vocabulary.

    Args:
        beta: see `dpo`.
        label_smoothing: see `dpo`.
        chunk_size: see `CausalLM`.
        reduction: see `Loss`.
        name: the name.

    Raises:
        ModelError: an argument is invalid.

    Example:
        >>> import numpy as np
        >>> from keras_dist import losses
        >>> targets = np.array([[[-100, -100, 1], [-100, 2, 1]]])  # answers of one token and of two
        >>> y_true = {"targets": targets, "reference": -np.log([[4.0, 16.0]])}
        >>> round(float(losses.DPO()(y_true, np.zeros((1, 2, 3, 4)))), 4)  # the model equals the reference: log(2)
        0.6931
    """

    splits_targets: ClassVar[bool] = True
    beta: float
    label_smoothing: float
    chunk_size: int

    def __init__(
        self,
        beta: float = 0.1,
        label_smoothing: float = 0.0,
        chunk_size: int = CHUNK_SIZE,
        reduction: str | None = "sum_over_batch_size",
        name: str = "dpo",
    ) -> None:
        check_number("beta", beta, above=0, example=0.1)
        check_number("label_smoothing", label_smoothing, 0, below=0.5, example=0.1)
        check_size("chunk_size", chunk_size, name)
        super().__init__(reduction, name, None, beta=beta, label_smoothing=label_smoothing, chunk_size=chunk_size)

    def count(self, y_true: Any, y_pred: Any, sample_weight: Any = None, mask: Any = None) -> jax.Array:
        """Return the number of tokens of answers."""
        return jnp.sum(jnp.asarray(y_true["targets"])[..., 1:] != IGNORED)

    def for_metrics(self, y_true: Any, y_pred: Any, sample_weight: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
        """Raise: pairs have no targets that metrics could read."""
        fix = "leave out `metrics`: reward_accuracy and reward_margin are logged with the loss"
        raise ModelError('metrics are not available with the loss "dpo"', fix=fix)

    def uses(self, projection: Projection) -> bool:
        """Whether the loss is computed from a projection instead of its logits."""
        return projection.shard_size > self.chunk_size

    def _cast(self, tree: PyTree) -> PyTree:
        return tree  # logits keep their dtype

    def _values(self, y_true: PyTree, y_pred: PyTree) -> tuple[jax.Array, dict[str, jax.Array]]:
        margin = _margins(y_true, y_pred, self.beta, self.chunk_size)
        reported = {"reward_accuracy": jnp.mean(margin > 0), "reward_margin": jnp.mean(margin)}
        return _values(margin, self.label_smoothing), reported
