"""`Loss`: values for examples, their weights and masks, and one number."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from keras_dist import _ranges
from keras_dist.errors import ModelError
from keras_dist.losses.arguments import as_rows, from_numbers
from keras_dist.losses.reduction import check_reduction, check_values, divisor_of, reduce_values
from keras_dist.saving import Configurable


class Loss(Configurable):
    """How far predictions are from targets. Subclasses define `call`.

    Args:
        name: by default that of the class in snake case.
        reduction: how values become one number: "sum_over_batch_size" or "mean" (over all values that no mask leaves
            out), "sum", "mean_with_sample_weight" (divided by the sum of weights), "none" or None (not at all).
        dtype: what targets and predictions are cast to; None for float32.

    Attributes:
        needs_targets: whether it cannot do without `y`.

    Raises:
        ModelError: there is no such reduction, or the dtype holds no fractions.

    Example:
        >>> import jax.numpy as jnp
        >>> class MeanCubedError(Loss):
        ...     def call(self, y_true, y_pred):
        ...         return jnp.mean(jnp.abs(y_true - y_pred) ** 3, axis=-1)
        >>> float(MeanCubedError()([[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 2.0]]))
        4.5

    Differs from Keras: values that pair every example with every other, or that belong to no example, are an error;
    values that a mask leaves out may be NaN; weights (batch,) fit values of any number of dims; `mask` is an argument;
    names are not numbered.

    Source: `keras.losses.Loss`.
    """

    needs_targets: ClassVar[bool] = True

    def __init__(
        self, name: str | None = None, reduction: str | None = "sum_over_batch_size", dtype: Any = None
    ) -> None:
        self.name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", type(self).__name__).lower()
        self.reduction = check_reduction(reduction)
        self._dtype = _float_dtype("float32" if dtype is None else dtype)

    @property
    def dtype(self) -> str:
        """What targets and predictions are cast to."""
        return self._dtype.name

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """A value for each example (batch, ...), or a scalar."""
        raise ModelError(
            f"{type(self).__name__} has no values",
            given=f"the class {type(self).__name__}",
            expected="a method call(self, y_true, y_pred)",
            fix="define it, or choose one of keras_dist.losses",
        )

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None, mask: Any = None) -> jax.Array:
        """The loss of a batch: a scalar, or the weighted values when they are not reduced.

        Args:
            y_true: targets, an array or a tree of arrays; lists of numbers are arrays.
            y_pred: predictions (batch, ...), likewise.
            sample_weight: (batch,), any other shape that the values start with, or one that broadcasts to them.
            mask: which values count, of such a shape; None for all, or those that `y_pred._keras_mask` tells.

        Raises:
            ModelError: shapes do not fit, or the loss returns no value for each example.
        """
        with jax.named_scope(self.name):
            values, masks = self._unreduced(y_true, y_pred, mask)
            return reduce_values(values, sample_weight, masks, self.reduction)

    def divisor(self, y_true: Any, y_pred: Any, sample_weight: Any = None, mask: Any = None) -> Any:
        """What the loss of a batch was divided by: the number of values, or the sum of weights; 1 for a sum.

        A loss that is one number counts as the mean over the rows of `y_pred`. Arguments are as those of a call.
        """
        if type(self).__call__ is not Loss.__call__:  # its own, of which only the number is known
            return 1.0 if self.reduction == "sum" else float(len(jax.tree.leaves(y_pred)[0]))
        values, masks = self._unreduced(y_true, y_pred, mask)
        if values.ndim == 0 and self.reduction != "sum":
            return float(len(jax.tree.leaves(y_pred)[0]))
        return divisor_of(values, sample_weight, masks, self.reduction)

    def _unreduced(self, y_true: Any, y_pred: Any, mask: Any) -> tuple[jax.Array, list[Any]]:
        """The values, and which of them count."""
        mask = getattr(y_pred, "_keras_mask", None) if mask is None else mask
        y_true, y_pred = self._cast(from_numbers(y_true)), self._cast(from_numbers(y_pred))
        with _ranges.counting(mask):
            values = self._values(y_true, y_pred)
        return values, [m for m in (mask, self._counts(y_true, values)) if m is not None]

    def _cast(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, self._dtype), tree)

    def _values(self, y_true: Any, y_pred: Any) -> jax.Array:
        """What `call` returns, checked."""
        return check_values(self.call(y_true, y_pred), y_true, y_pred)

    def _counts(self, y_true: Any, values: jax.Array) -> jax.Array | None:
        """Which values count, when the loss itself leaves some out."""
        del y_true, values


class LibraryLoss(Loss):
    """A loss of this package: its function checks shapes, and may reduce any dim, the examples too (`axis=0`)."""

    def _values(self, y_true: Any, y_pred: Any) -> jax.Array:
        return self.call(y_true, y_pred)


class ElementwiseLoss(LibraryLoss):
    """A loss of this package that is a mean over the last dim.

    Differs from Keras: predictions (batch,) count as (batch, 1), so that each has a value of its own and a weight.
    """

    def _values(self, y_true: Any, y_pred: Any) -> jax.Array:
        return self.call(*as_rows(self.name, y_true, y_pred))


def _float_dtype(dtype: Any) -> jnp.dtype:
    given = getattr(dtype, "compute_dtype", dtype)  # of a dtype policy
    try:
        found = jnp.dtype(given)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ModelError(
            "a loss cannot compute in this dtype",
            given=f"dtype={dtype!r}",
            expected="a floating point dtype",
            fix='leave it out for "float32"',
        )
    return found
