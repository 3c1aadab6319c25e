"""Conversion of arrays of any library to numpy arrays of numbers, with the examples along the first dim."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import jax
import numpy as np

from keras_dist._support import tree_paths
from keras_dist._support.arguments import argument_error, check_exclusive, check_int
from keras_dist._support.array_operators import native
from keras_dist._support.integer_checks import check_fits
from keras_dist._support.types import PyTree
from keras_dist.errors import DataError, shorten, with_type

Arrays: TypeAlias = tuple[PyTree, PyTree, PyTree]  # `(x, y, sample_weight)`; y and sample_weight may be None


def check_batch_size(batch_size: int | None, argument: str = "batch_size", default: int = 32) -> int:
    """Return `batch_size`, the value of `argument`, or the default for None."""
    if batch_size is None:
        return default
    return check_int(argument, batch_size, 1, example=128, error=DataError)


def as_arrays(value: PyTree, argument: str) -> PyTree:
    """Convert the leaves of a pytree to numpy arrays or `SparseRows`."""
    value = with_lists_as_arrays(value)
    leaves, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_leaf)
    return treedef.unflatten([as_array(leaf, leaf_name(argument, path)) for path, leaf in leaves])


def _is_leaf(node: Any) -> bool:
    """Whether it is an iterator, for which JAX raises an error inside a tree, or a sparse array of JAX."""
    return isinstance(node, Iterator) or hasattr(node, "todense")


def all_as_arrays(given: Arrays, name: str) -> Arrays:
    """Convert the leaves of `(x, y, sample_weight)`; `name` is the prefix of their names in errors."""
    x, y, sample_weight = given
    return as_arrays(x, f"{name}x"), as_arrays(y, f"{name}y"), as_arrays(sample_weight, f"{name}sample_weight")


def with_lists_as_arrays(value: PyTree) -> PyTree:
    """Convert lists of numbers, and of equally long such lists, to arrays, as in `tf.keras`."""
    if type(value) is dict:
        return {key: with_lists_as_arrays(item) for key, item in value.items()}
    if type(value) not in (list, tuple) or not value:
        return value
    if all(isinstance(leaf, bool | int | float | np.number | np.bool_) for leaf in jax.tree.leaves(value)):
        with contextlib.suppress(ValueError):  # lists of different lengths, which raise later
            array = np.asarray(value)
            if array.dtype.kind in "biuf":
                return array
    return type(value)(with_lists_as_arrays(item) for item in value)


def leaf_name(argument: str, path: tuple[PyTree, ...]) -> str:
    """Return the name of a leaf of the pytree `argument` in errors."""
    parts = tree_paths.parts_of(path)
    return argument + "".join(f"[{part!r}]" for part in parts)


def named_leaves(arrays: Arrays, name: str) -> list[tuple[str, Any]]:
    """Return the leaves of `(x, y, sample_weight)` with their names in errors."""
    return [
        (leaf_name(f"{name}{argument}", path), leaf)
        for argument, tree in zip(("x", "y", "sample_weight"), arrays, strict=True)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def describe(arrays: Arrays, name: str = "", shape_of: Callable[[Any], Any] = np.shape) -> str:
    """Return the leaves of `(x, y, sample_weight)` with their dtypes and shapes, as text."""
    return ", ".join(f"{leaf_name} {leaf.dtype}{shape_of(leaf)}" for leaf_name, leaf in named_leaves(arrays, name))


@contextlib.contextmanager
def noting(place: str | Callable[[], str]) -> Iterator[None]:
    """Add a note with a place to errors; a function is called for errors only."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {place if isinstance(place, str) else place()}")
        raise


def as_array(leaf: Any, name: str) -> np.ndarray | SparseRows:
    """Convert an array of any library to a numpy array or `SparseRows`."""
    array = to_host(leaf)
    if not isinstance(array, np.ndarray | SparseRows):
        summary = f"{name} must be an array, a tensor or a table of numbers, or dicts, lists and tuples of them"
        fix = f"np.asarray({name})" if isinstance(leaf, int | float) else f"turn {name} into a numpy array"
        raise DataError(summary, given=with_type(leaf), fix=fix)
    is_numeric = array.dtype == np.bool_ or jax.numpy.issubdtype(array.dtype, jax.numpy.number)
    if array.ndim == 0 or not is_numeric:
        summary = f"{name} must hold numbers or booleans, with the examples along the first dim"
        fix = f"convert it first, for example {name}.astype('float32')" if array.ndim else f"{name}[None]"
        raise DataError(summary, given=f"shape {array.shape}, dtype {array.dtype}", fix=fix)
    if not isinstance(array, np.memmap):  # a file may be larger than memory: rows are checked when they are read
        check_fits(array, name)
    return array


def common_length(arrays: Arrays, name: str, what: str = "dataset") -> int:
    """Return the number of rows of `(x, y, sample_weight)`; raise if it differs between arrays."""
    lengths = {leaf_name: len(leaf) for leaf_name, leaf in named_leaves(arrays, name)}
    if not jax.tree.leaves(arrays[0]):
        fix = "pass the inputs as x: an array, or a pytree of arrays"
        raise DataError(f"{name}x holds no array", given=shorten(arrays[0]), fix=fix)
    first, length = next(iter(lengths.items()))
    for other, other_length in lengths.items():
        if other_length != length:
            given = f"{first}: {length} rows, {other}: {other_length} rows"
            fix = f"check how {other} was made"
            raise DataError(f"{first} and {other} must have one row each for every example", given=given, fix=fix)
    if length == 0:
        given = f"{first} with 0 rows"
        raise DataError(f"the {name}{what} is empty", given=given, fix="check the path or filter that made it")
    for path, weights in jax.tree_util.tree_leaves_with_path(arrays[2]):
        if isinstance(weights, np.ndarray) and not np.isfinite(weights).all():
            place = tuple(np.argwhere(~np.isfinite(weights))[0])
            given = f"{weights[place]} in row {place[0]}"
            fix = "give weight 0 to examples that must be left out"
            raise DataError(f"{leaf_name(f'{name}sample_weight', path)} must be finite", given=given, fix=fix)
    return length


def check_targets(arrays: Arrays, name: str, way: str = "pass y") -> None:
    """Raise if targets are missing."""
    x, y, _ = arrays
    if jax.tree.leaves(y):
        return
    pair = type(x) if isinstance(x, tuple | list) else None
    batches = f"; if these are batches, {OF_BATCHES}" if are_batches(x) else ""
    given = f"{name}y is None, {name}x is a {type(x).__name__}" + (f" of {len(x)}" if pair else "")
    fix = f"pass y separately: (x, y){batches}" if pair else f"{way}, or a loss (y_true, y_pred) that ignores y_true"
    raise DataError(f"{name}y is missing, which the loss or a metric needs", given=given, fix=fix)


OF_BATCHES = (
    "join their arrays to (x, y), or pass a dataset: a PyDataset, a DataLoader, or an object whose __iter__ yields "
    "them (iter(batches) serves one epoch)"
)
"""Fix for lists of batches."""


def are_batches(value: object) -> bool:
    """Whether `value` looks like a list of batches, each `(x, y)` or `(x, y, sample_weight)`."""
    items = cast("list[object] | tuple[object, ...]", value) if isinstance(value, tuple | list) else ()
    return bool(items) and all(isinstance(one, tuple) and len(cast("tuple[object]", one)) in (2, 3) for one in items)


def is_array(x: object) -> bool:
    """Whether `x` is an array, a tensor, a table or a matrix of any library."""
    return hasattr(x, "shape") and any(hasattr(x, name) for name in ("dtype", "to_numpy", "tocsr"))


def is_plain(x: object) -> bool:
    """Whether `x` is an array, a container of arrays, a string or a class, and not a dataset."""
    return isinstance(x, dict | list | tuple | str | bytes | type | None) or is_array(x)


def to_host(leaf: Any) -> Any:
    """Convert an array of any library to a numpy array or `SparseRows`, without a copy if possible; return others."""
    if isinstance(leaf, np.ndarray):
        return native(leaf)
    if isinstance(leaf, SparseRows):
        return leaf
    if hasattr(leaf, "tocsr"):
        return SparseRows(leaf.tocsr()) if leaf.ndim == 2 else leaf.toarray()
    if hasattr(leaf, "todense"):
        return np.asarray(leaf.todense())
    if hasattr(leaf, "detach"):
        return leaf.detach().cpu().numpy()
    if hasattr(leaf, "to_numpy"):
        return leaf.to_numpy()
    return np.asarray(leaf) if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else leaf


def dense(array: np.ndarray | SparseRows) -> np.ndarray:
    """Return an array, or a dense copy of sparse rows."""
    return array.copy() if isinstance(array, SparseRows) else array


class SparseRows:
    """A sparse matrix, a scipy matrix in CSR format, whose rows are converted to dense arrays when they are read."""

    ndim = 2

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.shape: tuple[int, ...] = tuple(matrix.shape)
        self.dtype = np.dtype(matrix.dtype)
        self.size = self.shape[0] * self.shape[1]
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> SparseRows:
        return SparseRows(self._matrix[rows])

    def take(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Return these rows as a dense array of shape `(*rows.shape, columns)`."""
        del axis  # for the signature of numpy
        return self._matrix[rows.ravel()].toarray().reshape(*rows.shape, self.shape[1])

    def outside(self, limits: np.iinfo) -> tuple[int, int] | None:
        """Return the row and the value of the first element that is out of range; None if there is none."""
        wrong = np.flatnonzero((self._matrix.data < limits.min) | (self._matrix.data > limits.max))
        if not wrong.size:
            return None
        return int(np.searchsorted(self._matrix.indptr, wrong[0], "right")) - 1, int(self._matrix.data[wrong[0]])

    def copy(self) -> np.ndarray:
        """Return all rows, dense."""
        return self._matrix.toarray()


def weights_of_classes(y: PyTree, class_weight: Mapping[int, float], sample_weight: PyTree = None) -> np.ndarray:
    """Return the class weight of each example, by its class index or the largest of several scores; by default 1."""
    fix = "multiply sample_weight by the weight of each example's class"
    check_exclusive(DataError, fix, class_weight=class_weight, sample_weight=sample_weight)
    _check_weights(class_weight)
    if not hasattr(y, "shape") or len(y.shape) not in (1, 2):
        summary = "`class_weight` needs one output, with y of shape (examples,), (examples, 1) or (examples, classes)"
        given = "y=None" if y is None else f"y: {_shape(y)}"
        raise DataError(summary, given=given, fix="pass weights for each output by sample_weight")
    y = np.asarray(dense(y))
    if y.ndim == 2:
        y = y.argmax(-1) if y.shape[1] > 1 else y[:, 0]
    classes, places = np.unique(np.round(y).astype(np.int32), return_inverse=True)
    return np.array([class_weight.get(int(label), 1.0) for label in classes], np.float32)[places]


def _check_weights(class_weight: object) -> None:
    numbers = (int, float, np.number)
    fits = isinstance(class_weight, Mapping) and all(
        isinstance(label, numbers) and float(label).is_integer() and isinstance(weight, numbers) and np.isfinite(weight)
        for label, weight in class_weight.items()
    )
    if not fits:
        expected, example = "a dict from class indices to finite weights", {0: 1.0, 1: 5.0}
        raise argument_error("class_weight", class_weight, expected, example=example, error=DataError)


def _shape(y: PyTree) -> str:
    return f"shape {y.shape}" if hasattr(y, "shape") else f"a {type(y).__name__} for several outputs"
