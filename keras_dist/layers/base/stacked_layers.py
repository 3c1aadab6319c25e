"""Layers called in loop bodies, and equal layers as one layer whose weights have a leading dim, called in a scan.

XLA then compiles one block for any number of them, and a gather of FSDP or the rematerialization of a block happens in
the loop. The weights are in an ordinary layer, so that paths, rules and LoRA work as without a stack. A leading dim
over an axis of the mesh makes the loop a pipeline: `pipelined_layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support.types import PyTree
from keras_dist._unstable.flax_internals import TraceError, attribute_order, restore_order, without_eager_sharding
from keras_dist.errors import ModelError
from keras_dist.layers.base.calls import forget_losses
from keras_dist.layers.base.pipelined_layers import OneLayer, pipeline_of, run_pipeline
from keras_dist.variables import Frozen, call_context


def call_inside(layer: Any, training: bool | None, *args: Any, **kwargs: Any) -> tuple[PyTree, list[jax.Array]]:
    """Call a layer inside a loop; return its output and added losses. It must not change variables."""
    with call_context.entered(training, anew=True) as context:
        context.is_computed_again = True  # only with the whole loop
        try:
            outputs = layer(*args, **kwargs)
        except (TraceError, ModelError) as error:
            if not isinstance(error.__cause__ or error, TraceError):
                raise
            summary = f"layer {layer.name!r} changes a variable inside of a loop over time"
            fix = "give the cell a method draw_noise(input_shape): what it returns comes to each step as `noise`"
            raise ModelError(summary, given=str(error).splitlines()[0], fix=fix) from error
    forget_losses(layer)  # tracers of one step; the loop returns them
    return outputs, context.losses


def add_losses(layer: Any, losses: list[jax.Array]) -> None:
    """Add the losses returned by a loop in the call of a layer to the losses of the layer."""
    layer.add_loss([jnp.sum(loss) for loss in losses])


_NOT_STATISTICS = (nnx.Param, Frozen, nnx.RngState, nnx.Intermediate)


def scan_layers(
    layer: Any,
    call: Callable[[Any, PyTree, PyTree, PyTree], PyTree],
    carry: PyTree,
    inputs: PyTree,
    rows: PyTree = None,
    *,
    pipelines: bool = False,
    repeats: int = 1,
    remat: bool = False,
) -> PyTree:
    """Return the last carry of `carry = call(one, carry, input, rows)`, for each layer `one` of a stack and its input.

    Random states, of Dropout, are not stacked: each layer continues the stream of the layer before.

    Args:
        layer: a layer that was built in `stacked_weights`.
        call: calls one layer of the stack.
        carry: what a layer takes and returns.
        inputs: arrays with a leading dim, a slice for each layer.
        rows: further arrays for all layers, with the rows of the batch as first dim.
        pipelines: whether the layers may be a pipeline. The first dim of all of `carry` is then the rows of the batch.
        repeats: number of leading parts of the stack, for `stacked_weights(repeats, count // repeats)`.
        remat: whether the backward pass computes each layer again.
    """
    context = call_context.current() or call_context.CallContext()
    graphdef, streams, state = nnx.split(layer, nnx.RngState, ...)
    values, structure = jax.tree.flatten(state)
    order, after, drawn = attribute_order(layer), [], []

    def run(values: list[jax.Array], streams: PyTree, carry: PyTree, each: PyTree, rows: PyTree) -> OneLayer:
        with without_eager_sharding():
            one = nnx.merge(graphdef, streams, structure.unflatten(values), copy=True)
        restore_order(one, order)
        with call_context.entered(context.training, anew=True) as inside:
            inside.is_computed_again = remat or context.is_computed_again
            outputs = call(one, carry, each, rows)
            statistics, after[:] = _flat(nnx.state(one, nnx.Not(_NOT_STATISTICS)))
            left = nnx.state(one, nnx.RngState)
            drawn[:] = [new is not old for new, old in zip(*map(jax.tree.leaves, (left, streams)), strict=True)]
            return OneLayer(outputs, left, statistics, inside.losses)

    run = jax.checkpoint(run) if remat else run
    pipeline = pipeline_of(layer, carry, repeats) if pipelines else None
    if pipeline is not None:
        carry, streams, losses = run_pipeline(pipeline, layer, run, values, streams, carry, inputs, rows)
    else:
        if repeats > 1:
            values = [value.reshape(-1, *value.shape[2:]) for value in values]

        def body(carried: tuple[PyTree, PyTree], turn: tuple[list[jax.Array], PyTree]) -> Any:
            one = run(turn[0], carried[1], carried[0], turn[1], rows)
            return (one.carry, one.streams), (one.statistics, one.losses)

        (carry, streams), (statistics, losses) = jax.lax.scan(body, (carry, streams), (values, inputs))
        if repeats > 1:
            statistics = [value.reshape(repeats, -1, *value.shape[1:]) for value in statistics]
        nnx.update(layer, after[0].unflatten(statistics))
    if any(drawn):  # a layer in a loop of the caller can only be changed inside of that loop
        nnx.update(layer, streams)
    add_losses(layer, losses)
    return carry


def _flat(state: PyTree) -> tuple[list[jax.Array], list[Any]]:
    values, structure = jax.tree.flatten(state)
    return values, [structure]
