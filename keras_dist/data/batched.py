"""`PyDataset` and `BatchedDataset`: batches that are computed, or rows that are read, by number."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_option, is_int
from keras_dist._support.types import PyTree
from keras_dist.data.source import order_of, register_source
from keras_dist.data.streams import NumberedSource, read_in_threads
from keras_dist.errors import DataError, shorten

_MOST_THREADS = 8


class BatchedDataset:
    """Batches of rows that are read by number: an iterable of numpy arrays, for `fit` and other loops.

    If `shuffles`, `fit` reads the rows in another order in each epoch, the same in all processes and after a restart.

    Args:
        read: `read(numbers)` returns a batch of the rows with these numbers: `x` or `(x, y)`.
        numbers: numbers of the rows, in the order of iteration.
        batch_size: number of rows in a batch; None for single rows.
        shuffles: whether `fit` shuffles the rows.
        **attributes: attributes of the dataset, such as `class_names`.

    Attributes:
        class_names: names of the classes; None without labels.
        file_paths: the files, in the order of the rows.
    """

    class_names: list[str] | None = None
    file_paths: list[str] | None = None

    def __init__(
        self,
        read: Callable[[np.ndarray], PyTree],
        numbers: np.ndarray,
        batch_size: int | None,
        shuffles: bool,
        **attributes: Any,
    ) -> None:
        if batch_size is not None:
            check_int("batch_size", batch_size, 1, alternative="None", example=32, error=DataError)
        self._read, self._numbers, self._maps = read, np.asarray(numbers), ()
        self.batch_size, self.shuffles = batch_size, bool(shuffles)
        vars(self).update(attributes)

    def __len__(self) -> int:
        """Return the number of batches; without `batch_size`, of rows."""
        return -(-len(self._numbers) // (self.batch_size or 1))

    def cardinality(self) -> int:
        """Return the number of batches, as in `tf.data`."""
        return len(self)

    def __iter__(self) -> Iterator[PyTree]:
        """Iterate over the batches."""
        return self.batches(self._numbers)

    def __getitem__(self, index: int) -> PyTree:
        """Return a batch by number."""
        if not is_int(index, -len(self), len(self) - 1):
            raise IndexError(f"batch {index!r} of {len(self)}")
        size = self.batch_size or 1
        start = int(index) % len(self) * size
        return self._batch(self._numbers[start : start + size])

    def batches(self, numbers: np.ndarray, skip: int = 0) -> Iterator[PyTree]:
        """Yield batches of the rows with these numbers, except the first `skip`; threads read ahead."""
        size = self.batch_size or 1
        count = max(-(-len(numbers) // size) - skip, 0)
        threads = min(_MOST_THREADS, os.cpu_count() or 1)

        def read(index: int) -> PyTree:
            start = (index + skip) * size
            return self._batch(numbers[start : start + size])

        return read_in_threads(read, count, threads, threads)

    def order(self, shuffle_key: tuple[int, ...] | None) -> np.ndarray:
        """Return the numbers of the rows in the order of one pass of `fit`."""
        if shuffle_key is None or not self.shuffles:
            return self._numbers
        return self._numbers[order_of(len(self._numbers), shuffle_key)]

    def map(self, function: Callable[..., PyTree], *args: Any, **kwargs: Any) -> Self:
        """Return a dataset of `function(batch)`, or of `function(x, y)` if it has two arguments.

        Args:
            function: function of a batch.
            *args: ignored, as `num_parallel_calls` of `tf.data`.
            **kwargs: ignored.
        """
        return self._with(_maps=(*self._maps, _of_batches(function)))

    def take(self, count: int) -> Self:
        """Return a dataset of the first `count` batches."""
        return self._rows(slice(count * (self.batch_size or 1)))

    def skip(self, count: int) -> Self:
        """Return a dataset without the first `count` batches."""
        return self._rows(slice(count * (self.batch_size or 1), None))

    def batch(self, batch_size: int) -> Self:
        """Return a dataset of batches, from a dataset of single rows."""
        if self.batch_size is not None:
            given = f"a dataset of batches of {self.batch_size} rows"
            fix = "make it with batch_size=None"
            raise DataError("batch() must be called on a dataset of single rows", given=given, fix=fix)
        return self._with(batch_size=check_int("batch_size", batch_size, 1, error=DataError))

    def prefetch(self, buffer_size: Any = None) -> Self:
        """Return the dataset itself, which always reads ahead."""
        return self

    def cache(self, filename: str = "") -> Self:
        """Return the dataset itself; files are read again in each epoch."""
        return self

    def _batch(self, numbers: np.ndarray) -> PyTree:
        batch = self._read(numbers)
        if self.batch_size is None:
            batch = tuple(part[0] for part in batch) if isinstance(batch, tuple) else batch[0]
        for function in self._maps:
            batch = function(batch)
        return batch

    def _rows(self, part: slice) -> Self:
        paths = None if self.file_paths is None else self.file_paths[part]
        return self._with(_numbers=self._numbers[part], file_paths=paths)

    def _with(self, **attributes: Any) -> Self:
        same = copy.copy(self)
        vars(same).update(attributes)
        return same

    def __repr__(self) -> str:
        classes = "" if self.class_names is None else f", classes {shorten(self.class_names)}"
        return f"<{type(self).__name__} of {len(self)} batches, {len(self._numbers)} rows{classes}>"


@register_source
class BatchedSource(NumberedSource):
    """Batches of a `BatchedDataset`, shuffled by row in each epoch."""

    def __init__(self, dataset: BatchedDataset, name: str = "") -> None:
        if dataset.batch_size is None:
            dataset = dataset.batch(32)
        super().__init__(dataset, name)

    @classmethod
    def recognises(cls, x: Any) -> bool:
        """Whether `x` is a `BatchedDataset`."""
        return isinstance(x, BatchedDataset)

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return len(self._dataset)

    @property
    def is_endless(self) -> bool:
        """False."""
        return False

    def open(self, shuffle_key: tuple[int, ...] | None, skip: int = 0, state: Any = None) -> Iterator[PyTree]:
        """Iterate over the batches of one pass."""
        return self._dataset.batches(self._dataset.order(shuffle_key), skip)


def _of_batches(function: Callable[..., PyTree]) -> Callable[[PyTree], PyTree]:
    """Return a function of a batch, which passes x and y separately if `function` has two arguments."""
    try:
        named = inspect.signature(function).parameters.values()
        positional = [p for p in named if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        apart = sum(p.default is p.empty for p in positional) > 1
    except (TypeError, ValueError):
        apart = False
    return lambda batch: function(*batch) if apart and isinstance(batch, tuple) else function(batch)


def split_dataset(
    dataset: Any,
    left_size: float | None = None,
    right_size: float | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    preferred_backend: str | None = None,
) -> tuple[BatchedDataset, BatchedDataset]:
    """Split a dataset into its first and its last rows, two datasets of single rows.

    Args:
        dataset: an array, a tuple or list of arrays, or an object with `__len__` that yields examples.
        left_size: size of the first dataset: a number of rows, or a fraction; by default the remainder.
        right_size: the same for the second dataset.
        shuffle: whether to shuffle rows before.
        seed: seed of the order.
        preferred_backend: ignored.

    Raises:
        DataError: a size is invalid, or leaves no row.

    Example:
        >>> import numpy as np
        >>> left, right = split_dataset((np.arange(10), np.arange(10) ** 2), left_size=0.8)
        >>> len(left), list(right.batch(2))
        (8, [(array([8, 9]), array([64, 81]))])
    """
    rows: Any = dataset if isinstance(dataset, tuple | list) and hasattr(dataset[0], "shape") else None
    parts = tuple(map(np.asarray, rows)) if rows is not None else None
    if parts is None:
        parts = (np.asarray(dataset),) if hasattr(dataset, "shape") else _stacked(dataset)
    count = len(parts[0])
    left, right = _sizes(left_size, right_size, count)
    order = np.arange(count)
    if shuffle:
        np.random.default_rng(seed).shuffle(order)

    def read(numbers: np.ndarray) -> PyTree:
        taken = [part[numbers] for part in parts]
        return tuple(taken) if len(taken) > 1 or isinstance(dataset, tuple) else taken[0]

    first, last = order[:left], order[count - right :]
    return BatchedDataset(read, first, None, shuffle), BatchedDataset(read, last, None, shuffle)


def _stacked(dataset: Any) -> tuple[np.ndarray, ...]:
    examples = [dataset[index] for index in range(len(dataset))] if hasattr(dataset, "__getitem__") else list(dataset)
    if not examples:
        raise argument_error("dataset", dataset, "a dataset with at least one example", error=DataError)
    if isinstance(examples[0], tuple):
        return tuple(map(np.stack, zip(*examples, strict=True)))
    return (np.stack(examples),)


def _sizes(left: Any, right: Any, count: int) -> tuple[int, int]:
    given = f"left_size={left!r}, right_size={right!r} of {count} rows"
    sizes: list[int | None] = []
    for size in (left, right):
        is_part = isinstance(size, float) and 0 < size < 1
        if size is not None and not is_part and not is_int(size, 1, count - 1):
            raise _no_split(given)
        sizes.append(None if size is None else round(size * count) if is_part else int(size))
    first, last = sizes
    if first is None and last is None:
        raise _no_split(given)
    first = count - (last or 0) if first is None else first
    last = count - first if last is None else last
    if first < 1 or last < 1 or first + last > count:
        raise _no_split(given)
    return first, last


def _no_split(given: str) -> DataError:
    fix = "give numbers of rows, or parts between 0 and 1, for example left_size=0.8"
    return DataError("split_dataset: both parts must have at least one row", given=given, fix=fix)


def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    format: str = "tf",
) -> BatchedDataset:
    """Return a dataset of windows of a series, with the target of each.

    Args:
        data: the steps of the series, (steps, ...).
        targets: `targets[i]` belongs to the window that begins at step i; None for no targets.
        sequence_length: number of steps in a window.
        sequence_stride: number of steps between the beginnings of two windows.
        sampling_rate: number of steps of the series between two steps of a window.
        batch_size: number of windows in a batch; None for single windows.
        shuffle: whether to shuffle windows.
        seed: seed of their order.
        start_index: first step to use; by default 0.
        end_index: step after the last one to use; by default the number of steps.
        format: `"tf"` or `"grain"`; the result is the same.

    Returns:
        A dataset of numpy arrays `(x, y)`, x of shape (batch, sequence_length, ...); without targets, of x.

    Raises:
        DataError: there is not one window.

    Example:
        >>> import numpy as np
        >>> dataset = timeseries_dataset_from_array(np.arange(6), np.arange(6) * 10, sequence_length=3, batch_size=2)
        >>> next(iter(dataset))
        (array([[0, 1, 2],
               [1, 2, 3]]), array([ 0, 10]))
    """
    check_option("format", format, ("tf", "grain"), error=DataError)
    check_int("sequence_length", sequence_length, 1, error=DataError)
    check_int("sequence_stride", sequence_stride, 1, error=DataError)
    check_int("sampling_rate", sampling_rate, 1, error=DataError)
    steps = np.asarray(data)
    total = len(steps)
    first = check_int("start_index", start_index or 0, 0, total, error=DataError)
    last = check_int("end_index", total if end_index is None else end_index, first, total, error=DataError)
    count = last - first
    starts = np.arange(0, count - (sequence_length - 1) * sampling_rate, sequence_stride)
    known = None if targets is None else np.asarray(targets)[first:]
    if known is not None:
        starts = starts[starts < len(known)]
    if not len(starts):
        given = f"{count} steps, sequence_length={sequence_length}, sampling_rate={sampling_rate}"
        raise DataError("the series is shorter than one window", given=given, fix="shorter windows, or a longer series")
    if shuffle:
        np.random.RandomState(seed).shuffle(starts)
    steps, offsets = steps[first:last], np.arange(sequence_length) * sampling_rate

    def read(numbers: np.ndarray) -> PyTree:
        windows = steps[numbers[:, None] + offsets]
        return windows if known is None else (windows, known[numbers])

    return BatchedDataset(read, starts, batch_size, shuffle)


class PyDataset:
    """Base class of datasets that compute batches by index. Subclasses define `__getitem__` and `__len__`.

    Without `__len__` (or if `num_batches` is None) the batches never end, and `fit` needs `steps_per_epoch`.

    Args:
        workers: number of threads that read batches; 1 reads them in the thread that trains. Several need a thread-safe
            `__getitem__`.
        use_multiprocessing: accepted for compatibility with Keras; workers are always threads.
        max_queue_size: number of batches that several workers read ahead.

    Example:
        >>> import numpy as np
        >>> from keras_dist.data import PyDataset
        >>> class Squares(PyDataset):
        ...     def __len__(self):
        ...         return 10
        ...     def __getitem__(self, index):
        ...         x = np.arange(index * 8, index * 8 + 8, dtype="float32")
        ...         return x[:, None], x[:, None] ** 2
    """

    def __init__(self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10) -> None:
        self.workers = workers
        self.use_multiprocessing = use_multiprocessing
        self.max_queue_size = max_queue_size

    def __getitem__(self, index: int) -> PyTree:
        """Return batch `index`: `x`, `(x, y)` or `(x, y, sample_weight)`."""
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__(self, index)")

    @property
    def num_batches(self) -> int | None:
        """Number of batches; None if they never end."""
        return len(self) if hasattr(self, "__len__") else None  # type: ignore[arg-type]

    def on_epoch_begin(self) -> None:
        """Called before every epoch."""

    def on_epoch_end(self) -> None:
        """Called after every epoch, for example to change the data."""
