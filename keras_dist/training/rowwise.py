"""Training of large embedding tables by the rows that a batch looks up: `compile(rowwise=...)`.

A step differentiates the rows that it looks up (`RowTable`), not the table. Each device then sorts the indices of the
whole batch, adds the gradients of equal ones among its rows, and reads these rows of the table and of its slots.
Optimizers update them as any small weights: clipping, loss scales and reports need no rules for rows. At last the rows
are written back in place. Shapes are static: each device has places for all lookups of the batch. Unused ones have
indices after the last row, and zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import PartitionSpec as P

from keras_dist import optimizers
from keras_dist._support import tree_paths
from keras_dist._support.types import PyTree
from keras_dist._unstable.jax_internals import is_tracing
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.plan import FOLLOWS, LayoutPlan
from keras_dist.errors import ModelError, did_you_mean
from keras_dist.layers import Embedding
from keras_dist.layers.base.weights import walk_owned
from keras_dist.layers.core.row_table import Axes, Lookups, RowTable, TableLayout, gathered
from keras_dist.training.graph import ModuleGraph, compile_rule
from keras_dist.training.optimization import Optimizer, TrainState, joined

if TYPE_CHECKING:
    from keras_dist.training.step import Forward

Tables = frozenset[tree_paths.Parts]  # names that lead to tables of which steps read only the rows that they look up
Lookup = tuple[jax.Array, jax.Array]  # indices (...) and gradients of rows (..., columns)
Gradients = tuple[Any, PyTree, TrainState, Callable[[TrainState], TrainState]]  # see `gradients`


def resolve_tables(
    rule: str | None, graph: ModuleGraph, named: Mapping[str, Optimizer], slot_memory: str | None = None
) -> Tables:
    """Return the tables that `compile(rowwise=...)` matches; raise unless all can be trained by rows."""
    if rule is None:
        return frozenset()
    pattern, tables = compile_rule(rule, "rowwise"), list(_tables_in(graph))
    chosen = [place for place, spec in enumerate(graph.specs) if any(map(pattern.fullmatch, spec.names))]
    problems = [problem for place in chosen for problem in _problems(graph, place, tables, named)]
    if slot_memory is not None:
        problems.append(f"slot_memory={slot_memory!r} would transfer whole slots")
    if not chosen or problems:
        paths = [tree_paths.join(parts) for parts in tables]
        summary = "cannot be applied" if chosen else f"matches no weight{did_you_mean(rule, paths)}"
        fix = f"match only tables that are looked up: {paths[:6]}" if paths else "leave out `rowwise`"
        raise ModelError(f"`rowwise` {summary}", given="; ".join(problems) or f"rowwise={rule!r}", fix=fix)
    return frozenset(graph.parts[place] for place in chosen)


def _tables_in(graph: ModuleGraph) -> Iterator[tree_paths.Parts]:
    for parts, variable, owners in walk_owned(graph.described()):
        if owners and isinstance(owners[0], Embedding) and variable is owners[0].embeddings:
            yield parts


def _problems(
    graph: ModuleGraph, place: int, tables: list[tree_paths.Parts], named: Mapping[str, Optimizer]
) -> Iterator[str]:
    """Yield the reasons for which a weight cannot be trained by rows."""
    spec, parts = graph.specs[place], graph.parts[place]
    if parts not in tables:
        yield f"{spec.path!r} is not the table of an Embedding"
    elif not graph.trained[place]:
        yield f"{spec.path!r} is not trained"
    for kind, rule in (("regularizer", graph.regularizers[place]), ("constraint", graph.constraints[place])):
        if rule is not None:
            yield f"{spec.path!r} has a {kind}, which reads all rows"
    for one in (one.transformation for one in named.values() if parts in one.parts):
        one = getattr(one, "inner_optimizer", one)
        optimizer = one.of_variable(parts, spec) if isinstance(one, optimizers.MultiOptimizer) else one
        label = f"{spec.path!r} is trained by {type(optimizer).__name__}"
        if not getattr(optimizer, "takes_rows", False):
            known = "SGD, Adagrad, RowWiseAdagrad, Adam or Adam8bit"
            yield f"{label}, whose update of a row may depend on others: use {known}"
        for name, instead in (("use_ema", ""), ("gradient_accumulation_steps", ": a larger batch has the same effect")):
            if getattr(optimizer, name, None):
                yield f"{label} with {name}, an array of the size of the table{instead}"


def in_row_tables(forward: Forward, plan: LayoutPlan, trainable: PyTree, lookups: Lookups | None) -> PyTree:
    """Return the trained variables with a `RowTable` for each table."""
    flat: dict[tree_paths.Parts, Any] = dict(traverse_util.flatten_dict(trainable))
    batch = axis_tuple(forward.distribution.batch_dim_name)
    for parts in forward.tables:
        path = tree_paths.join(parts)
        flat[parts] = RowTable(path, flat[parts], TableLayout(plan.mesh, plan.row(path).axes, batch), lookups)
    return traverse_util.unflatten_dict(flat)


def _without(tables: Tables, trainable: PyTree) -> PyTree:
    """Return the other variables."""
    flat = traverse_util.flatten_dict(trainable)
    return traverse_util.unflatten_dict({parts: leaf for parts, leaf in flat.items() if parts not in tables})


def gradients(forward: Forward, named: Mapping[str, Optimizer], state: TrainState, loss_of: Any) -> Gradients:
    """Differentiate the rows that a batch looks up, and the variables that are not tables.

    Returns:
        The second result of `loss_of(trainable, lookups)`, the gradients, the state with rows in place of tables and
        their slots, and a function that writes these rows, after an update, into the tables.
    """

    def tapped(trainable: PyTree, taps: list[jax.Array]) -> tuple[jax.Array, tuple[PyTree, PyTree]]:
        lookups = Lookups(taps)
        loss, found = loss_of(trainable, lookups)
        return loss, (found, lookups.indices)

    taps, paths = _taps_of(lambda lookups: loss_of(state.trainable, lookups))
    differentiated = tapped if forward.remat is None else forward.remat.whole(tapped)
    (_, (found, indices)), (grads, of_rows) = jax.value_and_grad(differentiated, (0, 1), has_aux=True)(
        _without(forward.tables, state.trainable), taps
    )
    rows = SeenRows(forward, named, state, zip(paths, zip(indices, of_rows, strict=True), strict=True))
    return found, joined(forward.scattered(grads), rows.grads), rows.read(state), lambda new: rows.written(new, state)


def _taps_of(measure: Callable[[Lookups], Any]) -> tuple[list[jax.Array], list[str]]:
    """Return zeros of the shape of each lookup of `measure`, and the path of its table; only shapes are computed."""
    lookups = Lookups()
    jax.eval_shape(lambda: measure(lookups)) if is_tracing() else measure(lookups)
    return [jnp.zeros(shape.shape, shape.dtype) for shape in lookups.shapes], lookups.paths


class SeenRows:
    """The rows of each table that a batch looks up, given the path of the table of each lookup."""

    def __init__(
        self, forward: Forward, named: Mapping[str, Optimizer], state: TrainState, lookups: Iterable[tuple[str, Lookup]]
    ) -> None:
        self._layouts: dict[str, TableLayout] = {}
        self._indices: dict[str, jax.Array] = {}
        self._owners: dict[int, tuple[str, Axes]] = {}  # path and axes of tables and their slots, by place in the state
        self.grads: PyTree = {}
        plan: Any = forward.plan
        lookups = list(lookups)
        grads: dict[tree_paths.Parts, jax.Array] = {}
        for parts in forward.tables:
            path = tree_paths.join(parts)
            row, found = plan.row(path), [lookup for of, lookup in lookups if of == path]
            found = found or [(jnp.full(1, -1), jnp.zeros((1, row.shape[1]), row.dtype))]
            layout = TableLayout(plan.mesh, row.slot_axes, axis_tuple(forward.distribution.batch_dim_name))
            self._layouts[path] = layout
            self._indices[path], grads[parts] = _summed(layout, row.shape[0], found)
        self.grads = traverse_util.unflatten_dict(grads)
        paths, _ = forward.graph.nest([spec.path for spec in forward.graph.specs])
        owners = [(path, plan.row(path).slot_axes) for path in jax.tree.leaves(paths)]
        for name in sorted(state.slots):
            rows = plan.arrange(named[name].select(paths)).follow(state.slots[name]).rows
            owners += [((row.rule or "").removeprefix(FOLLOWS).partition(", ")[0], row.axes) for row in rows]
        self._owners = {place: owner for place, owner in enumerate(owners) if owner[0] in self._layouts}

    def read(self, state: TrainState) -> TrainState:
        """Return the state with these rows in place of tables and their slots."""

        def local(indices: jax.Array, whole: jax.Array) -> jax.Array:
            return jnp.take(whole, indices, axis=0, mode="fill", fill_value=0)

        return self._mapped(local, state)

    def written(self, rows: TrainState, state: TrainState) -> TrainState:
        """Return the state after an update of `rows`, written into the tables and slots of the state before."""

        def local(indices: jax.Array, rows: jax.Array, whole: jax.Array) -> jax.Array:
            return whole.at[indices].set(rows, mode="drop", indices_are_sorted=True, unique_indices=True)

        return self._mapped(local, rows, state)

    def _mapped(self, local: Callable[..., jax.Array], *states: TrainState) -> TrainState:
        """Return the first state with `local(indices, *shards)` of the states in place of tables and their slots."""
        leaves = [jax.tree.leaves((state.trainable, state.slots)) for state in states]
        for place, (path, axes) in self._owners.items():
            shards = [each[place] for each in leaves]
            mapped = self._layouts[path].shard_map(local, (P(axes[0]), *[P(*axes)] * len(shards)), P(*axes))
            leaves[0][place] = mapped(self._indices[path], *shards)
        treedef = jax.tree.structure((states[0].trainable, states[0].slots))
        trainable, slots = treedef.unflatten(leaves[0])
        return states[0].replace(trainable=trainable, slots=slots)


def _summed(layout: TableLayout, count: int, lookups: list[Lookup]) -> Lookup:
    """Return for each device the distinct indices into its rows, in order, and the sums of their gradients."""
    rows = count // layout.mesh.axis_size(layout.row_axes)
    places = min(sum(indices.size for indices, _ in lookups), rows)
    axes = [layout.axes_of(indices) for indices, _ in lookups]

    def local(indices: list[jax.Array], grads: list[jax.Array]) -> Lookup:
        wholes = [map(gathered, each, axes) for each in (indices, grads)]
        own = layout.own(jnp.concatenate([one.reshape(-1) for one in wholes[0]]), rows)
        of_rows = jnp.concatenate([one.reshape(-1, one.shape[-1]) for one in wholes[1]])
        order = jnp.argsort(own)
        own, of_rows = own[order], jnp.where(own[:, None] < rows, of_rows, 0)[order]
        place = jnp.cumsum(own != jnp.roll(own, 1).at[:1].set(-1)) - 1  # of other devices last, perhaps after the end
        distinct = (rows + jnp.arange(places)).at[place].set(own, mode="drop")  # also where unused
        return distinct, jax.ops.segment_sum(of_rows, place, places, indices_are_sorted=True)

    specs = [P(*each) for each in axes], [P(*each, layout.axes[1]) for each in axes]
    summed = layout.shard_map(local, specs, (P(layout.axes[0]), P(*layout.axes)))
    return summed(*map(list, zip(*lookups, strict=True)))
