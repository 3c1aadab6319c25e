"""`model_to_dot` and `plot_model`: the layers of a model as a graph of Graphviz, with layouts."""

from __future__ import annotations

import dataclasses
import html
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from keras_dist._support.arguments import check_option
from keras_dist._support.extras import import_extra
from keras_dist._support.types import PyTree
from keras_dist.distribution.render import render_axes
from keras_dist.distribution.strategy import Distribution
from keras_dist.errors import MissingExtraError, ModelError, shorten
from keras_dist.files.drafts import replacing, write_file
from keras_dist.jobs.job import is_chief
from keras_dist.layers import InputLayer

_SOURCE = ("dot", "gv")
_DIRECTIONS = ("TB", "LR", "BT", "RL")


def model_to_dot(
    model: Any,
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = True,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: int = 200,
    subgraph: bool = False,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
    splines: str = "ortho",
    *,
    show_layouts: bool = False,
) -> Any:
    """Return a model as a graph of pydot. It needs pydot, of the extra `graph`, but not Graphviz.

    Args:
        model: a model with weights. A model that is not a graph of layers becomes a single node.
        show_shapes: whether nodes show the shapes of inputs and outputs.
        show_dtype: whether nodes show the element type of outputs.
        show_layer_names: whether nodes show the names of layers.
        rankdir: direction of the graph: "TB" from top to bottom, "LR" from left to right, "BT" or "RL".
        expand_nested: whether models among the layers are drawn as boxes with their layers.
        dpi: dots per inch.
        subgraph: whether to return a `pydot.Cluster` instead of a `pydot.Dot`.
        show_layer_activations: whether nodes show the activations of layers.
        show_trainable: whether nodes show if layers are trainable.
        splines: style of edges: "ortho", "curved", "polyline", "spline" or "line".
        show_layouts: whether nodes show the layouts of weights, and edges the layouts of activations with a rule
            `<layer>/output` and of inputs.

    Raises:
        MissingExtraError: pydot is not installed.
        ModelError: an argument has a wrong value, or the weights do not exist yet.

    Source: `keras.utils.model_to_dot`.
    """
    pydot = import_extra("pydot", "graph", "model_to_dot")
    check_option("rankdir", rankdir, _DIRECTIONS, "")
    _check_built(model)
    shows = _Shows(
        *(show_shapes, show_dtype, show_layer_names, show_layer_activations, show_trainable, expand_nested),
        distribution=model.distribution if show_layouts else None,
    )
    if subgraph:
        graph = pydot.Cluster(_quoted(model.name), style="dashed", label=_quoted(model.name), labeljust="l")
    else:
        graph = pydot.Dot(_quoted(model.name), rankdir=rankdir, concentrate="true", dpi=str(dpi), splines=splines)
        graph.set_node_defaults(shape="none", fontname="Helvetica", margin="0")
    _Drawing(pydot, shows).add(graph, model, "")
    return graph


def plot_model(
    model: Any,
    to_file: str | os.PathLike[str] = "model.png",
    show_shapes: bool = False,
    show_dtype: bool = False,
    show_layer_names: bool = False,
    rankdir: str = "TB",
    expand_nested: bool = False,
    dpi: int = 200,
    show_layer_activations: bool = False,
    show_trainable: bool = False,
    splines: str = "ortho",
    *,
    show_layouts: bool = False,
) -> Any:
    """Write a picture of a model to a file. It needs pydot, of the extra `graph`, and for pictures Graphviz.

    In a job of several processes the first one writes the file.

    Args:
        model: a model with weights.
        to_file: the file; its suffix is the format. `.dot` is Graphviz's source, which does not need Graphviz.
        show_shapes, show_dtype, show_layer_names, rankdir, expand_nested, dpi: as in `model_to_dot`.
        show_layer_activations, show_trainable, splines, show_layouts: as in `model_to_dot`.

    Returns:
        In a notebook the picture, except for PDF and source; else None.

    Raises:
        MissingExtraError: pydot or Graphviz is not installed.
        ModelError: an argument has a wrong value, or the weights do not exist yet.
        OSError: the file cannot be written.

    Source: `keras.utils.plot_model`.
    """
    options = (show_shapes, show_dtype, show_layer_names, rankdir, expand_nested, dpi, False)
    options = (*options, show_layer_activations, show_trainable, splines)
    graph = model_to_dot(model, *options, show_layouts=show_layouts)
    path = Path(to_file)
    form = path.suffix.removeprefix(".") or "png"
    if not is_chief():
        return None
    if form in _SOURCE:
        write_file(path, graph.to_string())
        return None
    if shutil.which("dot") is None:
        given = f"to_file={str(path)!r}, and no program `dot`"
        fix = "install it (apt install graphviz, brew install graphviz), or write its source: to_file='model.dot'"
        raise MissingExtraError("plot_model: pictures need Graphviz, which is not installed", given=given, fix=fix)
    with replacing(path) as draft:
        graph.write(str(draft), format=form)
    if "IPython" not in sys.modules or form == "pdf":
        return None
    display = import_extra("IPython.display", "graph", "plot_model")
    return display.SVG(filename=str(path)) if form == "svg" else display.Image(filename=str(path))


@dataclasses.dataclass(frozen=True)
class _Shows:
    """Contents of nodes and edges."""

    shapes: bool
    dtype: bool
    names: bool
    activations: bool
    trainable: bool
    nested: bool
    distribution: Distribution | None  # to show layouts


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A layer or operation of a model, with symbolic inputs and outputs, or None if unknown."""

    name: str
    operation: Any
    inputs: PyTree
    outputs: PyTree
    sources: tuple[tuple[str, int, Any], ...]  # of each input: entry, index of its output, tensor


class _Drawing:
    def __init__(self, pydot: Any, shows: _Shows) -> None:
        self._pydot, self._shows = pydot, shows
        self._numbers: dict[str, str] = {}
        self._root: Any = None

    def add(self, graph: Any, model: Any, prefix: str) -> None:
        """Add the layers of a model below a path."""
        self._root = graph if self._root is None else self._root
        entries = {entry.name: entry for entry in _entries(model)}
        if not entries:
            outer = _Entry(model.name, model, None, None, ())
            graph.add_node(self._node(prefix or model.name, outer))
            return
        for entry in entries.values():
            path = _joined(prefix, entry.name)
            if self._is_expanded(entry.operation):
                box = self._pydot.Cluster(self._number(path), style="dashed", label=_quoted(entry.name), labeljust="l")
                self.add(box, entry.operation, path)
                graph.add_subgraph(box)
            else:
                graph.add_node(self._node(path, entry))
        for entry in entries.values():
            for number, (source, index, tensor) in enumerate(entry.sources):
                start = self._inner(entries[source].operation, _joined(prefix, source), index, _output_of)
                end = self._inner(entry.operation, _joined(prefix, entry.name), number, _input_of)
                self._connect(start, end, entries[source], _joined(prefix, source), tensor)

    def _is_expanded(self, operation: Any) -> bool:
        return self._shows.nested and getattr(operation, "_graph", None) is not None

    def _inner(self, operation: Any, path: str, index: int, find: Any) -> str:
        """Return the path of the node at the end of an edge, which may be inside a box."""
        while self._is_expanded(operation):
            name = find(operation, index)
            step = next(step for step in operation._graph.steps if step.name == name)
            operation, path, index = step.operation, _joined(path, name), 0
        return path

    def _number(self, path: str) -> str:
        return self._numbers.setdefault(path, f"n{len(self._numbers)}")

    def _node(self, path: str, entry: _Entry) -> Any:
        return self._pydot.Node(self._number(path), label=_label(entry, self._shows))

    def _connect(self, start: str, end: str, source: _Entry, name: str, tensor: Any) -> None:
        first, last = self._number(start), self._number(end)
        if self._root.get_edge(first, last):
            return
        options = {"penwidth": "2"}
        layout = _layout_of(source, name, tensor, self._shows.distribution)
        if layout:
            options["xlabel"] = _quoted(layout)
        self._root.add_edge(self._pydot.Edge(first, last, **options))


def _entries(model: Any) -> Iterator[_Entry]:
    """Yield the layers and operations of a graph or chain, in order; nothing for other models."""
    graph = getattr(model, "_graph", None)
    if graph is None:
        chain = list(model.layers) if type(model).__name__ == "Sequential" else []
        for before, layer in zip([None, *chain], chain, strict=False):
            sources = () if before is None else ((before.name, 0, None),)
            yield _Entry(layer.name, layer, None, None, sources)
        return
    for step in graph.steps:
        parents = [tensor for node in step.nodes for tensor in node.parents]
        sources = tuple((*graph.places[id(tensor)][::2], tensor) for tensor in parents)  # a place: (name, _, index)
        if step.nodes:
            inputs, outputs = step.nodes[0].inputs, step.nodes[0].outputs
        else:
            inputs = outputs = step.operation.output
        yield _Entry(step.name, step.operation, inputs, outputs, sources)


def _output_of(model: Any, index: int) -> str:
    """Return the layer that computes the output of this index."""
    return model._graph.places[id(jax.tree.leaves(model._graph.outputs)[index])][0]


def _input_of(model: Any, index: int) -> str:
    """Return the input layer of this index."""
    return model._graph.steps[min(index, len(model._graph.specs) - 1)].name


def _label(entry: _Entry, shows: _Shows) -> str:
    """Return the label of a node: a table in Graphviz's markup, with escaped text."""
    layer, kind = entry.operation, type(entry.operation).__name__
    title = f"<b>{html.escape(entry.name)}</b> ({html.escape(kind)})" if shows.names else f"<b>{html.escape(kind)}</b>"
    rows = [f'<tr><td bgcolor="black"><font color="white" point-size="16">{title}</font></td></tr>']
    activation = getattr(layer, "activation", None)
    if shows.activations and activation is not None:
        rows.append(_row("Activation", getattr(activation, "__name__", shorten(activation))))
    if shows.shapes:
        if not isinstance(layer, InputLayer):
            rows.append(_row("Input shape", _text(entry.inputs, "shape")))
        rows.append(_row("Output shape", _text(entry.outputs, "shape")))
    if shows.dtype:
        rows.append(_row("Output dtype", _text(entry.outputs, "dtype")))
    weights = getattr(layer, "weights", [])
    if shows.trainable and weights:
        rows.append(_row("Trained", "yes" if layer.trainable else "no"))
    if shows.distribution is not None:
        for weight in weights:
            layout = "?" if weight.layout is None else render_axes(weight.layout.axes)
            rows.append(_row(weight.name, f"{weight.shape} {layout}"))
    return f'<<table border="0" cellborder="1" cellspacing="0" cellpadding="8">{"".join(rows)}</table>>'


def _row(name: str, value: str) -> str:
    return f'<tr><td bgcolor="white">{html.escape(name)}: <b>{html.escape(value)}</b></td></tr>'


def _text(tensors: PyTree, attribute: str) -> str:
    return "?" if tensors is None else str(jax.tree.map(lambda tensor: getattr(tensor, attribute), tensors))


def _layout_of(source: _Entry, name: str, tensor: Any, distribution: Distribution | None) -> str:
    """Return the layout of an activation by its rule, or of an input, as text; empty without a rule."""
    if distribution is None or tensor is None:
        return ""
    layout = distribution.get_tensor_layout(f"{name}/output")
    if layout is None and isinstance(source.operation, InputLayer):
        layout = distribution.get_tensor_layout(f"input/{source.name}") or distribution.get_data_layout(tensor.shape)
    return "" if layout is None else render_axes(layout.axes)


def _check_built(model: Any) -> None:
    if getattr(model, "_built", None) is None and not getattr(model, "built", False):
        fix = "model.build((None, 28, 28, 1)), or a model that begins with Input"
        raise ModelError("a model must be built before its graph is drawn", given=shorten(model), fix=fix)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
