"""`Graph`: the calls of a functional model, each known by a name and a number, as configs and tables mention them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from keras_dist.layers import InputLayer
from keras_dist.layers.symbolic import KerasTensor, Node, Operation
from keras_dist.models.naming import free_name
from keras_dist.models.program import nodes_between

Place = tuple[str, int, int]
"""Where a tensor comes from: the name of a step, which of its calls, which of the outputs of that call."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A layer or operation of a graph, with all its calls.

    Attributes:
        name: known by no other step.
        operation: a layer, or an `Operation`.
        nodes: its calls in order; none of an input.
    """

    name: str
    operation: Any
    nodes: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The calls of a functional model.

    Attributes:
        steps: the inputs, then layers and operations in the order of their first calls.
        places: for each tensor, by id, where it comes from.
    """

    steps: tuple[Step, ...]
    places: Mapping[int, Place]

    @property
    def is_chain(self) -> bool:
        """Whether each step has one call, on what the one before it gave alone."""
        inputs = [step for step in self.steps if not step.nodes]
        calls = self.steps[len(inputs) :]
        parents = [[self.places[id(tensor)][0] for node in step.nodes for tensor in node.parents] for step in calls]
        return len(inputs) == 1 and parents == [[step.name] for step in self.steps[: len(calls)]]


def graph_of(inputs: Any, outputs: Any, names: Mapping[int, str]) -> Graph:
    """The graph between symbolic inputs and outputs.

    Args:
        inputs: a structure of symbolic tensors.
        outputs: likewise.
        names: for each layer between them, by id, its name in the model.
    """
    calls: dict[int, list[Node]] = {}
    for node in nodes_between(inputs, outputs):
        calls.setdefault(id(node.operation), []).append(node)
    taken = {*names.values()}
    steps, places = [], {}
    for tensor in jax.tree.leaves(inputs):
        layer = _input_layer(tensor)
        name = free_name(layer.name, taken)
        taken.add(name)
        steps.append(Step(name, layer, ()))
        places[id(tensor)] = (name, 0, 0)
    for nodes in calls.values():
        operation = nodes[0].operation
        name = free_name(operation.name, taken) if isinstance(operation, Operation) else names[id(operation)]
        taken.add(name)
        steps.append(Step(name, operation, tuple(nodes)))
        for number, node in enumerate(nodes):
            leaves = jax.tree.leaves(node.outputs)
            places |= {id(leaf): (name, number, index) for index, leaf in enumerate(leaves)}
    return Graph(tuple(steps), places)


def _input_layer(tensor: KerasTensor) -> InputLayer:
    """The layer that gives an input; a new one where a model begins in the middle of another graph."""
    if tensor.node is not None and isinstance(tensor.node.operation, InputLayer):
        return tensor.node.operation
    return InputLayer(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name.replace("/", "_"))
