"""`prefetch_to_mesh`: batches that are placed on the devices ahead of a custom loop."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

import jax

from keras_dist._support.arguments import check_int
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.data.conversion import SparseRows, as_array, dense
from keras_dist.data.global_arrays import global_batch
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import DataError


def prefetch_to_mesh(batches: Iterable[PyTree], distribution: Distribution, size: int = 2) -> Iterator[PyTree]:
    """Place batches on the mesh, some of them ahead of their use.

    Args:
        batches: pytrees of arrays (rows, ...) of any library; for example from a `DataLoader`. Rows are copied, so that
            a buffer may be reused.
        distribution: says how the batch dim is sharded. A batch whose rows it does not divide, such as a last one, is
            replicated; results are the same.
        size: number of batches that are placed or being placed, including the one that is returned.

    Returns:
        The batches in order, as pytrees of `jax.Array`.

    Raises:
        DataError: `size` is no positive integer, or a leaf is no array of numbers with rows.

    Source: `flax.jax_utils.prefetch_to_device`.
    """
    size = check_int("size", size, 1, example=2, error=DataError)
    return _prefetched(iter(batches), distribution, size)


def _prefetched(batches: Iterator[PyTree], distribution: Distribution, size: int) -> Iterator[PyTree]:
    waiting: collections.deque[PyTree] = collections.deque()
    for number, batch in enumerate(batches):
        waiting.append(_placed(batch, number, distribution))
        del batch
        if len(waiting) == size:
            yield waiting.popleft()
    yield from waiting


def _placed(batch: PyTree, number: int, distribution: Distribution) -> PyTree:
    def place(leaf: ArrayLike | SparseRows) -> jax.Array:
        array = dense(as_array(leaf, f"a leaf of batch {number}"))
        layout = distribution.get_data_layout(array.shape)
        mesh = distribution.device_mesh
        if len(array) % mesh.axis_size(layout.axes[0]):
            layout = TensorLayout.replicated(array.ndim, mesh)
        return global_batch(array, layout, len(array))

    return jax.tree.map(place, batch)
