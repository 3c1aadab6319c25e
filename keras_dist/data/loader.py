"""`DataLoader`: batches for custom training loops, with a state that can be saved and restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from keras_dist._support.arguments import check_int
from keras_dist._support.types import PyTree
from keras_dist.data.adapters import source_of
from keras_dist.data.batch import Batch
from keras_dist.data.batching import Batching, Streaming
from keras_dist.data.conversion import Arrays, check_batch_size
from keras_dist.data.cursor import Cursor
from keras_dist.data.source import RowSource
from keras_dist.errors import DataError


class DataLoader:
    """An iterable of batches `(x, y, sample_weight)` of numpy arrays; each `iter()` is the next epoch.

    Each row is used once per epoch. Batches are global: they do not depend on the mesh or the number of processes.
    `get_state()` of an iterator returns its position, which `set_state` restores, on any mesh.

    Args:
        x: inputs, or a dataset, as for `Model.fit`.
        y: targets, or None.
        sample_weight: a weight for each example, or None.
        batch_size: number of rows per batch, by default 32; the last batch may be smaller. Not for datasets of batches.
        shuffle: whether to shuffle the rows (or the batches of a `PyDataset`) in each epoch.
        seed: seed of the order.
        drop_remainder: whether to drop a partial last batch. Not for datasets of batches.

    Raises:
        DataError: the data or an argument is invalid.

    Example:
        >>> import numpy as np
        >>> from keras_dist.data import DataLoader
        >>> loader = DataLoader(np.arange(5), batch_size=2)
        >>> batches = iter(loader)
        >>> next(batches)[0], next(batches)[0], batches.get_state()
        (array([0, 1]), array([2, 3]), {'epoch': 0, 'batch': 2, 'rows': 4, 'seed': None, 'source': None})
        >>> later = iter(DataLoader(np.arange(5), batch_size=2))
        >>> later.set_state(batches.get_state())
        >>> [x for x, *_ in later]
        [array([4])]
    """

    def __init__(
        self,
        x: PyTree,
        y: PyTree = None,
        sample_weight: PyTree = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_remainder: bool = False,
    ) -> None:
        source = source_of(x, y, sample_weight)
        if isinstance(source, RowSource):
            self._examples = Batching(source, check_batch_size(batch_size), drop_remainder=drop_remainder)
        else:
            for argument, is_given in (("batch_size", batch_size is not None), ("drop_remainder", drop_remainder)):
                if is_given:
                    given = f"{argument}, and {source.title}"
                    fix = f"leave out {argument}, and let the source make other batches"
                    raise DataError(f"`{argument}` cannot be used with a source of batches", given=given, fix=fix)
            self._examples = Streaming(source)
        self.resumes_with = source.resumes_with
        seed = check_int("seed", seed, 0, error=DataError)
        self._seed = seed if shuffle else None
        self._epoch = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch.

        Raises:
            TypeError: the length is unknown.
        """
        steps = self._examples.steps_of_epoch
        if steps is None:
            raise TypeError(f"{self._examples.source.title} does not know how many batches it has")
        return steps

    def __iter__(self) -> LoaderIterator:
        """Iterate over the next epoch."""
        cursor = Cursor(self._epoch, seed=self._seed)
        self._epoch += 1
        return LoaderIterator(self, cursor)

    def batches_from(self, start: Cursor) -> Iterator[Batch]:
        """Yield the batches of an epoch from `start` on; raises `DataError` for a position in other data."""
        if isinstance(self._examples, Batching):  # iterators check their states
            self._examples.check_position(start)
        self._epoch = start.epoch + 1
        key = None if start.seed is None else (start.seed,)
        for _, batches in self._examples.epochs(range(start.epoch, start.epoch + 1), 1, key, start=start):
            yield from batches

    def state(self) -> Any:
        """Return the state of the iterator of the dataset, as JSON; None if it has none."""
        return self._examples.state()


class LoaderIterator:
    """The batches of one epoch of a `DataLoader`."""

    def __init__(self, loader: DataLoader, cursor: Cursor) -> None:
        self._loader, self._cursor = loader, cursor
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Arrays:
        if self._batches is None:
            self._batches = self._loader.batches_from(self._cursor)
        batch = next(self._batches)
        self._cursor = self._cursor.after(batch.rows, self._loader.state())
        x, y, sample_weight = jax.tree.map(lambda leaf: leaf[: batch.rows], batch.arrays)
        return x, y, sample_weight

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last batch, as JSON values."""
        return self._cursor.to_json()

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to the position of another iterator over the same data; the loader continues with the epoch after it.

        Iterators with a state, such as grain's, are set to it; other iterables are read up to the position.
        """
        self._cursor, self._batches = Cursor.from_json(state), None
