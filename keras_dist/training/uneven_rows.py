"""Batches whose rows the mesh does not divide: what they are padded to, and where their real rows are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._types import PyTree
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.tracing import batch_shards
from keras_dist.errors import ModelError
from keras_dist.layers import call_context
from keras_dist.training.activations import input_layout, input_names


def rows_multiple(x: PyTree, distribution: Distribution) -> int:
    """The number that the rows of a batch of inputs like `x` must be a multiple of to be placed evenly."""
    mesh = distribution.device_mesh
    named = zip(input_names(x), jax.tree.leaves(x), strict=True)
    layouts = [input_layout(name, leaf.shape, distribution) for name, leaf in named]
    return math.lcm(*(mesh.axis_size(layout.axes[0]) for layout in layouts), batch_shards(distribution))


def real_rows(arrays: PyTree, rows: int, distribution: Distribution) -> PyTree:
    """The first rows of each array, without the padding (traced).

    Where the batch is split over some axes of the mesh and repeated over others, rows that do not divide evenly are
    put on every device: XLA's partitioner counts padding in scatters of such arrays, as in the gradient of an
    embedding.
    """
    mesh = distribution.device_mesh
    repeated = batch_shards(distribution) != mesh.size

    def cut(array: Any) -> Any:
        if len(array) == rows:
            return array
        real = array[:rows]
        replicated = jax.sharding.NamedSharding(mesh.backend_mesh, jax.sharding.PartitionSpec())
        return jax.lax.with_sharding_constraint(real, replicated) if repeated else real

    return jax.tree.map(cut, arrays)


def over_padded_rows(
    call: Callable[[PyTree], PyTree], inputs: PyTree, multiple: int, distribution: Distribution
) -> PyTree:
    """The outputs of `call` for the rows of `inputs`, which are padded in it to a multiple (traced).

    Added rows repeat the last one. They are cut off the outputs, so that neither losses nor metrics see them.
    """
    rows = next((len(leaf) for leaf in jax.tree.leaves(inputs) if np.ndim(leaf)), 0)
    added = -rows % multiple

    def pad(leaf: Any) -> Any:
        if not np.ndim(leaf) or len(leaf) != rows:
            return leaf
        padded = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], added, axis=0)])
        return jax.lax.with_sharding_constraint(padded, distribution.get_data_layout(padded.shape).backend_layout)

    if not added:
        return call(inputs)
    outputs = call(_with_masks(pad, inputs))
    for path, leaf in jax.tree_util.tree_leaves_with_path(outputs):
        if not np.ndim(leaf) or len(leaf) != rows + added:
            raise ModelError(
                f'uneven="pad": output {jax.tree_util.keystr(path) or "of the model"} has no row for each example',
                given=f"shape {np.shape(leaf)} for {rows} rows, padded to {rows + added}",
                expected=f"shape ({rows + added}, ...), of which the added rows can be cut off",
                fix="return outputs with the batch along the first dim; compute one number for the batch in the loss, "
                "which sees the real rows alone",
            )
    return _with_masks(lambda leaf: real_rows(leaf, rows, distribution), outputs)


def _with_masks(change: Callable[[Any], Any], tensors: PyTree) -> PyTree:
    """Change tensors, and in the same way the masks that the current call has of them."""
    changed, context = jax.tree.map(change, tensors), call_context.current()
    if context is not None:
        masks = context.mask_of(tensors)
        context.set_mask(changed, jax.tree.map(change, masks) if jax.tree.leaves(masks) else None)
    return changed
