"""`LayerRuntime`: the state of a layer beside its NNX graph, which copies of the graph do not take along."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from keras_dist._support.types import PyTree

if TYPE_CHECKING:
    import jax
    from flax import nnx

    from keras_dist.layers.layer import Layer
    from keras_dist.symbolic.tensors import Node
    from keras_dist.variables.variable import Variable


class Membership(Protocol):
    """Membership of a layer in a model."""

    prefix: str

    def handle(self, variable: nnx.Variable) -> Any:
        """Return a handle on a foreign variable."""
        ...

    def add_weights(self, layer: Layer, change: Callable[[], None]) -> None:
        """Run `change`, which adds weights to the layer or freezes some, and update the model."""
        ...


@dataclasses.dataclass(eq=False)
class LayerRuntime:
    """The state of a layer beside its NNX graph.

    Attributes:
        nodes: its calls on symbolic tensors.
        first_call: of a copy, how the layer was called first, which is in `nodes` of the original; None after it was
            built so.
        membership: the first model that it is in; None outside of models.
        views: the views of the weights of a foreign module that is in no model, by path.
        made: the weights that its `build` has created so far, with their names; None while it is not being built.
        shapes: those it was built for, by the parameters of `build`.
        built_with: static attributes after building.
        added: what it added to the loss in the last call.
        is_passing: whether it was made in the call of another layer.
    """

    nodes: list[Node] = dataclasses.field(default_factory=list)
    first_call: Node | None = None
    membership: Membership | None = None
    views: dict[str, Variable] = dataclasses.field(default_factory=dict)
    made: list[tuple[str, Variable]] | None = None
    shapes: dict[str, PyTree] = dataclasses.field(default_factory=dict)
    built_with: dict[str, Any] = dataclasses.field(default_factory=dict)
    added: list[jax.Array] = dataclasses.field(default_factory=list)
    is_passing: bool = False


class HasRuntime:
    """A module with a runtime beside its NNX graph. Copies begin with an empty one."""

    __slots__ = ("_arguments", "_runtime")

    _runtime: LayerRuntime
    _runtime_type: ClassVar[type[LayerRuntime]] = LayerRuntime

    def _begin_runtime(self) -> LayerRuntime:
        """Create the runtime."""
        runtime = self._runtime_type()
        object.__setattr__(self, "_runtime", runtime)  # past NNX, which would take it for a part of the graph
        return runtime
