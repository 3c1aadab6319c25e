"""Batches from arrays in memory: gathered rows, padded to what the mesh divides, and never the caller's buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np

from keras_dist import _paths
from keras_dist.errors import DataError


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of a data set, gathered into fresh memory: one batch, or several of one length as a stack.

    Attributes:
        arrays: `(x, y, sample_weight)`, each leaf (padded rows, ...), in a stack (batches, padded rows, ...); y and
            sample_weight may be None.
        rows: how many of the rows are real; the others repeat the last one.
        form: alike for batches whose arrays have the same structure, shapes and dtypes.
        name: of the data set, as errors call it, such as `"validation "`.
        stacked: how many batches the stack holds; None for a lone batch.
    """

    arrays: tuple[Any, Any, Any]
    rows: int
    form: Hashable = None
    name: str = ""
    stacked: int | None = None

    def describe(self) -> str:
        """The arrays with the shapes that a step sees."""
        first = 1 if self.stacked is None else 2
        leaves = [
            f"{_name(f'{self.name}{argument}', path)} {leaf.dtype}{(self.rows, *leaf.shape[first:])}"
            for argument, tree in zip(("x", "y", "sample_weight"), self.arrays, strict=True)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        ]
        return ", ".join(leaves)


class ArraySource:
    """Examples in memory, as arrays or pytrees of arrays with one length.

    Args:
        x: inputs; every leaf (examples, ...).
        y: targets of the same length, or None.
        sample_weight: a weight for each example, or None.
        name: how errors call `x`, `y` and `sample_weight`, such as `"validation "`.

    Attributes:
        length: how many examples there are.
        form: alike for sources whose arrays differ in their values and number of rows alone.

    Raises:
        DataError: something is not an array of numbers, is empty, or has another length.
    """

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None, name: str = "") -> None:
        self.name = name
        self._arrays = tuple(
            _as_arrays(value, f"{name}{argument}")
            for argument, value in (("x", x), ("y", y), ("sample_weight", sample_weight))
        )
        self.length = _common_length(self._arrays, name)
        self._leaves, self._tree = jax.tree.flatten(self._arrays)
        self.form: Hashable = (self._tree, tuple((leaf.shape[1:], leaf.dtype) for leaf in self._leaves))

    @property
    def x(self) -> Any:
        """The inputs, as numpy arrays."""
        return self._arrays[0]

    def check_targets(self) -> None:
        """Nothing, if there are targets.

        Raises:
            DataError: there are none.
        """
        if jax.tree.leaves(self._arrays[1]):
            return
        pair = type(self.x) if isinstance(self.x, tuple | list) else None
        raise DataError(
            f"{self.name}y is missing",
            given=f"{self.name}y is None, {self.name}x is a {type(self.x).__name__}"
            + (f" of {len(self.x)}" if pair else ""),
            expected="targets: the loss or a metric compares with them",
            fix="pass y separately: (x, y)" if pair else "pass y, or a loss (y_true, y_pred) that does without it",
        )

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """`(x, y, sample_weight)` as numpy arrays, possibly the caller's own."""
        return self._arrays

    def split(self, at: int) -> tuple[ArraySource, ArraySource]:
        """The examples before row `at`, and those from there on, as validation data."""
        first, last = (
            jax.tree.map(lambda leaf, part=part: leaf[part], self._arrays) for part in (slice(at), slice(at, None))
        )
        return ArraySource(*first, name=self.name), ArraySource(*last, name="validation ")

    def batches(
        self,
        batch_size: int,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        stack: int = 1,
        span: range | None = None,
    ) -> Iterator[Batch]:
        """The examples in batches; each of them exactly once.

        Args:
            batch_size: rows in all batches but the last.
            multiple_of: batches are padded up to a multiple of this many rows.
            shuffle_key: integers that fix a permutation of the examples; None for their own order.
            stack: how many batches of `batch_size` rows come as one stack, as long as there are so many.
            span: which of the batches; None for all.
        """
        for rows in self.row_numbers(batch_size, multiple_of, shuffle_key, span):
            wanted = rows.padded[rows.wanted.start : rows.wanted.stop]
            stacks = len(wanted) // stack if stack > 1 else 0
            for index in range(stacks):
                yield self._gather(wanted[index * stack : (index + 1) * stack], rows.real, stack)
            for padded in wanted[stacks * stack :]:
                yield self._gather(padded, rows.real)

    def row_numbers(
        self,
        batch_size: int,
        multiple_of: int,
        shuffle_key: tuple[int, ...] | None = None,
        span: range | None = None,
    ) -> list[RowNumbers]:
        """Which rows make the batches, in order: first all full ones, then the shorter one, if there is one.

        Args:
            batch_size: rows in all batches but the last.
            multiple_of: batches are padded up to a multiple of this many rows.
            shuffle_key: integers that fix a permutation of the examples; None for their own order.
            span: which of the batches are wanted; None for all.
        """
        span = range(self.length) if span is None else span
        order = np.arange(self.length)
        if shuffle_key is not None:
            np.random.default_rng(np.random.SeedSequence(shuffle_key)).shuffle(order)
        full = self.length - self.length % batch_size
        parts = (order[:full].reshape(-1, batch_size), order[full:].reshape(1, -1))
        found, before = [], 0
        for part in parts:
            wanted = range(len(part))[max(span.start - before, 0) : max(span.stop - before, 0)]
            if part.size and wanted:
                found.append(RowNumbers(_padded(part, multiple_of), part.shape[1], wanted))
            before += len(part)
        return found

    def whole(self, multiple_of: int) -> Batch:
        """All examples as one batch."""
        (rows,) = self.row_numbers(self.length, multiple_of)
        return self._gather(rows.padded[0], rows.real)

    def _gather(self, padded: np.ndarray, rows: int, stacked: int | None = None) -> Batch:
        # `take` copies, so that nobody can change the rows of a step in flight
        gathered = [array.take(padded, axis=0) for array in self._leaves]
        return Batch(self._tree.unflatten(gathered), rows, (self.form, padded.shape), self.name, stacked)


@dataclasses.dataclass(frozen=True)
class RowNumbers:
    """Which rows make some batches of one length.

    Attributes:
        padded: numbers of rows (batches, padded rows); the last real one is repeated.
        real: how many rows of each batch are real.
        wanted: which of the batches are.
    """

    padded: np.ndarray
    real: int
    wanted: range


def _padded(rows: np.ndarray, multiple_of: int) -> np.ndarray:
    return np.concatenate([rows, np.repeat(rows[:, -1:], -rows.shape[1] % multiple_of, axis=1)], axis=1)


def check_batch_size(batch_size: Any, argument: str = "batch_size", default: int = 32) -> int:
    """`batch_size`, the value of `argument`, or for None the default; Keras's is 32.

    Raises:
        DataError: it is not a positive integer.
    """
    if batch_size is None:
        return default
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise DataError(
            f"`{argument}` is not a number of rows",
            given=f"{argument}={batch_size!r}",
            expected="an integer of at least 1: the rows of one step on all devices together",
            fix=f"for example {argument}=128",
        )
    return int(batch_size)


def _as_arrays(value: Any, argument: str) -> Any:
    # JAX is about to refuse iterators inside a tree with an error of its own
    leaves, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: isinstance(node, Iterator))
    return treedef.unflatten([_as_array(leaf, _name(argument, path)) for path, leaf in leaves])


def _name(argument: str, path: Any) -> str:
    parts = _paths.parts_of(path)
    return argument + "".join(f"[{part!r}]" for part in parts)


def _as_array(leaf: Any, name: str) -> np.ndarray:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise DataError(
            f"{name} is not an array",
            given=f"{leaf!r:.60} of type {type(leaf).__name__}",
            expected="numpy or jax arrays, or dicts, lists and tuples of them",
            fix=f"np.asarray({name})" if isinstance(leaf, int | float) else f"turn {name} into a numpy array",
        )
    array = np.asarray(leaf)
    is_numeric = array.dtype == np.bool_ or jax.numpy.issubdtype(array.dtype, jax.numpy.number)
    if array.ndim == 0 or not is_numeric:
        raise DataError(
            f"{name} cannot be batched",
            given=f"shape {array.shape}, dtype {array.dtype}",
            expected="numbers or booleans with the examples along the first dim",
            fix=f"convert it first, for example {name}.astype('float32')" if array.ndim else f"{name}[None]",
        )
    return array


def _common_length(arrays: tuple[Any, Any, Any], name: str) -> int:
    lengths = {
        _name(f"{name}{argument}", path): len(leaf)
        for argument, tree in zip(("x", "y", "sample_weight"), arrays, strict=True)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    if not jax.tree.leaves(arrays[0]):
        raise DataError(
            f"{name}x holds no array",
            given=f"{arrays[0]!r}",
            expected="an array with the examples along the first dim, or a pytree of them",
            fix="pass the inputs as x",
        )
    first, length = next(iter(lengths.items()))
    for other, other_length in lengths.items():
        if other_length != length:
            raise DataError(
                f"{first} and {other} have different lengths",
                given=f"{first}: {length} rows, {other}: {other_length} rows",
                expected="one row in each for every example",
                fix=f"check how {other} was made; the lengths must be equal",
            )
    if length == 0:
        raise DataError(
            f"the {name}data set is empty",
            given=f"{first} with 0 rows",
            expected="at least one row",
            fix="check the path or filter that made it",
        )
    return length
