"""`Program`: a functional model as a list of calls, between inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.layers.other_libraries import check_is_ours
from keras_dist.layers.symbolic import KerasTensor, Node, Operation
from keras_dist.models.naming import free_name


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of a tensor among the values of a run."""

    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer or operation.

    Attributes:
        operation: the layer's name among the members, or an `Operation`.
        args: positional arguments, with slots in the place of tensors.
        kwargs: arguments by name, likewise.
        outputs: what it gives, likewise.
    """

    operation: str | Operation
    args: Any
    kwargs: Any
    outputs: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The calls of a functional model in order.

    Attributes:
        calls: the calls.
        inputs: structure of the inputs, with slots in the place of tensors.
        outputs: structure of the outputs, likewise.
        specs: the symbolic inputs, in flattening order.
        optional: for each whether it may be None.
        output_names: the layer that each output is of, in flattening order.
    """

    calls: tuple[Call, ...]
    inputs: Any
    outputs: Any
    specs: tuple[KerasTensor, ...]
    optional: tuple[bool, ...]
    output_names: tuple[str, ...]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs."""
        return [spec.name for spec in self.specs]

    def run(self, members: Mapping[str, Callable[..., Any]], inputs: Any) -> Any:
        """The outputs for the inputs.

        Args:
            members: the layers by name.
            inputs: arrays in the structure of the model's inputs, or a list, or a dict by the names of the inputs.

        Returns:
            Arrays in the structure of the model's outputs; of a list or tuple of one output this one.

        Raises:
            ModelError: the inputs do not fit.
        """
        values: dict[int, Any] = dict(zip(_indices(self.inputs), self._arranged(inputs), strict=True))
        for call in self.calls:
            operation = members[call.operation] if isinstance(call.operation, str) else call.operation
            args, kwargs = _filled((call.args, call.kwargs), values)
            outputs = operation(*args, **kwargs)
            values |= zip(_indices(call.outputs), jax.tree.leaves(outputs), strict=True)
        outputs = _filled(self.outputs, values)
        return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs

    def structured(self, outputs: Any) -> Any:
        """What stands for the outputs, in the structure in which they were given, lists of one included."""
        return jax.tree.unflatten(jax.tree.structure(self.outputs), jax.tree.leaves(outputs, is_leaf=_is_shape))

    def _arranged(self, inputs: Any) -> list[Any]:
        """The inputs in flattening order, as their specs want them."""
        given = self._in_order(inputs)
        if len(given) != len(self.specs):
            raise self._misfit(f"{len(given)} input(s)", f"{len(self.specs)} input(s): {', '.join(self.input_names)}")
        return [
            self._checked(spec, value, optional)
            for spec, value, optional in zip(self.specs, given, self.optional, strict=True)
        ]

    def _in_order(self, inputs: Any) -> list[Any]:
        if isinstance(inputs, Mapping) and isinstance(self.inputs, Mapping):
            by_slot = dict(self._matched(self.inputs, inputs, "a dict"))
            return [by_slot[index] for index in _indices(self.inputs)]
        if isinstance(inputs, Mapping):
            missing = [
                name
                for name, optional in zip(self.input_names, self.optional, strict=True)
                if name not in inputs and not optional
            ]
            if missing:
                near = "".join(did_you_mean(name, map(str, inputs)) for name in missing)
                raise self._misfit(f"a dict with {list(inputs)}{near}", f"a dict with {self.input_names}")
            return [inputs.get(name) for name in self.input_names]
        return jax.tree.leaves(inputs, is_leaf=lambda leaf: leaf is None)

    def _matched(self, wanted: Any, given: Any, place: str) -> Iterator[tuple[int, Any]]:
        """What is given for each slot, in dicts and lists as deep as those of the inputs."""
        if isinstance(wanted, Slot):
            yield wanted.index, given
        elif isinstance(wanted, Mapping) and isinstance(given, Mapping):
            if not {*wanted} <= {*given}:
                raise self._misfit(f"{place} with {list(given)}", f"{place} with {list(wanted)}")
            for key in wanted:
                yield from self._matched(wanted[key], given[key], f"{key!r}: a dict")
        elif isinstance(wanted, list | tuple) and isinstance(given, list | tuple) and len(wanted) == len(given):
            for one, value in zip(wanted, given, strict=True):
                yield from self._matched(one, value, place)
        else:
            names = dict(zip(_indices(self.inputs), self.input_names, strict=True))
            raise self._misfit(f"{place.split(':')[0]}: {shorten(given)}", f"{_filled(wanted, names)}")

    def _checked(self, spec: KerasTensor, value: Any, optional: bool) -> Any:
        if value is None and optional:
            return None
        if value is None or not hasattr(value, "shape"):
            raise self._misfit(f"{shorten(value)} for input {spec.name!r}", f"an array of shape {spec.shape}")
        if value.ndim == spec.ndim - 1 and spec.shape[-1] == 1:
            value = value[..., None]  # as in Keras: (batch,) for Input((1,))
        elif value.ndim == spec.ndim + 1 and value.shape[-1] == 1:
            value = jnp.squeeze(value, -1)
        fits = value.ndim == spec.ndim and all(
            wanted in (None, size) for wanted, size in zip(spec.shape, value.shape, strict=True)
        )
        if not fits:
            raise self._misfit(f"shape {tuple(value.shape)} for input {spec.name!r}", f"shape {spec.shape}")
        return jnp.asarray(value, spec.dtype)

    def _misfit(self, given: str, expected: str) -> ModelError:
        return ModelError(
            "the inputs do not fit the model",
            given=given,
            expected=expected,
            fix="pass the inputs in the order of model.inputs, or by name; the first dim is the batch",
        )


def trace_program(inputs: Any, outputs: Any, names: Mapping[int, str]) -> Program:
    """The program between symbolic inputs and outputs.

    Args:
        inputs: a structure of symbolic tensors.
        outputs: likewise.
        names: for each layer, by id, its name among the members.
    """
    specs = jax.tree.leaves(inputs)
    nodes = nodes_between(inputs, outputs)
    slots: dict[int, Slot] = {}

    def slot(leaf: Any) -> Any:
        return slots.setdefault(id(leaf), Slot(len(slots))) if isinstance(leaf, KerasTensor) else leaf

    def slotted(tree: Any) -> Any:
        return jax.tree.map(slot, tree)

    inputs = slotted(inputs)
    calls = tuple(
        Call(
            node.operation if isinstance(node.operation, Operation) else names[id(node.operation)],
            slotted(node.args),
            slotted(node.kwargs),
            slotted(node.outputs),
        )
        for node in nodes
    )
    optional = tuple(bool(getattr(spec.node and spec.node.operation, "optional", False)) for spec in specs)
    return Program(calls, inputs, slotted(outputs), tuple(specs), optional, _output_names(outputs, names))


def nodes_between(inputs: Any, outputs: Any) -> list[Node]:
    """The calls that lead from inputs to outputs, in the order in which they were made.

    Raises:
        ModelError: one of them is no symbolic tensor, or an output does not depend on these inputs alone.
    """
    known = {id(tensor) for tensor in _leaves("inputs", inputs)}
    found: dict[int, Node] = {}
    waiting = [(tensor, tensor, "") for tensor in _leaves("outputs", outputs)]
    while waiting:
        tensor, output, use = waiting.pop()
        node = tensor.node
        if id(tensor) in known or (node is not None and id(node) in found):
            continue
        if node is None or (not node.args and not node.kwargs):
            raise _disconnected(output, tensor, use, jax.tree.leaves(inputs))
        found[id(node)] = node
        for number, parent in enumerate(node.parents):
            waiting.append((parent, output, f", argument {number} of {node.operation.name!r}"))
    return sorted(found.values(), key=lambda node: node.number)


def _leaves(argument: str, tree: Any) -> list[KerasTensor]:
    """The symbolic tensors in `inputs` or `outputs` of a model.

    Raises:
        ModelError: one of them is none, or the keys of a dict have no order.
    """
    try:
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)
    except ValueError:
        raise ModelError(
            f"Model: the keys of `{argument}` cannot be put in order",
            given=f"{argument}={shorten(tree)}",
            expected="a dict whose keys are strings",
            fix="name inputs and outputs by strings",
        ) from None
    for leaf in leaves if leaves else [tree]:
        if not isinstance(leaf, KerasTensor):
            check_is_ours(f"Model: `{argument}`: it", leaf)
            raise ModelError(
                f"Model: `{argument}` are not symbolic tensors",
                given=f"{shorten(leaf)} of type {type(leaf).__name__}",
                expected="what Input(shape) gives, and what layers give for it",
                fix="inputs = Input((8,)); outputs = layers.Dense(3)(inputs); Model(inputs, outputs)",
            )
    return leaves


def _disconnected(output: KerasTensor, tensor: KerasTensor, use: str, inputs: Sequence[KerasTensor]) -> ModelError:
    given = [f"{leaf.name!r} of shape {leaf.shape}" for leaf in inputs]
    missing = f"{tensor.name!r} of shape {tensor.shape}"
    another = ", another one than the input of this name" if missing in given else ""
    return ModelError(
        f"the graph is disconnected: output {output.name!r} depends on {tensor.name!r}, which is not an input",
        given=f"inputs {', '.join(given)}, and an output that depends on {missing}{use}{another}",
        expected="every tensor that the outputs depend on among the inputs, or computed from them",
        fix=f"add {tensor.name!r} to the inputs of the model, or compute the output from its inputs",
    )


def _output_names(outputs: Any, names: Mapping[int, str]) -> tuple[str, ...]:
    found = []
    for tensor in jax.tree.leaves(outputs):
        layer = names.get(id(tensor.node.operation)) if tensor.node is not None else None
        found.append(free_name(layer or tensor.name.removesuffix("/output"), found))
    return tuple(found)


def _indices(tree: Any) -> list[int]:
    return [leaf.index for leaf in jax.tree.leaves(tree) if isinstance(leaf, Slot)]


def _filled(tree: Any, values: Mapping[int, Any]) -> Any:
    return jax.tree.map(lambda leaf: values[leaf.index] if isinstance(leaf, Slot) else leaf, tree)


def members_of(nodes: Sequence[Node]) -> list[Any]:
    """The layers that the calls are of, each once, in the order of their first call."""
    layers = [node.operation for node in nodes if not isinstance(node.operation, Operation)]
    return list({id(layer): layer for layer in layers}.values())


def in_keras_order(layers: Sequence[Any], nodes: Sequence[Node], outputs: Any) -> list[Any]:
    """The layers as Keras lists those of a functional model: the farthest from the outputs first.

    Of those that are equally far, the one that is met first on the way back from the outputs.
    """
    known = {id(node) for node in nodes}
    met: dict[int, int] = {}
    visited: dict[int, Node] = {}

    for output in jax.tree.leaves(outputs):
        waiting = [(output.node, False)]  # not by recursion: models may be deeper than Python's stack
        while waiting:
            node, is_left = waiting.pop()
            if node is None or id(node) in visited:
                continue
            if is_left:
                visited[id(node)] = node
                continue
            met.setdefault(id(node.operation), len(met))
            waiting.append((node, True))
            if id(node) in known:
                waiting += [(parent.node, False) for parent in reversed(node.parents)]
    depths: dict[int, int] = {}
    of_operations: dict[int, int] = {}
    for node in reversed(visited.values()):
        depth = max(depths.get(id(node), 0), of_operations.get(id(node.operation), 0))
        depths[id(node)] = of_operations[id(node.operation)] = depth
        for parent in node.parents if id(node) in known else ():
            if parent.node is not None:
                depths[id(parent.node)] = max(depth + 1, depths.get(id(parent.node), 0))
    return sorted(layers, key=lambda layer: (-of_operations.get(id(layer), 0), met.get(id(layer), 0)))


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(size is None or isinstance(size, int) for size in value)
