"""`LayerRecord`: the state of a layer beside its NNX graph, which copies of the graph do not take along."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from keras_dist._types import PyTree

if TYPE_CHECKING:
    import jax
    from flax import nnx

    from keras_dist.layers.layer import Layer
    from keras_dist.layers.symbolic import Node
    from keras_dist.layers.variable import Variable
    from keras_dist.layers.weights import OwnWeight


class Binding(Protocol):
    """The link from a layer to the model that it is in, which has its arrays."""

    prefix: str

    def weights(self) -> list[Any]:
        """Return handles on the weights of the layer and its sublayers."""
        ...

    def own_weights(self) -> list[Any]:
        """Return handles on the weights of the layer itself."""
        ...

    def generators(self) -> list[Any]:
        """Handles on the states of the random generators of the layer and its sublayers."""
        ...

    def added_losses(self) -> list[jax.Array]:
        """Return the losses that the layer and its sublayers added in the last call."""
        ...

    def penalties(self, weights: Sequence[Any]) -> list[jax.Array]:
        """Return the penalties of the regularizers of these weights."""
        ...

    def attribute(self, name: str) -> Any:
        """Return the attribute that building the layer has added."""
        ...

    def made_by_building(self, layer: Layer) -> list[tuple[str | int, nnx.Variable | nnx.Module]]:
        """Return the sublayers, with their names, that building has added to what the user's layer holds."""
        ...

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """Call the layer on arrays, with its current weights."""
        ...

    def grow(self, change: Callable[[Any], None]) -> None:
        """Let `change`, which is given the layer, add weights to it and freeze others, in the model."""
        ...

    def check_inputs(self, args: tuple[Any, ...]) -> None:
        """Check that symbolic inputs are what the layer was built for."""
        ...

    def module(self) -> nnx.Module:
        """Return the layer with copies of its current values."""
        ...


@dataclasses.dataclass(eq=False)
class LayerRecord:
    """The state of a layer beside its NNX graph.

    Attributes:
        nodes: its calls on symbolic tensors.
        first_call: of a copy, how the layer was called first, which is in `nodes` of the original; None after it was
            built so.
        binding: where its weights are in a model; None outside of models.
        given_up: the weights that it had before it was in a model, without their arrays, by attributes.
        handles: those on the weights of a foreign module that is in no model, by their paths.
        made: the weights that its `build` has created so far, with their names; None while it is not being built.
        shapes: those it was built for, by the parameters of `build`.
        added: what it added to the loss in the last call.
        is_passing: whether it was made in the call of another layer.
    """

    nodes: list[Node] = dataclasses.field(default_factory=list)
    first_call: Node | None = None
    binding: Binding | None = None
    given_up: dict[str, tuple[Any, PyTree]] = dataclasses.field(default_factory=dict)
    handles: dict[str, OwnWeight] = dataclasses.field(default_factory=dict)
    made: list[tuple[str, Variable]] | None = None
    shapes: dict[str, PyTree] = dataclasses.field(default_factory=dict)
    added: list[jax.Array] = dataclasses.field(default_factory=list)
    is_passing: bool = False


class Recorded:
    """A module with a record beside its NNX graph. Copies begin with an empty one."""

    __slots__ = ("_arguments", "_outside")

    _outside: LayerRecord
    _record_type: ClassVar[type[LayerRecord]] = LayerRecord

    def _begin_record(self) -> LayerRecord:
        """Create the record."""
        record = self._record_type()
        object.__setattr__(self, "_outside", record)  # past NNX, which would take it for a part of the graph
        return record


def binding_of(node: Any) -> Binding | None:
    """Return the link of a layer to its model; None outside of models, and for other modules."""
    return node._outside.binding if isinstance(node, Recorded) else None
