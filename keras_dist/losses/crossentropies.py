"""Crossentropies of binary predictions, and of one class out of several."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from keras_dist._support.arguments import argument_error, is_int, is_number, shapes
from keras_dist._support.integer_checks import check_indices
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import ArrayLike, DTypeLike
from keras_dist.config.settings import epsilon
from keras_dist.errors import ModelError
from keras_dist.losses.loss import ElementwiseLoss, FunctionLoss
from keras_dist.losses.targets import as_arrays, matched
from keras_dist.serialization.registry import register_keras_serializable


def binary_crossentropy(
    y_true: ArrayLike, y_pred: ArrayLike, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> jax.Array:
    """`-mean(y_true * log(y_pred) + (1 - y_true) * log(1 - y_pred), axis)`, (batch, ...).

    Args:
        y_true: from 0 to 1, in the shape of `y_pred`, except for a last dim of 1.
        y_pred: probabilities or logits (batch, ..., n).
        from_logits: whether `y_pred` holds logits.
        label_smoothing: fraction by which targets are moved towards 0.5, from 0 to 1.
        axis: the dim over which the mean is taken.

    Raises:
        ModelError: the shapes differ.
    """
    y_true, y_pred = matched("binary_crossentropy", y_true, y_pred)
    return jnp.mean(_crossentropy(_smooth(y_true, label_smoothing), y_pred, from_logits), axis)


def binary_focal_crossentropy(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> jax.Array:
    """`binary_crossentropy` of each prediction times `(1 - p)**gamma`, `p` the probability of the target, (batch, ...).

    Args:
        y_true, y_pred, from_logits, label_smoothing, axis: as in `binary_crossentropy`.
        apply_class_balancing: whether targets of 1 have the weight `alpha`, and targets of 0 `1 - alpha`.
        alpha: the weight of targets of 1.
        gamma: focusing exponent; a larger one lowers the loss of confident, correct predictions.

    Differs from Keras: large logits give exact losses; Keras turns them into clipped probabilities.
    """
    y_true, y_pred = matched("binary_focal_crossentropy", y_true, y_pred)
    y_true = _smooth(y_true, label_smoothing)
    balance = alpha if apply_class_balancing else None
    if from_logits:
        return jnp.mean(optax.sigmoid_focal_loss(y_pred, y_true, alpha=balance, gamma=gamma), axis)
    right = y_true * y_pred + (1 - y_true) * (1 - y_pred)
    values = (1 - right) ** gamma * _crossentropy(y_true, y_pred, False)
    return jnp.mean(values if balance is None else values * (y_true * alpha + (1 - y_true) * (1 - alpha)), axis)


def _crossentropy(y_true: jax.Array, y_pred: jax.Array, from_logits: bool) -> jax.Array:
    if from_logits:
        return optax.sigmoid_binary_cross_entropy(y_pred, y_true)
    y_pred = jnp.clip(y_pred, epsilon(), 1 - epsilon())
    return -y_true * jnp.log(y_pred) - (1 - y_true) * jnp.log(1 - y_pred)


def _smooth(y_true: jax.Array, label_smoothing: float) -> jax.Array:
    return y_true * (1 - label_smoothing) + 0.5 * label_smoothing


class BinaryCrossentropy(ElementwiseLoss, function=binary_crossentropy):
    """`-mean(y_true * log(y_pred) + (1 - y_true) * log(1 - y_pred))` as a `Loss`.

    Arguments as in `binary_crossentropy` and `Loss`.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "binary_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, from_logits=from_logits, label_smoothing=label_smoothing, axis=axis)


class BinaryFocalCrossentropy(ElementwiseLoss, function=binary_focal_crossentropy):
    """`binary_crossentropy` with each prediction weighted by `(1 - p)**gamma`, as a `Loss`.

    Arguments as in `binary_focal_crossentropy` and `Loss`.
    """

    def __init__(
        self,
        apply_class_balancing: bool = False,
        alpha: float = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "binary_focal_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        balancing = {"apply_class_balancing": apply_class_balancing, "alpha": alpha, "gamma": gamma}
        options = {"from_logits": from_logits, "label_smoothing": label_smoothing, "axis": axis}
        super().__init__(reduction, name, dtype, **balancing, **options)


def categorical_crossentropy(
    y_true: ArrayLike, y_pred: ArrayLike, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> jax.Array:
    """`-sum(y_true * log(p), axis)` with probabilities `p = y_pred / sum(y_pred, axis)`, or `softmax(y_pred)`.

    Args:
        y_true: one-hot rows, or other distributions, in the shape of `y_pred`.
        y_pred: probabilities, which are divided by their sum, or logits, (batch, ..., classes).
        from_logits: whether `y_pred` holds logits.
        label_smoothing: the share of each target that is spread over all classes, from 0 to 1.
        axis: the dim of the classes, which the result lacks.

    Raises:
        ModelError: the shapes differ.

    Differs from Keras: smoothing spreads over the classes of `axis`, in Keras over the size of the last dim.
    """
    y_true, y_pred = _distributions("categorical_crossentropy", y_true, y_pred, label_smoothing, axis)
    if from_logits:
        return optax.softmax_cross_entropy(y_pred, y_true, axis)
    return -jnp.sum(y_true * jnp.log(_probabilities(y_pred, axis)), axis)


def categorical_focal_crossentropy(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    alpha: ArrayLike = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> jax.Array:
    """`-sum(alpha * (1 - p)**gamma * y_true * log(p), axis)`.

    Args:
        y_true, y_pred, from_logits, label_smoothing, axis: as in `categorical_crossentropy`.
        alpha: a factor, or one for each class.
        gamma: focusing exponent; a larger one lowers the loss of confident, correct predictions.

    Differs from Keras: large logits give exact losses; Keras turns them into clipped probabilities. Smoothing is as in
    `categorical_crossentropy`.
    """
    y_true, y_pred = _distributions("categorical_focal_crossentropy", y_true, y_pred, label_smoothing, axis)
    p = _probabilities(jax.nn.softmax(y_pred, axis) if from_logits else y_pred, axis)
    log_p = jax.nn.log_softmax(y_pred, axis) if from_logits else jnp.log(p)
    return -jnp.sum(jnp.asarray(alpha, p.dtype) * (1 - p) ** gamma * y_true * log_p, axis)


def sparse_categorical_crossentropy(
    y_true: ArrayLike, y_pred: ArrayLike, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1
) -> jax.Array:
    """`-log(p[y_true])`.

    Args:
        y_true: class indices, in the shape of `y_pred` without `axis`, or with a size of 1 there.
        y_pred, from_logits, axis: as in `categorical_crossentropy`.
        ignore_class: the index whose values are 0; the loss `SparseCategoricalCrossentropy` does not count them.

    Raises:
        ModelError: the shapes do not fit.
        DataError: a class index is out of range; in compiled steps only with `compile(check=True)`.

    Differs from Keras: a class index out of range is an error, or NaN in compiled steps, not 0. Any `axis` works.
    """
    index, y_pred = _class_indices("sparse_categorical_crossentropy", y_true, y_pred, axis, ignore_class)
    if ignore_class is not None:
        counts = index != ignore_class
        y_pred = jnp.where(jnp.expand_dims(counts, axis), y_pred, 1)  # otherwise NaNs there would reach gradients
        ignored = sparse_categorical_crossentropy(jnp.where(counts, index, 0), y_pred, from_logits, axis=axis)
        return jnp.where(counts, ignored, 0)
    if from_logits:
        return optax.softmax_cross_entropy_with_integer_labels(y_pred, _or_nan(index, y_pred, axis), axis)
    return -jnp.log(_pick(_probabilities(y_pred, axis), index, axis))


def categorical_generalized_cross_entropy(y_true: ArrayLike, y_pred: ArrayLike, q: float) -> jax.Array:
    """`(1 - p[y_true]**q) / q`, (batch, ...).

    Args:
        y_true: class indices (batch, ...) or (batch, ..., 1).
        y_pred: probabilities (batch, ..., classes).
        q: between 0, crossentropy, and 1, mean absolute error, which wrong labels affect least.

    Raises:
        ModelError: the shapes do not fit.
        DataError: a class index is out of range; in compiled steps only with `compile(check=True)`.

    Differs from Keras: a class index out of range is an error, and NaN in compiled steps, instead of `1 / q`. Indices
    (batch, 1) are not paired with every row of predictions.
    """
    index, y_pred = _class_indices("categorical_generalized_cross_entropy", y_true, y_pred, -1)
    return (1 - _pick(y_pred, index, -1) ** q) / q


_PLAIN = categorical_crossentropy.__name__


def _distributions(
    name: str, y_true: ArrayLike, y_pred: ArrayLike, label_smoothing: float, axis: int
) -> tuple[jax.Array, jax.Array]:
    y_true, y_pred = as_arrays(name, y_true, y_pred)
    _check_axis(name, axis, y_pred)
    at = axis % y_pred.ndim
    rows = (y_pred.shape[:at] + y_pred.shape[at + 1 :], (*y_pred.shape[:at], 1, *y_pred.shape[at + 1 :]))
    if y_true.shape in rows and y_true.shape != y_pred.shape and y_pred.shape[axis] > 1:
        one_hot = f"utils.to_categorical(y, {y_pred.shape[axis]})"
        summary = f"{name}: the targets must be one-hot, of shape {y_pred.shape}, and seem to be class indices"
        fix = f"loss='sparse_categorical_crossentropy', or {one_hot}" if name == _PLAIN else one_hot
        raise ModelError(summary, given=shapes(y_true=y_true, y_pred=y_pred), fix=fix)
    y_true, y_pred = matched(name, y_true, y_pred)
    if y_pred.shape[axis] == 1:
        warn(
            f"{name}: y_pred of shape {y_pred.shape} has one class, so that the loss is 0. "
            "Expected two or more; for a single yes-or-no output use 'binary_crossentropy'.",
            SyntaxWarning,
        )
    return optax.smooth_labels(y_true, label_smoothing, axis=axis) if label_smoothing else y_true, y_pred


def _class_indices(
    name: str, y_true: ArrayLike, y_pred: ArrayLike, axis: int, ignore_class: int | None = None
) -> tuple[jax.Array, jax.Array]:
    y_true, y_pred = as_arrays(name, y_true, y_pred)
    _check_axis(name, axis, y_pred)
    if y_true.ndim == y_pred.ndim and y_true.shape[axis] == 1:
        y_true = jnp.squeeze(y_true, axis)
    at = axis % y_pred.ndim
    expected = y_pred.shape[:at] + y_pred.shape[at + 1 :]
    if y_true.shape != expected:
        raise ModelError(
            f"{name}: `y_true` must be class indices of shape {expected}",
            given=shapes(y_true=y_true, y_pred=y_pred),
            fix="one-hot targets go with loss='categorical_crossentropy'; or pass their argmax"
            if y_true.shape == y_pred.shape
            else "a class for each row of predictions",
        )
    check_indices(
        y_true if ignore_class is None else jnp.where(y_true == ignore_class, 0, y_true),
        y_pred.shape[axis],
        f"{name}: class index in `y_true` out of range for `y_pred`",
        "classes that begin at 0, an output for each of them, or a mask or ignore_class for targets that do not count",
    )
    return y_true.astype(jnp.int32), y_pred


def _check_axis(name: str, axis: object, y_pred: jax.Array) -> None:
    if not is_int(axis, -y_pred.ndim, y_pred.ndim - 1):
        summary = f"{name}: `axis` must be an integer from {-y_pred.ndim} to {y_pred.ndim - 1}"
        given = f"axis={axis!r}, y_pred of shape {y_pred.shape}"
        raise ModelError(summary, given=given, fix="leave it out when the classes are the last dim")


def _probabilities(y_pred: jax.Array, axis: int) -> jax.Array:
    """Normalize to a sum of 1, and clip so that logarithms are finite."""
    return jnp.clip(y_pred / jnp.sum(y_pred, axis, keepdims=True), epsilon(), 1 - epsilon())


def _or_nan(index: jax.Array, y_pred: jax.Array, axis: int) -> jax.Array:
    """Move negative indices beyond the end, where values are NaN, instead of counting from the end."""
    return jnp.where(index < 0, y_pred.shape[axis], index)


def _pick(y_pred: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    at = jnp.expand_dims(_or_nan(index, y_pred, axis), axis)
    return jnp.squeeze(jnp.take_along_axis(y_pred, at, axis, mode="fill", fill_value=jnp.nan), axis)


class CategoricalCrossentropy(FunctionLoss, function=categorical_crossentropy):
    """`-sum(y_true * log(p))` of one-hot targets, as a `Loss`.

    Arguments as in `categorical_crossentropy` and `Loss`.
    """

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "categorical_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, from_logits=from_logits, label_smoothing=label_smoothing, axis=axis)


class CategoricalFocalCrossentropy(FunctionLoss, function=categorical_focal_crossentropy):
    """`-sum(alpha * (1 - p)**gamma * y_true * log(p))` of one-hot targets, as a `Loss`.

    Arguments as in `categorical_focal_crossentropy` and `Loss`.
    """

    def __init__(
        self,
        alpha: ArrayLike = 0.25,
        gamma: float = 2.0,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "categorical_focal_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        options = {"from_logits": from_logits, "label_smoothing": label_smoothing, "axis": axis}
        super().__init__(reduction, name, dtype, alpha=alpha, gamma=gamma, **options)


class SparseCategoricalCrossentropy(FunctionLoss, function=sparse_categorical_crossentropy):
    """`-log(p[y_true])` of class indices, as a `Loss`.

    Arguments as in `sparse_categorical_crossentropy` and `Loss`. Targets equal to `ignore_class` do not count.
    """

    ignore_class: int | None

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        axis: int = -1,
        name: str = "sparse_categorical_crossentropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction, name, dtype, from_logits=from_logits, ignore_class=ignore_class, axis=axis)

    def _counts(self, y_true: ArrayLike, values: jax.Array) -> jax.Array | None:
        return None if self.ignore_class is None else jnp.asarray(y_true != self.ignore_class).reshape(values.shape)


class CategoricalGeneralizedCrossEntropy(FunctionLoss, function=categorical_generalized_cross_entropy):
    """`(1 - p[y_true]**q) / q` of class indices, as a `Loss`.

    Arguments as in `categorical_generalized_cross_entropy` and `Loss`.

    Raises:
        ModelError: `q` is not between 0 and 1.
    """

    def __init__(
        self,
        q: float = 0.5,
        reduction: str | None = "sum_over_batch_size",
        name: str = "categorical_generalized_cross_entropy",
        dtype: DTypeLike | None = None,
    ) -> None:
        if not is_number(q) or not 0 < q < 1:
            fix = "for q=0 use SparseCategoricalCrossentropy; leave q out for 0.5"
            raise argument_error("q", q, "a number above 0 and below 1", fix=fix)
        super().__init__(reduction, name, dtype, q=q)


CROSSENTROPY_NAMES = ("crossentropy", "ce")  # names of the loss in `compile`


def kind_by_shapes(y_true: jax.Array, y_pred: jax.Array) -> str:
    """Return `"binary"`, `"sparse"` or `"categorical"`."""
    if y_pred.ndim < 2 or y_pred.shape[-1] == 1:
        return "binary"
    return "sparse" if y_true.ndim < y_pred.ndim or y_true.shape[-1] == 1 else "categorical"


@register_keras_serializable("keras_dist")
def crossentropy_by_shapes(y_true: ArrayLike, y_pred: ArrayLike) -> jax.Array:
    """Binary, sparse or categorical crossentropy, chosen by the shapes."""
    y_true, y_pred = as_arrays("crossentropy", y_true, y_pred)
    return {
        "binary": binary_crossentropy,
        "sparse": sparse_categorical_crossentropy,
        "categorical": categorical_crossentropy,
    }[kind_by_shapes(y_true, y_pred)](y_true, y_pred)
