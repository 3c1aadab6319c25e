"""Batches whose rows the mesh does not divide: padding, and removal of the padding.

Weights of 0 for padded rows would need losses by row and would change divisors. So the rows are padded around the call
of the module alone and cut off its outputs, and losses and metrics of any kind stay exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist._unstable import jax_internals
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import batch_shards
from keras_dist.errors import ModelError
from keras_dist.training.activations import input_layout, input_names
from keras_dist.variables import call_context


def rows_multiple(x: PyTree, distribution: Distribution) -> int:
    """Return the number that must divide the rows of a batch of inputs like `x`, so that they are placed evenly."""
    mesh = distribution.device_mesh
    named = zip(input_names(x), jax.tree.leaves(x), strict=True)
    layouts = [input_layout(name, leaf.shape, distribution) for name, leaf in named]
    return math.lcm(*(mesh.axis_size(layout.axes[0]) for layout in layouts), batch_shards(distribution))


def real_rows(arrays: PyTree, rows: int, distribution: Distribution) -> PyTree:
    """Return the first rows of each array, without the padding (traced)."""
    mesh = distribution.device_mesh
    # XLA's partitioner counts padding in scatters, as in the gradient of an embedding, of arrays that are sharded over
    # some axes and replicated over others
    repeated = batch_shards(distribution) != mesh.size

    def cut(array: Any) -> Any:
        if len(array) == rows:
            return array
        real = array[:rows]
        replicated = jax.sharding.NamedSharding(mesh.backend_mesh, jax.sharding.PartitionSpec())
        return jax.lax.with_sharding_constraint(real, replicated) if repeated else real

    return jax.tree.map(cut, arrays)


def over_padded_rows(
    call: Callable[[PyTree], PyTree],
    inputs: PyTree,
    multiple: int,
    distribution: Distribution,
    call_copy: Callable[[PyTree], PyTree] | None = None,
) -> tuple[PyTree, PyTree]:
    """Return the outputs of `call` for padded rows of `inputs`, and which outputs have rows (traced).

    Added rows repeat the last row. They are cut off the outputs, so that neither losses nor metrics see them. Outputs
    whose shape does not depend on the number of rows, as `call_copy` shows, have no rows, and are returned unchanged.
    """
    rows = next((len(leaf) for leaf in jax.tree.leaves(inputs) if np.ndim(leaf)), 0)
    added = -rows % multiple

    def pad(leaf: Any, added: int = added) -> Any:
        if not added or not np.ndim(leaf) or len(leaf) != rows:
            return leaf
        padded = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], added, axis=0)])
        return jax.lax.with_sharding_constraint(padded, distribution.get_data_layout(padded.shape).backend_layout)

    def check(path: Any, output: Any, other: Any = None) -> bool:
        """Whether the output has rows, given its value for more rows."""
        if np.shape(output)[:1] == (rows + added,) and (other is None or len(other) == rows + added + multiple):
            return True
        if other is not None and np.shape(output) == np.shape(other):
            return False
        summary = f'uneven="pad": output {jax.tree_util.keystr(path) or "of the model"} has no row for each example'
        fix = "return outputs with the batch along the first dim; compute one number for the batch in the loss"
        raise ModelError(summary, given=f"shape {np.shape(output)} for {rows} rows, padded to {rows + added}", fix=fix)

    def cut(output: Any, has_rows: bool) -> Any:
        return _with_masks(lambda leaf: real_rows(leaf, rows, distribution), output) if has_rows else output

    if call_copy is None and not added:
        return call(inputs), None
    outputs = call(_with_masks(pad, inputs))
    others = []
    if call_copy is not None:
        longer = jax.tree.map(lambda leaf: pad(leaf, added + multiple), inputs)
        is_traced = any(map(jax_internals.is_traced, jax.tree.leaves(inputs)))  # else the module may read values
        others = [jax.eval_shape(call_copy, longer) if is_traced else call_copy(longer)]
    has_rows = jax.tree_util.tree_map_with_path(check, outputs, *others)
    return (jax.tree.map(cut, outputs, has_rows) if added else outputs), has_rows


def check_have_rows(outputs: PyTree, has_rows: PyTree, measured: PyTree) -> None:
    """Check that outputs with a loss or a metric have rows."""
    needed = {id(leaf) for leaf in jax.tree.leaves(measured)}
    for (path, output), has in zip(
        jax.tree_util.tree_leaves_with_path(outputs), jax.tree.leaves(has_rows), strict=True
    ):
        if not has and id(output) in needed:
            name = jax.tree_util.keystr(path) or "of the model"
            summary = f'uneven="pad": output {name} has a loss or a metric, but no row for each example'
            fix = "put the batch along the first dim; or name only the other outputs, as in loss={'name': ...}"
            raise ModelError(summary, given=f"shape {np.shape(output)}, whatever the number of rows", fix=fix)


def _with_masks(change: Callable[[Any], Any], tensors: PyTree) -> PyTree:
    """Change tensors, and in the same way their masks in the current call."""
    changed, context = jax.tree.map(change, tensors), call_context.current()
    if context is not None:
        masks = context.mask_of(tensors)
        context.set_mask(changed, jax.tree.map(change, masks) if jax.tree.leaves(masks) else None)
    return changed
