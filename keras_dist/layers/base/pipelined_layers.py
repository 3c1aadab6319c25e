"""Stacks of layers as a pipeline: stages in a `jax.vmap`, and shifts that the partitioner turns into permutes.

The stages are a dim of arrays, sharded over an axis of the mesh, so that the same program computes the same numbers on
one device. In each turn every stage applies its layers to one micro-batch, and passes the result to the next; the last
passes it to the first, which keeps it, for the next round or as output. Only that shift communicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from keras_dist._support import tree_paths
from keras_dist._support.located_warnings import warn
from keras_dist._support.types import PyTree
from keras_dist._unstable import jaxprs
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.pipelining import Pipeline, Pipelining, current_pipelining, is_whole_batch, note_pipeline
from keras_dist.errors import DataError, LayoutWarning, ModelError, shorten
from keras_dist.layers.base.weights import walk
from keras_dist.random.seeds import wrap_key
from keras_dist.variables import Key, Variable


class OneLayer(NamedTuple):
    """The results of one layer of a stack."""

    carry: PyTree
    streams: PyTree
    statistics: list[jax.Array]
    losses: list[jax.Array]


RunLayer = Callable[[list[jax.Array], PyTree, PyTree, PyTree, PyTree], OneLayer]
"""`run(values, streams, carry, each, rows)`: one layer, with its slices of weights and of `each`."""


def pipeline_of(layer: Any, carry: PyTree, repeats: int) -> Pipeline | None:
    """Return the pipeline of a stack in the step that is traced; None if its layers are not sharded over stages.

    The last, partial batch of an epoch is divided into fewer micro-batches.

    Raises:
        DataError: the number of rows is not a multiple of the micro-batches.
        DistributionError: weights are sharded over different axes.
    """
    step = current_pipelining()
    if step is None:
        return None
    weights = {
        weight.path: parts
        for parts, weight in walk(layer)
        if isinstance(weight, Variable) and not isinstance(weight, Key)
    }
    axis = step.stage_axis([*weights], 0 if repeats == 1 else 1)
    if axis is None:
        return None
    path, parts = next(iter(weights.items()))
    path = path.removesuffix(tree_paths.join(parts)).rstrip("/")
    count, shards = step.micro_batches, step.mesh.axis_size(_rows_axes(step, axis))
    if count is None:
        note_pipeline(Pipeline(path, axis, step.mesh.axis_size(axis), 0, repeats))
        said = f"{path!r} is sharded over {axis!r} along its layers, and `compile` has no `micro_batches`"
        fix = "For a pipeline compile(..., micro_batches=8), or micro_batches = 8 in [training] of a config"
        more = "" if set(axis_tuple(axis)) & set(step.batch_axes) else " and computes"
        warn(f"{said}: each device gathers{more} all layers. {fix}", LayoutWarning)
        return None
    rows = jax.tree.leaves(carry)[0].shape[0]
    if is_whole_batch() and rows % (count * shards):
        given = f"a batch of {rows} rows, micro_batches={count}, a batch over {shards} devices"
        fix = f"use a batch size that is a multiple of {count * shards}, or fewer micro-batches in compile"
        raise DataError("the micro-batches do not divide the batch", given=given, fix=fix)
    pipeline = Pipeline(path, axis, step.mesh.axis_size(axis), math.gcd(rows, count), repeats)
    note_pipeline(pipeline)
    return pipeline


def run_pipeline(
    pipeline: Pipeline,
    layer: Any,
    run: RunLayer,
    values: list[jax.Array],
    streams: PyTree,
    carry: PyTree,
    inputs: PyTree,
    rows: PyTree,
) -> tuple[PyTree, PyTree, list[jax.Array]]:
    """Return the last carry, the random states afterwards, and the losses, averaged over micro-batches."""
    step: Any = current_pipelining()
    _check_state(layer)
    stages, count, repeats, period = pipeline.stages, pipeline.micro_batches, pipeline.repeats, pipeline.period
    leading = 1 if repeats == 1 else 2
    example = [_slices(values, leading), streams, _slices(carry, 0, count), _slices(inputs, 1), _slices(rows, 0, count)]
    place = _Placing(step, pipeline, _groups(step, pipeline, run, example))
    weights = place.of_groups(place.by_stage(values, leading))
    each = place.by_stage((inputs, jnp.arange(len(jax.tree.leaves(inputs)[0]))), 1)
    parts, rows = place.split(carry), place.split(rows)

    def stage(weights: PyTree, each: PyTree, carry: PyTree, rows: PyTree, number: jax.Array, turn: jax.Array) -> Any:
        entered = turn - number  # the turn in which the first stage computed the micro-batch
        part, round_ = entered % period, jnp.clip(entered // period, 0, repeats - 1)
        is_valid = (entered >= 0) & (entered < (repeats - 1) * period + count) & (part < count)
        own_rows = jax.tree.map(lambda value: _at(value, jnp.minimum(part, count - 1), 0), rows)
        own, each = jax.tree.map(lambda value: _at(value, round_, 0), (weights, each))

        def body(carry: PyTree, turn: Any) -> Any:
            values, (given, layer) = turn
            one = run(values, _streams_of(streams, layer * count + part), carry, given, own_rows)
            return one.carry, [jnp.where(is_valid, loss / count, 0) for loss in one.losses]

        return jax.lax.scan(body, carry, (own, each))

    over_groups = jax.vmap(stage, (0, None, 0, 1, None, None))
    over_stages = jax.vmap(over_groups, (0, 0, 0, None, 0, None), spmd_axis_name=pipeline.axis)
    numbers = jnp.arange(stages)

    def turn(state: PyTree, turn: jax.Array) -> Any:
        buffer, kept = state
        entering = jax.tree.map(lambda value: _at(value, jnp.minimum(turn % period, count - 1), 1), kept)
        buffer = jax.tree.map(lambda new, old: jnp.where(_like(numbers, old) == 0, new, old), entering, buffer)
        buffer, losses = over_stages(weights, each, place.pinned(buffer), rows, numbers, turn)
        buffer = place.pinned(jax.tree.map(_shifted, place.pinned(buffer)))
        left = turn - stages + 1
        is_kept, index = (left >= 0) & (left % period < count), jnp.minimum(left % period, count - 1)
        kept = jax.tree.map(lambda kept, new: _with(kept, new, index, is_kept), kept, buffer)
        return (buffer, place.pinned(kept, 1)), losses

    kept = place.pinned(jax.tree.map(lambda value: jnp.broadcast_to(value[None], (stages, *value.shape)), parts), 1)
    first = jax.tree.map(lambda value: value[:, 0], kept)  # real rows: zeros may give nan
    (_, kept), losses = jax.lax.scan(turn, (first, kept), jnp.arange(pipeline.turns))
    first = jax.tree.map(lambda value: jnp.where(_like(numbers, value) == 0, value, 0).sum(0, value.dtype), kept)
    return place.joined(first), _drawn(streams), losses


def _slices(tree: PyTree, leading: int, parts: int = 1) -> PyTree:
    """Return the shapes of arrays without leading dims, and with a part of their first dim."""

    def sliced(value: jax.Array) -> jax.ShapeDtypeStruct:
        shape = value.shape[leading:]
        return jax.ShapeDtypeStruct(shape if parts == 1 else (shape[0] // parts, *shape[1:]), value.dtype)

    return jax.tree.map(sliced, tree)


def _groups(step: Pipelining, pipeline: Pipeline, run: RunLayer, example: list[Any]) -> int:
    """Return into how many groups, one a shard, rows are divided, each with a copy of the weights on its devices.

    Gradients are then summed over the shards once, and not in each turn of the loop, from which XLA does not move the
    sum (jax 0.10 on CPUs and TPUs). It takes layers that compute row by row: those that draw random numbers, add losses
    or lay out arrays themselves see all rows of a micro-batch.
    """
    shards, (_, streams, carry, _, _) = step.mesh.axis_size(_rows_axes(step, pipeline.axis)), example
    if shards == 1 or jax.tree.leaves(carry)[0].shape[0] % shards or jax.tree.leaves(streams):
        return 1
    program, results = jax.make_jaxpr(run, return_shape=True)(*example)
    return 1 if results.losses or _LAY_OUT & jaxprs.primitives_in(program) else shards


_LAY_OUT = {"sharding_constraint", "shard_map"}


class _Placing:
    """The layouts of arrays in a pipeline."""

    def __init__(self, step: Pipelining, pipeline: Pipeline, groups: int) -> None:
        self._step, self._pipeline, self._groups = step, pipeline, groups
        self._inside = _rows_axes(step, pipeline.axis)

    def by_stage(self, tree: PyTree, leading: int) -> PyTree:
        """Return arrays (stages, repeats, layers, ...) of arrays of layers, with this number of leading dims."""
        shape = self._pipeline.repeats, self._pipeline.stages, -1

        def divided(value: jax.Array) -> jax.Array:
            return self._pin(jnp.moveaxis(value.reshape(*shape, *value.shape[leading:]), 1, 0), self._pipeline.axis)

        return jax.tree.map(divided, tree)

    def of_groups(self, tree: PyTree) -> PyTree:
        """Return arrays (stages, groups, ...) of arrays (stages, ...)."""

        def repeated(value: jax.Array) -> jax.Array:
            copies = jnp.broadcast_to(value[:, None], (len(value), self._groups, *value.shape[1:]))
            return self._pin(copies, self._pipeline.axis, self._inside if self._groups > 1 else None)

        return jax.tree.map(repeated, tree)

    def split(self, tree: PyTree) -> PyTree:
        """Return arrays (micro-batches, groups, rows, ...), where no row leaves its device."""
        count = self._pipeline.micro_batches

        def divided(value: jax.Array) -> jax.Array:
            parts = jnp.moveaxis(value.reshape(self._groups, -1, count, *value.shape[1:]), 2, 0)
            return self._pin(parts, None, *self._rows(parts.shape[2]))

        return jax.tree.map(divided, tree)

    def joined(self, tree: PyTree) -> PyTree:
        """Return arrays (rows, ...) of arrays (micro-batches, groups, rows, ...)."""

        def together(value: jax.Array) -> jax.Array:
            rows = jnp.moveaxis(value, 0, 2).reshape(-1, *value.shape[3:])
            for axes in (self._inside, self._step.batch_axes):  # the first asks for the gather of the backward pass
                rows = self._pin(rows, self._dividing(len(rows), axes))
            return rows

        return jax.tree.map(together, tree)

    def pinned(self, tree: PyTree, between: int = 0) -> PyTree:
        """Constrain arrays (stages, ..., groups, rows, ...) with this number of dims between."""

        def pinned(value: jax.Array) -> jax.Array:
            return self._pin(value, self._pipeline.axis, *[None] * between, *self._rows(value.shape[2 + between]))

        return jax.tree.map(pinned, tree)

    def _rows(self, rows: int) -> tuple[Axis, Axis]:
        """Return the axes of groups, and of the rows of a group."""
        return (self._inside, None) if self._groups > 1 else (None, self._dividing(rows, self._inside))

    def _dividing(self, rows: int, axes: tuple[str, ...]) -> Axis:
        return axes if axes and rows % self._step.mesh.axis_size(axes) == 0 else None

    def _pin(self, value: jax.Array, *axes: Axis) -> jax.Array:
        free = [jax.sharding.PartitionSpec.UNCONSTRAINED] * (value.ndim - len(axes))
        spec = jax.sharding.PartitionSpec(*axes, *free)
        return jax.lax.with_sharding_constraint(value, jax.sharding.NamedSharding(self._step.mesh.backend_mesh, spec))


def _rows_axes(step: Pipelining, axis: Axis) -> tuple[str, ...]:
    """Return the axes of the batch inside a pipeline: outside, the batch may be sharded over the stages, too."""
    return tuple(each for each in step.batch_axes if each not in axis_tuple(axis))


def _check_state(layer: Any) -> None:
    """Check that a pipeline can keep the state of the layers."""
    for path, variable in walk(layer):
        if isinstance(variable, Key | nnx.Param) or getattr(variable, "is_parameter", False):
            continue
        summary = f"layer {layer.name!r} cannot be pipelined: it has a state that a call changes"
        fix = "use layers without statistics, such as LayerNormalization, or do not shard the leading dim"
        raise ModelError(summary, given=f"{shorten('/'.join(map(str, path)))}, {type(variable).__name__}", fix=fix)


def _streams_of(streams: PyTree, number: jax.Array) -> PyTree:
    """Return the random states of one layer for one micro-batch."""

    def begun(words: jax.Array) -> jax.Array:
        first = jax.random.bits(jax.random.fold_in(wrap_key(words), number), (), jnp.uint32)
        return jnp.stack([first, jnp.uint32(0)])

    return jax.tree.map(begun, streams)


def _drawn(streams: PyTree) -> PyTree:
    """Return the random states after one draw."""
    return jax.tree.map(lambda words: words + jnp.array([0, 1], jnp.uint32), streams)


def _shifted(value: jax.Array) -> jax.Array:
    """Pass the arrays of stages on to the next stages, and from the last to the first.

    The transpose is one shift back. JAX would split and pad instead, which are two permutes (jax 0.10 and 0.12).
    """

    def shift(_: tuple[()], value: jax.Array) -> jax.Array:
        return jnp.roll(value, 1, axis=0)

    def shift_back(_: tuple[()], value: jax.Array) -> jax.Array:
        return jnp.roll(value, -1, axis=0)

    return jax.custom_derivatives.linear_call(shift, shift_back, (), value)


def _at(value: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    if value.shape[axis] == 1:
        return jax.lax.index_in_dim(value, 0, axis, keepdims=False)
    return jax.lax.dynamic_index_in_dim(value, index, axis, keepdims=False)


def _with(kept: jax.Array, new: jax.Array, index: jax.Array, is_kept: jax.Array) -> jax.Array:
    """Return arrays (stages, micro-batches, ...) with a new micro-batch at an index, if it is kept."""
    new = jnp.where(is_kept, new, _at(kept, index, 1))
    return jax.lax.dynamic_update_index_in_dim(kept, new, index, 1)


def _like(numbers: jax.Array, value: jax.Array) -> jax.Array:
    return numbers.reshape(-1, *[1] * (value.ndim - 1))
