"""`Loss`: weighted, masked and reduced values of examples; losses of functions."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from keras_dist._support import integer_checks
from keras_dist._support.arguments import argument_error, check_option, shapes
from keras_dist._support.raw_errors import explained
from keras_dist._support.signatures import keywords_taken, takes
from keras_dist._support.types import ArrayLike, DTypeLike, PyTree
from keras_dist._unstable.jax_internals import hides_mesh
from keras_dist.errors import ModelError, shorten, with_type
from keras_dist.losses.targets import align_ranks, as_rows, from_numbers, is_array
from keras_dist.losses.vocabulary import Projection
from keras_dist.serialization.configurable import Configurable
from keras_dist.serialization.object_registry import snake_case


class Loss(Configurable):
    """Base of all losses: the reduced values of `call`, which subclasses define.

    Args:
        name: by default the name of the class in snake case.
        reduction: "sum_over_batch_size" or "mean" (over unmasked values), "sum", "mean_with_sample_weight" (divided by
            the sum of weights), "none" or None (no reduction).
        dtype: dtype to which targets and predictions are cast; None for float32.

    Attributes:
        needs_targets: whether targets must be given.
        splits_targets: whether targets may have another structure than the outputs, as a dict for one output.
        is_mean_by_weight: whether the logs are means over weights, not over rows.

    Raises:
        ModelError: the reduction is unknown, or the dtype is not a floating point type.

    Example:
        >>> import jax.numpy as jnp
        >>> class MeanCubedError(Loss):
        ...     def call(self, y_true, y_pred):
        ...         return jnp.mean(jnp.abs(y_true - y_pred) ** 3, axis=-1)
        >>> float(MeanCubedError()([[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 2.0]]))
        4.5

    Differs from Keras: values for each pair of examples, or for none, are an error. Masked values may be NaN. Weights
    (batch,) fit values of any rank. `mask` is an argument. Names are not numbered.
    """

    needs_targets: ClassVar[bool] = True
    splits_targets: ClassVar[bool] = False
    is_mean_by_weight: ClassVar[bool] = False

    def __init__(
        self, name: str | None = None, reduction: str | None = "sum_over_batch_size", dtype: DTypeLike | None = None
    ) -> None:
        self.name = name or snake_case(type(self).__name__)
        self.reduction: str | None = check_option("reduction", reduction, REDUCTIONS)
        self._dtype = _float_dtype("float32" if dtype is None else dtype)

    @property
    def dtype(self) -> str:
        """The dtype to which targets and predictions are cast."""
        return self._dtype.name

    def call(self, y_true: PyTree, y_pred: PyTree) -> jax.Array:
        """Return values (batch, ...) or a scalar, or `(values, {"name": scalar})` to also log scalars."""
        fix = "define a method call(self, y_true, y_pred), or choose one of keras_dist.losses"
        raise ModelError(f"{type(self).__name__} has no values", given=f"the class {type(self).__name__}", fix=fix)

    def __call__(
        self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike | None = None, mask: ArrayLike | None = None
    ) -> jax.Array:
        """Return the loss of a batch: a scalar, or the weighted values if they are not reduced.

        Args:
            y_true: targets, an array or a tree of arrays; lists of numbers are arrays.
            y_pred: predictions (batch, ...), an array or a tree of arrays.
            sample_weight: (batch,), any other leading shape of the values, or a shape that broadcasts to them.
            mask: boolean, values that count, of such a shape; by default `y_pred._keras_mask`, or all.

        Raises:
            ModelError: shapes do not fit, or the loss does not return a value for each example.
        """
        return self.with_reported(y_true, y_pred, sample_weight, mask)[0]

    def with_reported(
        self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike | None = None, mask: ArrayLike | None = None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the loss of a batch, and the scalars to log that `call` returned, by name."""
        if type(self).__call__ is not Loss.__call__:  # a user's method, which may not take a mask
            options = keywords_taken(type(self).__call__, {"mask": mask})
            return split_reported(self(y_true, y_pred, sample_weight, **options))
        with jax.named_scope(self.name):
            values, masks, reported = self._unreduced(y_true, y_pred, mask)
            return reduce_values(values, sample_weight, masks, self.reduction), reported

    def count(
        self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike | None = None, mask: ArrayLike | None = None
    ) -> ArrayLike | None:
        """Return the number of unmasked values with a weight other than 0; None for a scalar loss."""
        if type(self).__call__ is not Loss.__call__:
            return None
        values, masks, _ = self._unreduced(y_true, y_pred, mask)
        if sample_weight is not None:
            masks = [*masks, jnp.asarray(sample_weight) != 0]
        return divisor_of(values, None, masks, "sum_over_batch_size") if values.ndim else None

    def divisor(
        self, y_true: PyTree, y_pred: PyTree, sample_weight: ArrayLike | None = None, mask: ArrayLike | None = None
    ) -> ArrayLike:
        """Return the divisor of the loss of a batch: the number of values, or the sum of weights; 1 for a sum.

        A scalar loss counts as the mean over the rows of `y_pred`.
        """
        if type(self).__call__ is not Loss.__call__:  # a user's method, whose values are unknown
            return 1.0 if self.reduction == "sum" else float(len(jax.tree.leaves(y_pred)[0]))
        values, masks, _ = self._unreduced(y_true, y_pred, mask)
        if values.ndim == 0 and self.reduction != "sum":
            return float(len(jax.tree.leaves(y_pred)[0]))
        return divisor_of(values, sample_weight, masks, self.reduction)

    def for_metrics(self, y_true: Any, y_pred: Any, sample_weight: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
        """Return the arguments of metrics of an output with this loss; a loss that shifts targets shifts these, too."""
        return y_true, y_pred, sample_weight, mask

    def uses(self, projection: Projection) -> bool:
        """Whether `call` takes a projection instead of the logits that it computes."""
        return False

    def _unreduced(
        self, y_true: PyTree, y_pred: PyTree, mask: ArrayLike | None
    ) -> tuple[jax.Array, list[ArrayLike], dict[str, jax.Array]]:
        """Return the values, the masks, and the scalars to log."""
        mask = getattr(y_pred, "_keras_mask", None) if mask is None else mask
        y_true, y_pred = self._cast(from_numbers(y_true)), self._cast(from_numbers(y_pred))
        with integer_checks.counting(mask):
            values, reported = self._values(y_true, y_pred)
        return values, [m for m in (mask, self._counts(y_true, values)) if m is not None], reported

    def _cast(self, tree: PyTree) -> PyTree:
        return jax.tree.map(functools.partial(jnp.asarray, dtype=self._dtype), tree)

    def _values(self, y_true: PyTree, y_pred: PyTree) -> tuple[jax.Array, dict[str, jax.Array]]:
        values, reported = split_reported(self.call(y_true, y_pred))
        return check_values(values, y_true, y_pred), reported

    def _counts(self, y_true: PyTree, values: jax.Array) -> jax.Array | None:
        """Return a mask of the values that count, for losses that skip some."""
        del y_true, values


class FunctionLoss(Loss):
    """A loss defined by a function: `class LogCosh(FunctionLoss, function=log_cosh)`.

    Arguments of the function become attributes.
    """

    function: ClassVar[Callable[..., jax.Array]]

    def __init_subclass__(cls, function: Callable[..., jax.Array] | None = None, **kwargs: Any) -> None:
        """Define a constructor whose `name` is by default the name of the function."""
        super().__init_subclass__(**kwargs)
        if function is None:
            return
        cls.function = staticmethod(explained(function, hides_mesh))
        if "__init__" not in vars(cls):

            def __init__(
                self: FunctionLoss,
                reduction: str | None = "sum_over_batch_size",
                name: str | None = function.__name__,
                dtype: DTypeLike | None = None,
            ) -> None:
                FunctionLoss.__init__(self, reduction, name, dtype)

            __init__.__qualname__ = f"{cls.__qualname__}.__init__"
            cls.__init__ = explained(__init__)  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(name, reduction, dtype)
        self._argument_names = tuple(arguments)
        vars(self).update(arguments)

    def call(self, y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
        """Return the values of the function."""
        return self.function(y_true, y_pred, **{name: vars(self)[name] for name in self._argument_names})

    def _values(self, y_true: PyTree, y_pred: PyTree) -> tuple[jax.Array, dict[str, jax.Array]]:
        return self.call(y_true, y_pred), {}


class ElementwiseLoss(FunctionLoss):
    """A mean over the last dim.

    Unlike in Keras, predictions (batch,) are treated as (batch, 1), so that each has a weight.
    """

    def _values(self, y_true: PyTree, y_pred: PyTree) -> tuple[jax.Array, dict[str, jax.Array]]:
        return self.call(*as_rows(self.name, y_true, y_pred)), {}


class LossFunctionWrapper(Loss):
    """A callable `(y_true, y_pred) -> values or scalar` as a `Loss`; it may return `(values, {"name": scalar})`.

    Targets and predictions are arrays or trees; targets may be None. A last dim of 1 that only one of them has is
    added or removed.

    Args:
        fn: the callable.
        reduction: as in `Loss`.
        name: by default the name of the callable.
        dtype: dtype to which targets and predictions are cast; None for no cast.
        **kwargs: arguments of `fn`.

    Raises:
        ModelError: `fn` cannot be called with two arguments and `kwargs`.

    Example:
        >>> import jax.numpy as jnp
        >>> largest_error = LossFunctionWrapper(lambda y_true, y_pred: jnp.abs(y_true - y_pred).max(-1), "sum")
        >>> float(largest_error(jnp.zeros((2, 2)), jnp.array([[1.0, 2.0], [3.0, 0.0]])))
        5.0

    Differs from Keras: without a dtype nothing is cast, so that integer targets stay integers. Targets may have another
    structure than predictions.

    Source: `keras.src.losses.losses.LossFunctionWrapper`.
    """

    needs_targets: ClassVar[bool] = False

    def __init__(
        self,
        fn: Callable[..., Any],
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        if not (callable(fn) and takes(fn, None, None, **kwargs)):
            given = shorten(fn) + (f" with {', '.join(kwargs)}" if kwargs else "")
            fix = "change its parameters, or wrap it: lambda y_true, y_pred: ..."
            raise ModelError("`loss` cannot be called as loss(y_true, y_pred)", given=given, fix=fix)
        super().__init__(name or getattr(fn, "__name__", type(fn).__name__), reduction, dtype)
        self.fn = fn
        self._kwargs = kwargs
        self._casts = dtype is not None

    def call(self, y_true: PyTree, y_pred: PyTree) -> jax.Array:
        """Call the function."""
        structure: Any = jax.tree.structure(y_pred)
        if structure == jax.tree.structure(y_true):
            pairs = [align_ranks(*pair) for pair in zip(*map(jax.tree.leaves, (y_true, y_pred)), strict=True)]
            y_true, y_pred = (jax.tree.unflatten(structure, [pair[i] for pair in pairs]) for i in (0, 1))
        return self.fn(y_true, y_pred, **self._kwargs)

    def _cast(self, tree: PyTree) -> PyTree:
        return super()._cast(tree) if self._casts else tree


def _float_dtype(dtype: Any) -> jnp.dtype:
    given = getattr(dtype, "compute_dtype", dtype)  # of a dtype policy
    try:
        found = jnp.dtype(given)
    except Exception:  # numpy raises several
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise argument_error("dtype", dtype, "a floating point dtype", fix='leave it out for "float32"')
    return found


_MEANS = ("sum_over_batch_size", "mean")
REDUCTIONS = (*_MEANS, "sum", "mean_with_sample_weight", "none", None)


def split_reported(returned: object) -> tuple[Any, dict[str, jax.Array]]:
    """Split the result of a loss into its values and scalars to log: `(values, {"name": scalar})`."""
    pair = cast("tuple[object, ...]", returned) if isinstance(returned, tuple) else ()
    if len(pair) != 2 or not isinstance(pair[1], Mapping):
        return cast("object", returned), {}
    values, reported = pair[0], cast("Mapping[object, Any]", pair[1])
    for name, value in reported.items():
        if not isinstance(name, str) or not (is_array(value) or isinstance(value, int | float)) or jnp.shape(value):
            given = f"{shorten(value)} of shape {jnp.shape(value)}" if is_array(value) else shorten(value)
            fix = f'reduce it in the loss: {{"{name}": jnp.mean(...)}}'
            raise ModelError(f"`loss` must return scalars to log, not {shorten(name)}", given=given, fix=fix)
    return values, {cast("str", name): jnp.asarray(value) for name, value in reported.items()}


def check_values(values: object, y_true: PyTree, y_pred: PyTree) -> jax.Array:
    """Return `values`; raise unless it is a scalar or has the batch dim of `y_true` and `y_pred`."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves((y_true, y_pred))]
    rows = {shape[0] for shape in shapes if shape}
    expected = f"a scalar, or values of shape ({' or '.join(map(str, sorted(rows)))}, ...)"
    if not (is_array(values) or isinstance(values, int | float)):
        fix = "return one array from the loss"
        raise ModelError("`loss` did not return an array", given=with_type(values), expected=expected, fix=fix)
    shape = jnp.shape(values)
    pair = shape[:1] * 2
    compares_all = y_true is not None and shape[:2] == pair != (1, 1) and all(s[:2] != pair for s in shapes)
    if shape and rows and (compares_all or shape[0] not in rows):
        given = f"shape {shape} from arrays of shapes {', '.join(map(str, shapes))}"
        fix = "give y_true and y_pred one shape in the loss, and reduce over all dims but the first"
        raise ModelError("`loss` returned no value for each example", given=given, expected=expected, fix=fix)
    values = jnp.asarray(values)
    return values if jnp.issubdtype(values.dtype, jnp.inexact) else values.astype(jnp.float32)


def reduce_values(
    values: jax.Array,
    sample_weight: ArrayLike | None = None,
    masks: Sequence[ArrayLike] = (),
    reduction: str | None = "mean",
) -> jax.Array:
    """Reduce weighted values; weights and masks have a leading shape of the values, or broadcast to them.

    "sum_over_batch_size" and "mean" divide the weighted sum by the number of unmasked values, "mean_with_sample_weight"
    by the sum of weights. Source: `keras.src.losses.loss.reduce_weighted_values`.
    """
    weight = None if sample_weight is None else _fit("sample_weight", sample_weight, values).astype(values.dtype)
    if masks:
        counts = functools.reduce(jnp.logical_and, [_fit("mask", mask, values).astype(bool) for mask in masks])
        values = jnp.where(counts, values, 0)  # masked values may be NaN
        share = counts.size / jnp.maximum(jnp.sum(counts), 1) if reduction in _MEANS else 1
        counts = (counts * share).astype(values.dtype)
        weight = counts if weight is None else weight * counts
    if weight is not None:
        values = values * weight
    if reduction in ("none", None):
        return values
    if reduction == "sum":
        return jnp.sum(values)
    if reduction == "mean_with_sample_weight" and weight is not None:
        total = jnp.sum(weight)
        return jnp.where(total == 0, 0, jnp.sum(values) / jnp.where(total == 0, 1, total))
    return jnp.sum(values) / max(values.size, 1)


def divisor_of(
    values: jax.Array,
    sample_weight: ArrayLike | None = None,
    masks: Sequence[ArrayLike] = (),
    reduction: str | None = "mean",
) -> ArrayLike:
    """Return the divisor of `reduce_values`; the mean of losses, weighted by it, is the loss of all rows."""
    weights = [_fit("mask", mask, values).astype(bool).astype(jnp.float32) for mask in masks]
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights.append(_fit("sample_weight", sample_weight, values).astype(jnp.float32))
    elif reduction == "mean_with_sample_weight" or reduction in _MEANS:
        weights.append(jnp.ones(values.shape, jnp.float32))
    else:
        return 1.0
    return jnp.sum(functools.reduce(jnp.multiply, weights))


def _fit(name: str, given: ArrayLike, values: jax.Array) -> jax.Array:
    """Return `given` with as many dims as `values`, to broadcast against them."""
    array = jnp.asarray(given)
    if array.ndim == values.ndim + 1 and array.shape[-1] == 1:
        array = jnp.squeeze(array, -1)
    starts = values.shape[: array.ndim] == array.shape
    broadcasts = array.ndim == values.ndim and all(n in (1, m) for n, m in zip(array.shape, values.shape, strict=True))
    if not (starts or broadcasts):
        raise ModelError(
            f"`{name}` does not fit the loss",
            given=shapes(**{name: array, "loss": values}),
            fix="let the loss return one value for each example instead of their mean"
            if values.ndim == 0
            else f"give {name} the shape {values.shape}, its beginning, or as many dims",
        )
    return array.reshape(array.shape + (1,) * (values.ndim - array.ndim))
