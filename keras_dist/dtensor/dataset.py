"""`DTensorDataset`: batches of a dataset as arrays with layouts."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import argument_error, check_int
from keras_dist._support.types import PyTree
from keras_dist.data.conversion import leaf_name, to_host
from keras_dist.distribution.lint import check_layout, report
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.dtensor.layout import Layout, Mesh
from keras_dist.dtensor.tensors import checked_layout, host_array, shown
from keras_dist.errors import DataError, LayoutError, shorten


class DTensorDataset:
    """Batches of equal size of a dataset, as arrays with layouts. Iterable as often as the dataset.

    In a job of several processes all iterate the same data, and each places the shards of its devices.

    Args:
        dataset: an iterable of examples, such as a `tf.data.Dataset`, or a sequence with `__len__` and `__getitem__`.
            An example is an array, or a dict, list or tuple of arrays, of NumPy or another library.
        mesh: the mesh of the layouts.
        layouts: a layout for each array of a batch, in the structure of the examples. The first entry shards the rows.
        global_batch_size: number of examples in a batch. A partial batch at the end is dropped.
        dataset_already_batched: whether `dataset` yields batches. They are joined in order until `global_batch_size`
            rows are reached.
        batch_dim: the dim of the mesh over which rows are sharded. If given, all layouts must begin with it.
        prefetch: number of batches to place on the devices ahead of time.

    Raises:
        LayoutError: a layout is on another mesh, does not begin with `batch_dim`, or does not divide the batch.
        DataError: an example does not have the structure of the layouts, or differs from the others in shape or dtype;
            or batches do not add up to `global_batch_size`.

    Example:
        >>> import numpy as np
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 8)])
        >>> rows = [{"x": np.full(3, i), "y": i} for i in range(100)]
        >>> layouts = {"x": dtensor.Layout(["batch", dtensor.UNSHARDED], mesh), "y": dtensor.Layout(["batch"], mesh)}
        >>> batches = dtensor.DTensorDataset(rows, mesh=mesh, layouts=layouts, global_batch_size=32, batch_dim="batch")
        >>> len(batches), [batch["x"].shape for batch in batches]
        (3, [(32, 3), (32, 3), (32, 3)])

    Differs from DTensor: rows keep the order of the dataset; TensorFlow distributes them to the replicas in turn.
    Batches of `global_batch_size` and a partial last batch are accepted. The tf.data service is not supported.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        mesh: Mesh,
        layouts: PyTree,
        global_batch_size: int,
        dataset_already_batched: bool = False,
        batch_dim: str | None = None,
        prefetch: int | None = None,
    ) -> None:
        if not hasattr(dataset, "__iter__") and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise argument_error("dataset", dataset, "an iterable of examples, or a sequence of them", error=DataError)
        self._dataset, self._is_batched = dataset, dataset_already_batched
        self._rows = check_int("global_batch_size", global_batch_size, 1, example=128, error=DataError)
        self._ahead = 0 if prefetch is None else check_int("prefetch", prefetch, 0, example=2, error=DataError)
        paths, self._structure = jax.tree_util.tree_flatten_with_path(layouts)
        self._names = [leaf_name("batch", path) for path, _ in paths]
        self._layouts = [checked_layout(layout) for _, layout in paths]
        for name, layout in zip(self._names, self._layouts, strict=True):
            self._check_layout(name, layout, mesh, batch_dim)

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: the number is not known: the dataset has no length, or yields batches.
        """
        if self._is_batched:
            raise TypeError("the length of a DTensorDataset of batches is not known: the last one may be partial")
        return len(self._dataset) // self._rows

    def __iter__(self) -> Iterator[PyTree]:
        waiting: collections.deque[PyTree] = collections.deque()
        for batch in self._batches():
            waiting.append(batch)
            if len(waiting) > self._ahead:
                yield waiting.popleft()
        yield from waiting

    def _batches(self) -> Iterator[PyTree]:
        parts: list[list[np.ndarray]] = []
        join = np.concatenate if self._is_batched else np.stack
        rows, data = 0, self._dataset
        examples = data if hasattr(data, "__iter__") else (data[index] for index in range(len(data)))
        for number, example in enumerate(examples):
            leaves = self._leaves(example, number)
            rows += len(leaves[0]) if self._is_batched else 1
            parts.append(leaves)
            if rows > self._rows:
                given = f"batches of {[len(part[0]) for part in parts]} rows, up to number {number}"
                fix = "choose another global_batch_size, or give the examples one by one"
                raise DataError(f"batches must add up to `global_batch_size`, {self._rows} rows", given=given, fix=fix)
            if rows == self._rows:
                yield self._placed([join(arrays) for arrays in zip(*parts, strict=True)])
                parts, rows = [], 0

    def _leaves(self, example: PyTree, number: int) -> list[np.ndarray]:
        """Return the arrays of an example or a batch, checked against the first one."""
        try:
            arrays = [np.asarray(to_host(leaf)) for leaf in self._structure.flatten_up_to(example)]
        except (ValueError, TypeError) as error:
            summary = "the examples of the dataset must have the structure of the layouts"
            fix = "give layouts=... in the structure of an example"
            given = f"example {number}: {shorten(example)}"
            raise DataError(summary, given=given, expected=shorten(self._structure), fix=fix) from error
        if number == 0:
            self._like = [self._kind(array) for array in arrays]
        for name, array, like in zip(self._names, arrays, self._like, strict=True):
            if self._kind(array) != like or (self._is_batched and len(array) != len(arrays[0])):
                raise DataError(
                    f"{name} of example {number} differs from the others",
                    given=f"shape {array.shape}, dtype {array.dtype}",
                    expected=f"shape {(len(arrays[0]), *like[0]) if self._is_batched else like[0]}, dtype {like[1]}",
                    fix="pad or cut the examples to one shape",
                )
        return arrays

    def _kind(self, array: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
        """Return the shape, without rows, and the dtype."""
        return array.shape[1:] if self._is_batched else array.shape, array.dtype

    def _placed(self, arrays: list[np.ndarray]) -> PyTree:
        placed: list[jax.Array] = []
        for name, array, layout in zip(self._names, arrays, self._layouts, strict=True):
            report(check_layout(name, array.shape, layout, layout.mesh, None), [], layout.mesh, strict=True)
            part = host_array(array, name).__getitem__
            placed.append(jax.make_array_from_callback(array.shape, layout.backend_layout, part))
        return self._structure.unflatten(placed)

    def _check_layout(self, name: str, layout: Layout, mesh: Mesh, batch_dim: str | None) -> None:
        given = f"{layout.sharding_specs} for {name}"
        if layout.mesh != mesh:
            summary = f"the layout of {name} is on another mesh"
            fix = "make all layouts on the mesh of the dataset"
            raise LayoutError(summary, given=f"{given}, on {shown(layout.mesh)}, not {shown(mesh)}", fix=fix)
        entry = axis_tuple(layout.axes[0]) if layout.rank else ()
        if not layout.rank or (batch_dim is not None and batch_dim not in entry):
            summary = f"the layout of {name} must begin with {batch_dim or 'an entry'!r} for the rows of the batch"
            fix = "Layout.batch_sharded(mesh, batch_dim, rank), where `rank` includes the dim of the rows"
            raise LayoutError(summary, given=given, fix=fix)
        shards = layout.num_shards(0)
        if self._rows % shards:
            summary = f"`global_batch_size` must be a multiple of {shards}, the number of shards of the rows"
            fix = f"global_batch_size={-(-self._rows // shards) * shards}"
            raise LayoutError(summary, given=f"{self._rows} rows, {given}", fix=fix)
