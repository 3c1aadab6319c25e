"""`LayerRecord`: state of a layer outside of its NNX graph, where NNX would copy it.

What a layer has besides arrays is one record in one slot: NNX takes attributes for parts of the graph, and copies them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard

import jax
from flax import nnx

from keras_dist._support.types import PyTree
from keras_dist.symbolic.tensors import Node
from keras_dist.variables.variable import Variable


class Membership(Protocol):
    """The model that a layer is in."""

    prefix: str

    def handle(self, variable: nnx.Variable) -> Any: ...

    def note_symbols(self) -> None: ...

    def add_weights(self, layer: Any, change: Callable[[], None]) -> None: ...


@dataclasses.dataclass(eq=False)
class LayerRecord:
    """State of a layer outside of its NNX graph; empty in copies.

    Attributes:
        nodes: calls on symbolic tensors.
        original: of a copy that is called for shapes, the layer that was copied.
        membership: the first model that contains the layer.
        built_for_shapes: whether a call on symbolic tensors has built the layer, or a model that creates its weights.
        views: views of the weights of a foreign module outside of a model, by path.
        made: names and weights created so far by a running `build`; None at other times.
        shapes: the arguments of `build`, by parameter.
        added: losses added in the last call.
        made_in_call: whether the layer was made in the call of another layer.
    """

    nodes: list[Node] = dataclasses.field(default_factory=list)
    original: Any = None
    membership: Membership | None = None
    built_for_shapes: bool = False
    views: dict[str, Variable] = dataclasses.field(default_factory=dict)
    made: list[tuple[str, Variable]] | None = None
    shapes: dict[str, PyTree] = dataclasses.field(default_factory=dict)
    added: list[jax.Array] = dataclasses.field(default_factory=list)
    made_in_call: bool = False


def is_layer(module: Any) -> TypeGuard[Any]:
    """Return whether a module is a `Layer`: no other class has a record."""
    return hasattr(type(module), "_record_type")


def layers_inside(layer: Any) -> Iterator[Any]:
    """Yield a layer and all layers inside it, each once."""
    yield layer
    yield from (node for _, node in nnx.iter_graph(layer) if is_layer(node) and node is not layer)
