"""Arrays of other libraries as numpy's: recognised by what they can do, so that none is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_dist._operators import native


def to_host(leaf: Any) -> Any:
    """An array of any library as one of numpy, of its own memory where that can be; what is no array as it is.

    Tensors of torch and TensorFlow, arrays of JAX, columns and tables of pandas; sparse matrices of scipy become
    `SparseRows`.
    """
    if isinstance(leaf, np.ndarray):
        return native(leaf)
    if isinstance(leaf, SparseRows):
        return leaf
    if hasattr(leaf, "tocsr"):
        return SparseRows(leaf.tocsr()) if leaf.ndim == 2 else leaf.toarray()
    if hasattr(leaf, "detach"):
        return leaf.detach().cpu().numpy()
    if hasattr(leaf, "to_numpy"):
        return leaf.to_numpy()
    return np.asarray(leaf) if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else leaf


class SparseRows:
    """The rows of a sparse matrix, which become dense where they are taken: to a model, an array like others.

    Args:
        matrix: of scipy, in the CSR format.

    Attributes:
        shape: (rows, columns).
        dtype: of the elements.
        ndim: 2.
        size: of all elements, the zeros among them.
        nbytes: of all elements as a dense array.
    """

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
        """These rows, dense: of the shape of `rows`, and the columns."""
        del axis  # the rows; as of numpy
        return self._matrix[rows.ravel()].toarray().reshape(*rows.shape, self.shape[1])

    def copy(self) -> np.ndarray:
        """All rows, dense."""
        return self._matrix.toarray()
