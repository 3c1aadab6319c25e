"""The tables of `model.summary()`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support import tree_paths
from keras_dist._support.arguments import check_flag, check_int
from keras_dist._support.safe_patterns import pattern
from keras_dist._support.text_tables import Table, render
from keras_dist._support.types import PyTree
from keras_dist.distribution.lint import names_tensor
from keras_dist.distribution.plan import Row
from keras_dist.distribution.render import layout_table, render_axes, render_bytes, render_shape
from keras_dist.distribution.variables import PLANNED_BY_RULE
from keras_dist.errors import ModelError, shorten
from keras_dist.jobs.job import is_chief
from keras_dist.layers import Layer
from keras_dist.layers.base.names import layers_below, named_layers
from keras_dist.models.abstract_models import plan_before_search
from keras_dist.models.model_base import ModelBase
from keras_dist.symbolic.tensors import Operation, infer
from keras_dist.training.activations import named_submodules, output_name
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.optimization import kinds_of_updates


def summary_parts(
    model: ModelBase, expand_nested: bool, show_trainable: bool, layer_range: Sequence[str] | None
) -> list[Table | str]:
    """Return a table of layers, or of variables for `from_nnx` models and without a layout yet, and lines of totals."""
    plan = plan_before_search(model)
    if plan is not None:
        rows = [dataclasses.replace(row, rule="until fit finds one") for row in plan.rows]
        title = f"Model on mesh {plan.mesh.describe()}, for which AutoParallel has no layout yet"
        return [_variable_table(rows, title)]
    built = model._built if model._graph is None else model._with_weights()
    if built is None or model._may_add_losses:
        table = layer_table(model, built, expand_nested, show_trainable, layer_range)
    else:
        plan = built.cell.plan
        table = _variable_table(plan.rows, f"Model on mesh {plan.mesh.describe()}")
        table.rows += [
            (each.name, "", "", "", "input" if each.module is None else "activation", each.layout, each.rule, "", "")
            for each in ruled_activations(built)
        ]
    return [table] if built is None else [table, *_totals(model, built)]


def _variable_table(rows: Sequence[Row], title: str) -> Table:
    table = layout_table(rows, title)
    counts = ["params", *(f"{_size(row):,}" if row.role in PLANNED_BY_RULE else "" for row in rows)]
    cells = zip((table.headers, *table.rows), counts, strict=True)
    lines: list[Sequence[str]] = [[*line[:2], count, *line[2:]] for line, count in cells]
    table.headers, table.rows = lines[0], lines[1:]
    table.numbers = ("params", *table.numbers)
    table.priority = ("path", "params", "shape", "layout", "per device", "rule")
    return table


def _totals(model: ModelBase, built: BuiltModel) -> Iterator[str]:
    """Yield the lines of totals, Keras's lines first; unlike Keras, the first is without the optimizer."""
    cell = built.cell
    trained = {built.path_of(weight) for weight in model.trainable_weights}
    rows = (cell.row(built.path_of(variable)) for variable in built.variables())
    weights = [row for row in rows if row.role in PLANNED_BY_RULE]
    known, state = {row.path for row in weights}, cell.state_plan.rows
    groups: dict[str, list[Row]] = {
        "Total params": weights,
        "Trainable params": [row for row in weights if row.path in trained],
        "Non-trainable params": [row for row in weights if row.path not in trained],
        "Optimizer params": [row for row in state if row.role == "slot"],
        "Counters and random states": [row for row in state if row.role != "slot" and row.path not in known],
        "Whole training state": list(state),
    }
    if built.compile_config is None:
        del groups["Optimizer params"]
    for label, rows in groups.items():
        memory = "".join({f" in {row.memory_kind}": None for row in rows if row.memory_kind})
        whole, part = sum(row.nbytes for row in rows), sum(row.nbytes_per_device for row in rows)
        each = f", {render_bytes(part)} per device" if cell.mesh.size > 1 else ""
        yield f"{label}{memory}: {sum(map(_size, rows)):,} ({render_bytes(whole)}{each})"


def _update_table(built: BuiltModel) -> Table:
    """Return the table of the updates of weights."""
    headers = ["path", "shape", "update"]
    updates = kinds_of_updates(built.optimizers, built.cell.graph)
    lines: list[Sequence[str]] = [
        [path, render_shape(built.cell.plan.row(path).shape), kind] for path, kind in updates.items()
    ]
    return Table("Updates of the optimizer", headers, rows=lines)


def layer_table(
    model: ModelBase,
    built: BuiltModel | None,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: Sequence[str] | None = None,
) -> Table:
    """Return the table of all layers with output shapes and variables."""
    entries = list(_entries(model))
    arrays = _Arrays(model, built, expand_nested)
    if layer_range is None:
        lines = [*(line for entry in entries for line in arrays.of_entry(entry)), *arrays.of_rest(model, entries)]
    else:
        lines = [line for entry in _between(layer_range, entries) for line in arrays.of_entry(entry)]
    headers = [*_HEADERS]
    headers[3:3] = ["connected to"] * any("connected to" in line for line in lines) + ["trainable"] * show_trainable
    where = "" if built is None else f" on mesh {built.cell.mesh.describe()}"
    return Table(
        f'Model: "{model.name}"{where}',
        headers,
        numbers=("params", "bytes", "per device"),
        priority=(headers[0], "params", "output shape", "trainable", "layout", "per device"),
        rows=[[line.get(header, "") for header in headers] for line in lines],
    )


_HEADERS = ("layer (type)", "output shape", "params", "layout", "bytes", "per device", "rule")  # rule: omitted first

_Line = Mapping[str, str]  # cells by the headers of their columns


@dataclasses.dataclass(frozen=True)
class Ruled:
    """An activation of the submodule `module`, or an input (None), with a layout rule."""

    module: str | None
    name: str
    layout: str
    rule: str


def ruled_activations(built: BuiltModel) -> list[Ruled]:
    """Return the activations with a layout rule, in the order of submodules, then inputs."""
    distribution, found = built.distribution, dict[str, Ruled]()
    rules = distribution.layout_map
    for _, paths in named_submodules(built.cell.graph.described()):
        for name in map(output_name, paths):
            layout = distribution.get_tensor_layout(name)
            if layout is not None:
                decided = layout.reason if rules is None else rules.match(name)
                found.setdefault(paths[0], Ruled(paths[0], name, render_axes(layout.axes), decided or ""))
    inputs = [rule for rule in rules or () if names_tensor(rule) and rule.startswith("input/")]
    used = {each.rule for each in found.values()}
    layouts = {rule: render_axes(rules.rule_layout(rule).axes) for rule in inputs if rules and rule not in used}
    return [*found.values(), *(Ruled(None, rule, layout, rule) for rule, layout in layouts.items())]


@dataclasses.dataclass(frozen=True, eq=False)
class _Entry:
    """A layer or operation in a table; `parents` is empty in a chain of layers."""

    name: str
    operation: Layer | Operation
    shape: str
    parents: str = ""


def _entries(model: Any) -> Iterator[_Entry]:
    graph = getattr(model, "_graph", None)
    if graph is None:
        shapes = _shapes_along(model)
        for layer in named_layers(model):
            yield _Entry(layer.name, layer, shapes.get(id(layer), "?"))
        return
    listed = {id(layer) for layer in model.layers}
    for step in graph.steps:
        if step.nodes or id(step.operation) in listed:
            places = [graph.places[id(tensor)] for node in step.nodes for tensor in node.parents]
            parents = ", ".join(f"{name}[{call}][{index}]" for name, call, index in places) or "-"
            outputs = [node.outputs for node in step.nodes] or [step.operation.output]
            shape = ", ".join(dict.fromkeys(map(_shape_text, outputs)))
            yield _Entry(step.name, step.operation, shape, "" if graph.is_chain else parents)


def _shapes_along(model: ModelBase) -> dict[int, str]:
    """Return the output shapes of the layers of a `Sequential` without `Input`, by the ids of layers."""
    nodes = model._record.nodes
    tensors = nodes[0].inputs if nodes else getattr(model._record, "built_for", None)
    if tensors is None or "_chain" not in vars(model):
        return {}
    shapes = {}
    for layer in model.layers:
        try:
            tensors = infer(layer, (tensors,), {})
        except NotImplementedError:  # of its `compute_output_spec`
            break
        shapes[id(layer)] = _shape_text(tensors)
    return shapes


def _shape_text(outputs: PyTree) -> str:
    return str(jax.tree.map(lambda tensor: tensor.shape, outputs))


def _between(layer_range: Sequence[str], entries: list[_Entry]) -> list[_Entry]:
    """Return the entries from the first match of one pattern to the last match of the other."""
    patterns = list(layer_range) if isinstance(layer_range, list | tuple) else []
    if len(patterns) == 2 and all(isinstance(pattern, str) for pattern in patterns):
        first, last = ([i for i, entry in enumerate(entries) if pattern(p).match(entry.name)] for p in patterns)
        if first and last:
            ends = (min(first), max(last)) if min(first) <= max(last) else (min(last), max(first))
            return entries[ends[0] : ends[1] + 1]
    summary = "summary: `layer_range` must be the names of two layers, or regular expressions for them"
    fix = f"for example two of {[entry.name for entry in entries]}"
    raise ModelError(summary, given=f"layer_range={shorten(layer_range)}", fix=fix)


class _Arrays:
    """The lines of a table for the variables of a model."""

    def __init__(self, model: ModelBase, built: BuiltModel | None, expand_nested: bool) -> None:
        self._built = built
        self._expand_nested = expand_nested
        self._paths = {id(layer): path for path, layer in layers_below(model)}
        rows = () if built is None else built.cell.plan.rows
        self._rows_by_prefix = tree_paths.by_prefix(rows, lambda row: (row.path,))
        activations = [] if built is None else ruled_activations(built)
        self._activations = tree_paths.by_prefix(activations, lambda each: (each.module or "",))
        self._trained = set() if built is None else {built.path_of(weight) for weight in model.trainable_weights}

    def of_entry(self, entry: _Entry, depth: int = 0) -> Iterator[_Line]:
        """Yield the line of a layer, then lines of its variables or inner layers."""
        layer = entry.operation
        kind = "operation" if isinstance(layer, Operation) else type(layer).__name__
        line = {
            "layer (type)": f"{_indent(depth)}{entry.name} ({kind})",
            "output shape": entry.shape,
            "params": self._count(layer),
        }
        if entry.parents:
            line["connected to"] = entry.parents
        rows = self._rows(layer)
        if rows:
            line["trainable"] = "Y" if any(map(self._is_trained, rows)) else "N"
        yield line
        inner = list(_entries(layer)) if self._expand_nested and hasattr(layer, "layers") else []
        if not inner:
            yield from (self._of_row(row, depth) for row in rows)
            yield from (self._of_activation(each, entry, depth) for each in self._activations_of(layer))
            return
        for part in inner:
            yield from self.of_entry(part, depth + 1)
        yield from self.of_rest(layer, inner, depth)

    def of_rest(self, model: Any, entries: list[_Entry], depth: int = 0) -> Iterator[_Line]:
        """Yield the lines of a model's variables and activations outside of its layers."""
        listed = {row.path for entry in entries for row in self._rows(entry.operation)}
        yield from (self._of_row(row, depth) for row in self._rows(model) if row.path not in listed)
        shown = {each.name for entry in entries for each in self._activations_of(entry.operation)}
        rest = (each for each in self._activations_of(model) if each.name not in shown)
        yield from (self._of_activation(each, None, depth) for each in rest)

    def _rows(self, layer: Layer | Operation) -> list[Row]:
        """Return the variables of a layer: weights in their order, then counters and random states."""
        path = self._paths.get(id(layer))
        if self._built is None or path is None:
            return []
        cell = self._built.cell
        paths = map(self._built.path_of, self._built.variables(path))
        weights = {row.path: row for row in map(cell.row, paths)}
        return [*weights.values(), *(row for row in self._rows_by_prefix.get(path, ()) if row.path not in weights)]

    def _activations_of(self, layer: Layer | Operation) -> list[Ruled]:
        """Return the activations of a layer and its sublayers; of the whole model also inputs."""
        path = self._paths.get(id(layer))
        return [] if path is None else self._activations.get(path, [])

    def _of_activation(self, each: Ruled, entry: _Entry | None, depth: int) -> _Line:
        is_whole = entry is not None and each.module == self._paths.get(id(entry.operation))
        return {
            "layer (type)": f"{_indent(depth + 1)}{each.name}",
            "output shape": entry.shape if entry is not None and is_whole else "",
            "layout": each.layout,
            "rule": each.rule,
        }

    def _count(self, layer: Layer | Operation) -> str:
        if self._built is None and isinstance(layer, Layer):
            return f"{layer.count_params():,}" if layer._is_built else "0 (unbuilt)"
        weights = [row for row in self._rows(layer) if row.role in PLANNED_BY_RULE]
        return f"{sum(map(_size, weights)):,}"

    def _is_trained(self, row: Row) -> bool:
        return row.path in self._trained

    def _of_row(self, row: Row, depth: int) -> _Line:
        return {
            "layer (type)": f"{_indent(depth + 1)}{row.path}",
            "output shape": f"{render_shape(row.shape)} {row.dtype}",
            "trainable": "Y" if self._is_trained(row) else "N",
            "layout": render_axes(row.axes),
            "rule": row.rule or "no rule",
            "bytes": render_bytes(row.nbytes),
            "per device": render_bytes(row.nbytes_per_device),
        }


def _indent(depth: int) -> str:
    return "  " * depth


def _size(row: Row) -> int:
    return int(np.prod(row.shape, dtype=np.int64))


def summary(
    model: ModelBase,
    line_length: int | None = None,
    positions: Sequence[float] | None = None,
    print_fn: Callable[[str], object] | None = None,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: Sequence[str] | None = None,
    *,
    optimizer: bool = False,
) -> None:
    """Print a table of the layers, their output shapes, variables, layouts and bytes per device.

    For models of `from_nnx` the table lists the variables only.

    Args:
        line_length: width of the table in characters; by default `COLUMNS` of the environment, else the width of
            the terminal, 120 in a notebook, and the width of the table in a pipe or a file. In a small width cells
            are wrapped and columns omitted; a line below the table names them.
        positions: ignored; columns are as wide as their contents.
        print_fn: called with the text instead of printing it, in a job in each process; by default the first
            process prints.
        expand_nested: whether the layers of inner models are listed.
        show_trainable: whether a column shows which layers are trained.
        layer_range: names of the first and last layer to show, or regular expressions for them.
        optimizer: whether a second table shows how the optimizer updates each weight, such as `Muon` matrices.

    Raises:
        ModelError: an argument cannot be used, or `optimizer` is shown of a model that is not compiled.
    """
    if line_length is not None:
        check_int("line_length", line_length, 40, alternative="None", example=120)
    parts = summary_parts(model, expand_nested, show_trainable, layer_range)
    if check_flag("optimizer", optimizer):
        parts.insert(1, _update_table(model._compiled_model("summary(optimizer=True)")))
    if print_fn is not None:
        print_fn(render(*parts, line_length=line_length))
    elif is_chief():
        sys.stdout.write(f"{render(*parts, line_length=line_length)}\n")
