"""Global batches: arrays over the devices of all processes, made of the rows of each process."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from keras_dist._support import tree_paths
from keras_dist._support.arguments import check_int
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist.data.conversion import SparseRows, as_array, dense
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.process_rows import BatchSlice, process_rows, wrong_rows
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import DataError, with_type
from keras_dist.jobs import job


def global_batch(arrays: PyTree, layouts: PyTree, global_rows: int, *, copy: bool = True) -> PyTree:
    """Make global arrays of the rows of each process. All processes of the mesh must call it.

    Args:
        arrays: a pytree of arrays (rows of this process, ...), in the order of `process_rows`; other dims are whole.
        layouts: one layout for all arrays, or a prefix pytree of layouts: a `NamedSharding`, a `TensorLayout`, or a
            distribution for its data layout of each array.
        global_rows: number of rows of the global batch, including padding.
        copy: whether to copy the rows first. With False, JAX may use their memory, which must not be changed
            afterwards.

    Returns:
        `jax.Array`s (global_rows, ...) in the structure of `arrays`; in one process placed as by `jax.device_put`.

    Raises:
        DataError: a leaf is not an array with rows, or has another number of rows than this process owns (names all
            such leaves); or the layouts do not divide the rows, have another structure, or have more dims than their
            array.

    Source: `jax.make_array_from_process_local_data`.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(arrays)
    names = ["batch" + "".join(f"[{part!r}]" for part in tree_paths.parts_of(path)) for path, _ in paths]
    leaves = [_checked(leaf, name) for (_, leaf), name in zip(paths, names, strict=True)]
    shardings = [
        _sharding(layout, leaf, name)
        for layout, leaf, name in zip(_broadcast(layouts, arrays), leaves, names, strict=True)
    ]
    owned = [process_rows(sharding, global_rows) for sharding in shardings]
    wrong = [place for place, leaf in enumerate(leaves) if not len(leaf) == len(owned[place]) > 0]
    if wrong:
        handed = {names[place]: len(leaves[place]) for place in wrong}
        raise wrong_rows(handed, owned[wrong[0]], global_rows, jax.process_index())
    placed = [
        jax.make_array_from_process_local_data(
            sharding, np.array(leaf) if copy else np.asarray(leaf), (global_rows, *leaf.shape[1:])
        )
        for leaf, sharding in zip(leaves, shardings, strict=True)
    ]
    return treedef.unflatten(placed)


def global_portion(array: np.ndarray, sharding: jax.sharding.Sharding, portion: BatchSlice, dim: int = 0) -> jax.Array:
    """Return a global array made of the rows of each process, along `dim`. All processes of the mesh must call it."""
    positions = portion.positions if array.shape[dim] == len(portion.positions) else np.empty(0, np.intp)

    def part(index: Any) -> np.ndarray:
        start, stop, _ = index[dim].indices(portion.padded)
        first = int(np.searchsorted(positions, start))
        last = first + stop - start - 1
        if len(positions) <= last or (positions[first], positions[last]) != (start, stop - 1):  # wrong ownership
            rows, handed = np.arange(start, stop), {"a batch": array.shape[dim]}
            raise wrong_rows(handed, rows, portion.padded, job.process_index())
        return array[(*index[:dim], slice(first, last + 1), *index[dim + 1 :])]

    shape = (*array.shape[:dim], portion.padded, *array.shape[dim + 1 :])
    return jax.make_array_from_callback(shape, sharding, part)


def _checked(leaf: PyTree, name: str) -> jax.Array | np.ndarray:
    if getattr(leaf, "shape", ()):
        return leaf
    raise DataError(f"{name} must have rows along the first dim", given=with_type(leaf), fix=f"np.asarray({name})")


def _broadcast(layouts: PyTree, arrays: PyTree) -> list[Any]:
    try:
        nested = jax.tree.map(lambda layout, tree: jax.tree.map(lambda _: layout, tree), layouts, arrays)
    except ValueError as error:
        given = f"layouts of structure {jax.tree.structure(layouts)}, arrays {jax.tree.structure(arrays)}"
        fix = "give one layout for all arrays"
        raise DataError("the layouts must be a prefix of the tree of arrays", given=given, fix=fix) from error
    return jax.tree.leaves(nested)


def _sharding(layout: Any, leaf: jax.Array | np.ndarray, name: str) -> jax.sharding.Sharding:
    sharding = layout.get_data_layout(leaf.shape) if hasattr(layout, "get_data_layout") else layout
    if isinstance(sharding, TensorLayout):
        sharding = sharding.backend_layout
    if isinstance(sharding, jax.sharding.NamedSharding) and len(tuple(sharding.spec)) > leaf.ndim:
        given = f"{sharding.spec} for shape {tuple(leaf.shape)}"
        fix = "give each array its own layout, or the distribution for all of them"
        raise DataError(f"the layout of {name} must have at most {leaf.ndim} entries", given=given, fix=fix)
    return sharding


def prefetch_to_mesh(batches: Iterable[PyTree], distribution: Distribution, size: int = 2) -> Iterator[PyTree]:
    """Place batches on the mesh ahead of their use.

    Args:
        batches: pytrees of arrays (rows, ...) of any library; for example from a `DataLoader`. Rows are copied, so that
            a buffer may be reused.
        distribution: shards the batch dim. A batch whose rows it does not divide, such as the last one, is replicated;
            results are the same.
        size: number of batches that are placed or being placed, including the returned one.

    Returns:
        The batches in order, as pytrees of `jax.Array`.

    Raises:
        DataError: `size` is not a positive integer, or a leaf is not an array of numbers with rows.

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
