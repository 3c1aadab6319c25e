"""States that recurrent layers with `stateful=True` keep between batches."""

from __future__ import annotations

import math
from typing import Any

import jax

from keras_dist._support.types import PyTree, Shape
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import ModelError
from keras_dist.layers.layer import Layer
from keras_dist.symbolic.shape_tracing import is_unknown
from keras_dist.variables.variable import Variable


def create_states(layer: Layer, states: PyTree, sequences_shape: Shape) -> list[Variable]:
    """Create a non-trainable weight (batch, size) for each state, sharded as the batch."""
    if is_unknown(sequences_shape[0]):
        rest = ", ".join("None" if is_unknown(size) else str(size) for size in sequences_shape[1:])
        given = f"sequences of shape (None, {rest})"
        fix = f"Input(batch_shape=(32, {rest})), or model.build((32, {rest})) for a model without Input"
        raise ModelError(f"layer {layer.name!r} with `stateful=True` needs a fixed batch size", given=given, fix=fix)
    distribution = current_distribution()
    batch_axes = None if distribution is None else distribution.batch_dim_name
    found = []
    for state in jax.tree.leaves(states):
        layout = None
        if distribution is not None and batch_axes is not None:
            axes = (batch_axes,) if isinstance(batch_axes, str) else batch_axes
            count = math.prod(distribution.device_mesh.axis_size(axis) for axis in axes)
            is_even = state.shape[0] % count == 0
            layout = (batch_axes, *[None] * (state.ndim - 1)) if is_even else None
        weight = layer.add_weight(
            state.shape,
            lambda shape, dtype, key=None, state=state: state.astype(dtype),
            trainable=False,
            autocast=False,
            name="rnn_state",
            layout=layout,
        )
        weight.set_metadata("changes_always", True)
        found.append(weight)
    return found


def check_batch(layer: Layer, sequences: jax.Array, states: list[Any]) -> None:
    """Check that a batch has as many rows as the states."""
    rows = states[0].shape[0]
    if sequences.shape[0] != rows:
        summary = f"layer {layer.name!r} with `stateful=True` keeps states of batches of {rows} rows"
        fix = f"batch_size={rows}, and a number of examples that it divides"
        raise ModelError(summary, given=f"sequences of shape {sequences.shape}", fix=fix)
