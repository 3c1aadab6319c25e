"""`PyDataset`: batches that are computed by number."""

from __future__ import annotations

from keras_dist._support.types import PyTree


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
