"""`Graph`: the calls of a functional model between symbolic inputs and outputs.

A layer declares `is_host_side`, and the graph is split there: text never reaches JAX, and arrays in memory pass the
host layers once, not in each epoch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from keras_dist._support.located_warnings import warn
from keras_dist._support.types import PyTree
from keras_dist.errors import ModelError, did_you_mean, shorten, with_type
from keras_dist.layers import InputLayer, Layer
from keras_dist.layers.base.host_layer import as_rows
from keras_dist.layers.base.names import free_name, name_members
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.symbolic.tensors import KerasTensor, Node, Operation, runs_on_host

Place = tuple[str, int, int]  # origin of a tensor: name of a step, index of its call, index of an output of the call


@dataclasses.dataclass(frozen=True, eq=False)
class GraphStep:
    """A layer or operation of a graph, with a unique name and its calls in order; inputs have no calls."""

    name: str
    operation: Layer | Operation
    nodes: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The calls of a functional model."""

    inputs: PyTree  # symbolic tensors
    outputs: PyTree
    nodes: tuple[Node, ...]  # calls in the order in which they were made
    names: Mapping[int, str]  # of the layers in the model, by id

    @functools.cached_property
    def specs(self) -> list[KerasTensor]:
        """The symbolic inputs, in flattening order."""
        return jax.tree.leaves(self.inputs)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs."""
        return [spec.name for spec in self.specs]

    @functools.cached_property
    def output_names(self) -> list[str]:
        """The name of the layer that computes each output, in flattening order."""
        found: list[str] = []
        for tensor in jax.tree.leaves(self.outputs):
            layer = self.names.get(id(tensor.node.operation)) if tensor.node is not None else None
            found.append(free_name(layer or tensor.name.removesuffix("/output"), found))
        return found

    @functools.cached_property
    def host_nodes(self) -> tuple[Node, ...]:
        """The calls of layers that run on the host."""
        return tuple(node for node in self.nodes if runs_on_host(node.operation))

    @functools.cached_property
    def on_devices(self) -> Graph:
        """The part that runs on devices; its inputs are the outputs of the host part: a list or one tensor."""
        if not self.host_nodes:
            return self
        nodes = tuple(node for node in self.nodes if not runs_on_host(node.operation))
        wanted = {id(tensor) for node in nodes for tensor in node.parents}
        wanted |= {id(tensor) for tensor in jax.tree.leaves(self.outputs)}
        known = [*self.specs, *(tensor for node in self.host_nodes for tensor in jax.tree.leaves(node.outputs))]
        inputs = [tensor for tensor in known if id(tensor) in wanted]
        return Graph(inputs[0] if len(inputs) == 1 else inputs, self.outputs, nodes, self.names)

    def run_on_host(self, inputs: PyTree) -> dict[int, Any]:
        """Compute the part on the host for rows of the inputs; return all values by the ids of tensors."""
        if isinstance(inputs, Mapping):
            given = self._in_order(inputs)
        elif len(self.specs) == 1:
            is_listed = isinstance(inputs, list | tuple) and len(inputs) == 1 and hasattr(inputs[0], "shape")
            given = [inputs[0] if is_listed else inputs]
        else:
            given = [*inputs]
        self._check_count(given)
        rows = [_of_rank(spec, as_rows(value, spec.name)) for spec, value in zip(self.specs, given, strict=True)]
        values: dict[int, Any] = dict(zip(map(id, self.specs), rows, strict=True))
        for node in self.host_nodes:
            args, kwargs = replaced((node.args, node.kwargs), values)
            outputs = node.operation.transform(*args, **kwargs)  # type: ignore[union-attr]
            values |= zip(map(id, jax.tree.leaves(node.outputs)), jax.tree.leaves(outputs), strict=True)
        return values

    def run(self, members: Mapping[str, Callable[..., PyTree]], inputs: PyTree) -> PyTree:
        """Return the outputs in the structure of the model's outputs; a list of one output is unwrapped."""
        values: dict[int, Any] = dict(zip(map(id, self.specs), self._arranged(inputs), strict=True))
        for node in self.nodes:
            is_layer = not isinstance(node.operation, Operation)
            operation = members[self.names[id(node.operation)]] if is_layer else node.operation
            args, kwargs = replaced((node.args, node.kwargs), values)
            outputs = operation(*args, **kwargs)
            values |= zip(map(id, jax.tree.leaves(node.outputs)), jax.tree.leaves(outputs), strict=True)
        outputs = replaced(self.outputs, values)
        return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs

    def structured(self, outputs: PyTree) -> PyTree:
        """Arrange output values in the structure in which the outputs were given."""
        return jax.tree.unflatten(jax.tree.structure(self.outputs), jax.tree.leaves(outputs, is_leaf=is_shape))

    @property
    def starts(self) -> list[Any]:
        """The input layers; new ones for inputs that another graph computes."""
        return [step.operation for step in self.steps[: len(self.specs)]]

    @functools.cached_property
    def steps(self) -> tuple[GraphStep, ...]:
        """The inputs, then layers and operations in the order of their first calls."""
        calls: dict[int, list[Node]] = {}
        for node in self.nodes:
            calls.setdefault(id(node.operation), []).append(node)
        taken = {*self.names.values()}
        steps = []
        for tensor in self.specs:
            layer = _input_layer(tensor)
            steps.append(GraphStep(free_name(layer.name, taken), layer, ()))
            taken.add(steps[-1].name)
        for nodes in calls.values():
            operation = nodes[0].operation
            name = self.names.get(id(operation)) or free_name(operation.name, taken)
            steps.append(GraphStep(name, operation, tuple(nodes)))
            taken.add(name)
        return tuple(steps)

    @functools.cached_property
    def places(self) -> dict[int, Place]:
        """The origin of each tensor by its id: layer name, call index, output index."""
        starts = self.steps[: len(self.specs)]
        places = {id(tensor): (step.name, 0, 0) for tensor, step in zip(self.specs, starts, strict=True)}
        for step in self.steps:
            for number, node in enumerate(step.nodes):
                leaves = jax.tree.leaves(node.outputs)
                places |= {id(leaf): (step.name, number, index) for index, leaf in enumerate(leaves)}
        return places

    @functools.cached_property
    def is_chain(self) -> bool:
        """Whether each step has one call, whose only argument is the output of the step before."""
        calls = self.steps[len(self.specs) :]
        parents = [[self.places[id(tensor)][0] for node in step.nodes for tensor in node.parents] for step in calls]
        return len(self.specs) == 1 and parents == [[step.name] for step in self.steps[: len(calls)]]

    def _arranged(self, inputs: PyTree) -> list[Any]:
        """Return the inputs in flattening order, checked and cast."""
        given = self._in_order(inputs)
        self._check_count(given)
        return [self._checked(spec, value) for spec, value in zip(self.specs, given, strict=True)]

    def _check_count(self, given: list[Any]) -> None:
        if len(given) != len(self.specs):
            raise self._misfit(f"{len(given)} input(s)", f"{len(self.specs)} input(s): {', '.join(self.input_names)}")

    def _in_order(self, inputs: PyTree) -> list[Any]:
        if isinstance(inputs, Mapping) and isinstance(self.inputs, Mapping):
            given = dict(self._matched(self.inputs, inputs, "a dict"))
            if not {*inputs} <= {*self.inputs}:
                self._warn_of_structure(inputs)
            return [given[id(spec)] for spec in self.specs]
        if isinstance(inputs, Mapping):
            missing = [spec.name for spec in self.specs if spec.name not in inputs and not _is_optional(spec)]
            if missing:
                near = "".join(did_you_mean(name, map(str, inputs)) for name in missing)
                raise self._misfit(f"a dict with {list(inputs)}{near}", f"a dict with {self.input_names}")
            return [inputs.get(name) for name in self.input_names]
        if isinstance(self.inputs, Mapping) and len(self.specs) > 1:
            if [*self.inputs] != sorted(self.inputs):  # are they in the order of the dict, or sorted?
                raise self._misfit(f"a {type(inputs).__name__}", f"a dict with {[*self.inputs]}")
            self._warn_of_structure(inputs)
        return jax.tree.leaves(inputs, is_leaf=lambda leaf: leaf is None)

    @functools.cached_property
    def _warned_of(self) -> set[Any]:
        return set()

    def _warn_of_structure(self, inputs: PyTree) -> None:
        """Warn, once, that inputs have another structure than the model's."""
        structure = jax.tree.structure(inputs)
        if structure not in self._warned_of:
            self._warned_of.add(structure)
            given = f"a dict with {[*inputs]}" if isinstance(inputs, Mapping) else f"a {type(inputs).__name__}"
            warn(
                "The structure of `inputs` doesn't match the expected structure: "
                f"given {given}, expected a dict with {[*self.inputs]}; pass such a dict"
            )

    def _matched(self, wanted: PyTree, given: PyTree, place: str) -> Iterator[tuple[int, Any]]:
        """Yield the value of each tensor, by id, from dicts and lists nested like the inputs."""
        if isinstance(wanted, KerasTensor):
            yield id(wanted), given
        elif isinstance(wanted, Mapping) and isinstance(given, Mapping):
            if not {*wanted} <= {*given}:
                raise self._misfit(f"{place} with {list(given)}", f"{place} with {sorted(wanted)}")
            for key in wanted:
                yield from self._matched(wanted[key], given[key], f"{key!r}: a dict")
        elif isinstance(wanted, list | tuple) and isinstance(given, list | tuple) and len(wanted) == len(given):
            for one, value in zip(wanted, given, strict=True):
                yield from self._matched(one, value, place)
        else:
            names = jax.tree.map(lambda tensor: tensor.name, wanted)
            raise self._misfit(f"{place.split(':')[0]}: {shorten(given)}", f"{names}")

    def _checked(self, spec: KerasTensor, value: Any) -> Any:
        if value is None and _is_optional(spec):
            return None
        if value is None or not hasattr(value, "shape"):
            raise self._misfit(f"{shorten(value)} for input {spec.name!r}", f"an array of shape {spec.shape}")
        value = _of_rank(spec, value)
        fits = value.ndim == spec.ndim and all(
            wanted in (None, size) for wanted, size in zip(spec.shape[1:], value.shape[1:], strict=True)
        )  # as in Keras, a batch may have another size than in `Input`
        if not fits:
            raise self._misfit(f"shape {tuple(value.shape)} for input {spec.name!r}", f"shape {spec.shape}")
        return jnp.asarray(value, spec.dtype)

    def _misfit(self, given: str, expected: str) -> ModelError:
        fix = "pass the inputs in the order of model.inputs, or by name; the first dim is the batch"
        return ModelError("the inputs do not fit the model", given=given, expected=expected, fix=fix)


def replaced(tree: PyTree, values: Mapping[int, Any]) -> PyTree:
    """Replace symbolic tensors in `tree` by values with the same ids; keep other leaves."""
    return jax.tree.map(lambda leaf: values.get(id(leaf), leaf) if isinstance(leaf, KerasTensor) else leaf, tree)


def connected(inputs: PyTree, outputs: PyTree) -> tuple[nnx.Dict, Graph]:
    """Return the layers and the graph of a functional model."""
    nodes = nodes_between(inputs, outputs)
    layers = list({id(node.operation): node.operation for node in nodes if isinstance(node.operation, Layer)}.values())
    starts = input_layers(inputs)
    names = {id(layer): name for name, layer in name_members([*starts, *layers]).items()}
    for layer in starts:
        layer.output.name = layer.name
    listed = _in_keras_order(layers, nodes, outputs)
    members = nnx.Dict({names[id(layer)]: layer for layer in listed})
    return members, Graph(inputs, outputs, nodes, {id(layer): names[id(layer)] for layer in layers})


def input_layers(inputs: PyTree) -> list[InputLayer]:
    """Return the layers of symbolic inputs."""
    nodes = [tensor.node for tensor in jax.tree.leaves(inputs)]
    return [node.operation for node in nodes if node is not None and isinstance(node.operation, InputLayer)]


def nodes_between(inputs: PyTree, outputs: PyTree) -> tuple[Node, ...]:
    """Return the calls between inputs and outputs, in the order of their creation."""
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
    return tuple(sorted(found.values(), key=lambda node: node.number))


def _leaves(argument: str, tree: PyTree) -> list[KerasTensor]:
    """Return the symbolic tensors in `inputs` or `outputs` of a model."""
    try:
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)
    except ValueError:
        summary = f"Model: the keys of `{argument}` cannot be put in order"
        fix = "name inputs and outputs by strings"
        raise ModelError(summary, given=f"{argument}={shorten(tree)}", fix=fix) from None
    for leaf in leaves if leaves else [tree]:
        if not isinstance(leaf, KerasTensor):
            check_is_ours(f"Model: `{argument}`: it", leaf)
            fix = "inputs = Input((8,)); outputs = layers.Dense(3)(inputs); Model(inputs, outputs)"
            raise ModelError(f"Model: `{argument}` must be symbolic tensors", given=with_type(leaf), fix=fix)
    return leaves


def _disconnected(output: KerasTensor, tensor: KerasTensor, use: str, inputs: Sequence[KerasTensor]) -> ModelError:
    given = [f"{leaf.name!r} of shape {leaf.shape}" for leaf in inputs]
    missing = f"{tensor.name!r} of shape {tensor.shape}"
    another = ", not the input of this name" if missing in given else ""
    return ModelError(
        f"the graph is disconnected: output {output.name!r} depends on {tensor.name!r}, which is not an input",
        given=f"inputs {', '.join(given)}, and an output that depends on {missing}{use}{another}",
        fix=f"add {tensor.name!r} to the inputs of the model, or compute the output from its inputs",
    )


def _in_keras_order(layers: Sequence[Layer], nodes: Sequence[Node], outputs: PyTree) -> list[Layer]:
    """Sort the layers as Keras does: farthest from the outputs first, then as met on the way back from the outputs."""
    known = {id(node) for node in nodes}
    met: dict[int, int] = {}
    visited: dict[int, Node] = {}

    for output in jax.tree.leaves(outputs):
        waiting = [(output.node, False)]  # models may be deeper than Python's stack
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


def _input_layer(tensor: KerasTensor) -> InputLayer:
    """Return the layer of an input; a new one for a tensor in the middle of another graph."""
    if tensor.node is not None and isinstance(tensor.node.operation, InputLayer):
        return tensor.node.operation
    return InputLayer(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name.replace("/", "_"))


def _of_rank(spec: KerasTensor, value: Any) -> Any:
    """Add or remove a last dim of 1, as Keras does: (batch,) fits Input((1,))."""
    if value.ndim == spec.ndim - 1 and spec.shape[-1] == 1:
        return value[..., None]
    return value[..., 0] if value.ndim == spec.ndim + 1 and value.shape[-1] == 1 else value


def _is_optional(spec: KerasTensor) -> bool:
    return bool(getattr(spec.node and spec.node.operation, "optional", False))


def is_shape(value: Any) -> bool:
    """Whether a value is a shape, maybe with unknown dims."""
    return isinstance(value, tuple | list) and all(size is None or isinstance(size, int | np.integer) for size in value)
