"""Callables as losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax

from keras_dist._signatures import takes
from keras_dist.errors import ModelError, shorten
from keras_dist.losses.arguments import align_ranks
from keras_dist.losses.loss import Loss


class LossFunctionWrapper(Loss):
    """A callable `(y_true, y_pred) -> values or scalar` as a `Loss`.

    It gets targets and predictions as they are, trees too, but for a last dim of 1 that only one of them has. Targets
    may be None.

    Args:
        fn: the callable.
        reduction: as in `Loss`.
        name: by default that of the callable.
        dtype: what targets and predictions are cast to; None leaves them as they are.
        **kwargs: passed on to `fn`.

    Raises:
        ModelError: `fn` cannot be called with two arguments and `kwargs`.

    Example:
        >>> import jax.numpy as jnp
        >>> largest_error = LossFunctionWrapper(lambda y_true, y_pred: jnp.abs(y_true - y_pred).max(-1), "sum")
        >>> float(largest_error(jnp.zeros((2, 2)), jnp.array([[1.0, 2.0], [3.0, 0.0]])))
        5.0

    Differs from Keras: without a dtype nothing is cast, so that integer targets stay integers; the targets need not
    have the structure of the predictions.

    Source: `keras.src.losses.losses.LossFunctionWrapper`.
    """

    needs_targets: ClassVar[bool] = False

    def __init__(
        self,
        fn: Callable[..., Any],
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        if not (callable(fn) and takes(fn, None, None, **kwargs)):
            raise ModelError(
                "`loss` cannot be called as loss(y_true, y_pred)",
                given=shorten(fn) + (f" with {', '.join(kwargs)}" if kwargs else ""),
                expected="a callable (y_true, y_pred) -> values",
                fix="change its parameters, or wrap it: lambda y_true, y_pred: ...",
            )
        super().__init__(name or getattr(fn, "__name__", type(fn).__name__), reduction, dtype)
        self.fn = fn
        self._kwargs = kwargs
        self._casts = dtype is not None

    def call(self, y_true: Any, y_pred: Any) -> jax.Array:
        """What the callable returns."""
        structure = jax.tree.structure(y_pred)
        if structure == jax.tree.structure(y_true):
            pairs = [align_ranks(*pair) for pair in zip(*map(jax.tree.leaves, (y_true, y_pred)), strict=True)]
            y_true, y_pred = (jax.tree.unflatten(structure, [pair[i] for pair in pairs]) for i in (0, 1))
        return self.fn(y_true, y_pred, **self._kwargs)

    def _cast(self, tree: Any) -> Any:
        return super()._cast(tree) if self._casts else tree
