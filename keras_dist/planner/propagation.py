"""What Shardy, JAX's partitioner, makes of a lowered step: which collectives it needs, and where its arrays lie.

Nothing is compiled, and no device is needed: a step on a mesh of a thousand devices takes milliseconds.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

import jax

from keras_dist import _shardy
from keras_dist._arguments import argument_error
from keras_dist._shardy import sdy
from keras_dist.training.activations import path_of_scope

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"]

PASSES = (
    "sdy-propagation-pipeline,func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "func.func(sdy-reshard-to-collectives)"
)
"""What makes of a lowered step a module that `propagated` reads."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between devices that a step needs.

    Attributes:
        kind: which one, in the terms of StableHLO.
        axes: the axes of the mesh along which devices exchange, in the order of the mesh.
        nbytes: bytes of the larger of what a device gives and what it has afterwards, once.
        turns: how often a step runs it; 0 where a loop's number of turns is not known, which then counts as one.
        layer: path of the submodule that it belongs to, where the step was lowered with their names; else empty.
        operation: the operation of JAX, as `dot_general`.
    """

    kind: Kind
    axes: tuple[str, ...]
    nbytes: int
    turns: int
    layer: str
    operation: str

    @property
    def nbytes_per_step(self) -> int:
        """Bytes of all turns."""
        return self.nbytes * max(self.turns, 1)


@dataclasses.dataclass(frozen=True)
class Propagated:
    """What is known of a step before it is compiled.

    Attributes:
        collectives: the exchanges, in program order.
        flops: of multiplications of matrices and convolutions on one device, two for each product.
        activation_nbytes: the most bytes of intermediate results on one device at once, if no operation is fused
            into another: an upper bound.
    """

    collectives: tuple[Collective, ...]
    flops: int
    activation_nbytes: int

    def nbytes_by_axes(self) -> dict[tuple[Kind, tuple[str, ...]], int]:
        """Bytes of a step by kind and axes of the mesh."""
        found: collections.Counter[tuple[Kind, tuple[str, ...]]] = collections.Counter()
        for collective in self.collectives:
            found[collective.kind, collective.axes] += collective.nbytes_per_step
        return dict(found)


def propagate(lowered: jax.stages.Lowered) -> Propagated:
    """Propagate the layouts of a step's arguments and results through it.

    Both branches of a `jax.lax.cond` count. What XLA exchanges within an operation does not, as the borders of split
    images and shifts along a split dim; nor do collectives that a function calls itself, as in `jax.shard_map`.

    Args:
        lowered: a program that is lowered for arguments with shardings, on a mesh of devices or an abstract one.

    Raises:
        ModelError: it is not a lowered program.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
        >>> from keras_dist.planner import propagate
        >>> rows = NamedSharding(AbstractMesh((1024,), ("data",)), PartitionSpec("data"))
        >>> x = jax.ShapeDtypeStruct((4096, 8), jnp.float32, sharding=rows)
        >>> propagate(jax.jit(jnp.sum).trace(x).lower(lowering_platforms=("tpu",))).nbytes_by_axes()
        {('all_reduce', ('data',)): 4}

    Source: https://openxla.org/shardy
    """
    if not isinstance(lowered, jax.stages.Lowered):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise argument_error("lowered", lowered, "a lowered program, as jax.jit(step).lower(*arguments) gives")
    return propagated(_shardy.run_passes(lowered, PASSES))


def propagated(module: Any) -> Propagated:
    """What is known of a step, from its module after `PASSES`."""
    costs = _Program(module).costs_of("main")
    return Propagated(tuple(costs.collectives), costs.flops, costs.peak)


@dataclasses.dataclass
class _Costs:
    """Of a region: `peak` counts what is made inside of it, without its arguments."""

    collectives: list[Collective] = dataclasses.field(default_factory=list)
    flops: int = 0
    peak: int = 0

    def add(self, other: _Costs, turns: int, layer: str = "") -> None:
        self.flops += other.flops * max(turns, 1)
        for each in other.collectives:
            self.collectives.append(dataclasses.replace(each, turns=each.turns * turns, layer=each.layer or layer))


class _Program:
    """A module after Shardy's passes."""

    def __init__(self, module: Any) -> None:
        self._module = module  # its values die with it
        self._functions: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        for operation in module.regions[0].blocks[0].operations:
            if operation.operation.name == "func.func":
                self._functions[_text(operation.attributes["sym_name"])] = operation.operation
            elif operation.operation.name == "sdy.mesh":
                axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(operation.attributes["mesh"]).axes)
                self._sizes |= {axis.name: axis.size for axis in axes}
        self._known: dict[str, _Costs] = {}

    def costs_of(self, function: str) -> _Costs:
        """The costs of one call of a function."""
        if function not in self._known:
            self._known[function] = self._costs(self._functions[function].regions[0].blocks[0])
        return self._known[function]

    def _costs(self, block: Any) -> _Costs:
        costs, live, last = _Costs(), 0, _last_uses(block)
        dying: dict[int, list[int]] = collections.defaultdict(list)
        for index, operation in enumerate(block.operations):
            operation = operation.operation
            inside = self._inside(operation, costs)
            own = 0 if operation.name in _ALIASES else sum(map(self._nbytes, operation.results))
            live += own
            costs.peak = max(costs.peak, live + inside)
            for result in operation.results if own else ():
                dying[max(last.get(result, index), index)].append(self._nbytes(result))
            live -= sum(dying.pop(index, ()))
        return costs

    def _inside(self, operation: Any, costs: _Costs) -> int:
        """Add the costs of an operation, and return the bytes that are live only while it runs."""
        name = operation.name.removeprefix("sdy.")
        if name in get_args(Kind):
            costs.collectives.append(self._collective(name, operation))  # pyright: ignore[reportArgumentType]
        elif operation.name in ("stablehlo.dot_general", "stablehlo.convolution"):
            costs.flops += self._flops(operation)
        elif operation.name == "func.call":
            called = self.costs_of(_text(operation.attributes["callee"]))
            costs.add(called, 1, _layer_of(operation))
            return called.peak
        elif operation.name not in _REDUCTIONS:
            turns = _turns(operation) if operation.name == "stablehlo.while" else 1
            bodies = [self._costs(block) for region in operation.regions for block in region.blocks]
            for body in bodies:
                costs.add(body, turns, _layer_of(operation))
            return max((body.peak for body in bodies), default=0)
        return 0

    def _collective(self, kind: Kind, operation: Any) -> Collective:
        given, made = self._nbytes(operation.operands[0]), self._nbytes(operation.results[0])
        name = _name_of(operation).rpartition("/")[2]
        return Collective(kind, self._axes_of(operation), max(given, made), 1, _layer_of(operation), name)

    def _axes_of(self, operation: Any) -> tuple[str, ...]:
        if operation.name == "sdy.collective_permute":
            before, after = (self._sharding(value) for value in (operation.operands[0], operation.results[0]))
            text = f"{before} {after}"
        else:
            text = " ".join(str(operation.attributes[name]) for name in _AXES if name in operation.attributes)
        named = set(re.findall(r'"([^"]*)"', text))
        return tuple(axis for axis in self._sizes if axis in named)

    def _flops(self, operation: Any) -> int:
        result = self._local_shape(operation.results[0])
        if operation.name == "stablehlo.dot_general":
            dims = operation.attributes["dot_dimension_numbers"]
            contracted = re.search(r"lhs_contracting_dimensions = \[([\d, ]*)\]", str(dims))
            lhs = self._local_shape(operation.operands[0])
            inner = math.prod(lhs[int(dim)] for dim in contracted[1].split(",")) if contracted else 1
            return 2 * math.prod(result) * inner
        kernel = self._local_shape(operation.operands[1])
        outputs = re.search(r"x\[([^\]]*)\]->", str(operation.attributes["dimension_numbers"]))
        of_kernel = [part.strip() for part in outputs[1].split(",")] if outputs else []
        return 2 * math.prod(result) * math.prod(kernel) // kernel[of_kernel.index("o")]

    def _local_shape(self, value: Any) -> list[int]:
        """The shape of one device's shard."""
        shape = list(value.type.shape) if hasattr(value.type, "shape") else []
        sharding = self._sharding(value)
        if sharding is None:
            return shape
        return [-(-size // self._shards(dim)) for size, dim in zip(shape, sharding.dimension_shardings, strict=True)]

    def _nbytes(self, value: Any) -> int:
        if not hasattr(value.type, "element_type"):
            return 0
        return math.prod(self._local_shape(value)) * _element_bytes(str(value.type.element_type))

    def _shards(self, dim: Any) -> int:
        axes = map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dim).axes)
        parts = [(axis.name, axis.sub_axis_info) for axis in axes]
        return math.prod(self._sizes[name] if part is None else sdy.SubAxisInfoAttr(part).size for name, part in parts)

    def _sharding(self, value: Any) -> Any:
        """The sharding of a value; None where it is whole on every device."""
        owner = value.owner
        if _is_block(owner):
            owner, index = owner.owner.operation, value.arg_number
            attributes = owner.attributes
            if owner.name == "func.func":
                attributes = attributes["arg_attrs"][index] if "arg_attrs" in attributes else {}
            # the arguments of a loop lie as its results
        else:
            attributes, index = owner.operation.attributes, value.result_number
        named = (name for name in ("out_sharding", "sharding", "sdy.sharding") if name in attributes)
        found = next((attributes[name] for name in named), None)
        if found is None:
            return None
        if sdy.TensorShardingPerValueAttr.isinstance(found):
            found = sdy.TensorShardingPerValueAttr(found).shardings[index]
        return sdy.TensorShardingAttr(found)


_AXES = ("reduction_axes", "gathering_axes", "reduce_scatter_axes", "slicing_axes", "params")
_ALIASES = (
    "sdy.constant",
    "stablehlo.constant",
    "stablehlo.while",
    "stablehlo.reshape",
    "stablehlo.optimization_barrier",
)
"""Operations whose results take no memory of their own: those of a loop are where its arguments are."""
_REDUCTIONS = (
    "stablehlo.reduce",
    "stablehlo.reduce_window",
    "stablehlo.scatter",
    "stablehlo.select_and_scatter",
    "stablehlo.sort",
)
"""Operations whose regions say what is done to two numbers."""


def _last_uses(block: Any) -> dict[Any, int]:
    """For each value that the operations of a block use, those inside of them included, the index of the last one."""
    found: dict[Any, int] = {}
    for index, operation in enumerate(block.operations):
        for inner in _all_of(operation.operation):
            found |= dict.fromkeys(inner.operands, index)
    return found


def _all_of(operation: Any) -> Iterator[Any]:
    """An operation, and all inside of it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _all_of(inner.operation)


def _turns(loop: Any) -> int:
    """How often a loop that counts from a constant to another one runs, as those of `jax.lax.scan`; 0 where unknown."""
    condition, body = (region.blocks[0] for region in loop.regions)
    compared = next((op.operation for op in condition.operations if op.operation.name == "stablehlo.compare"), None)
    if compared is None or "LT" not in str(compared.attributes["comparison_direction"]):
        return 0
    counter, limit = compared.operands
    if not _is_block(counter.owner):
        return 0
    first, end = _constant(loop.operands[counter.arg_number]), _constant(limit)
    step = list(body.operations)[-1].operation.operands[counter.arg_number].owner
    if _is_block(step) or step.operation.name != "stablehlo.add" or first is None or end is None:
        return 0
    by = _constant(step.operation.operands[1])
    return max(0, -(-(end - first) // by)) if by else 0


def _constant(value: Any) -> int | None:
    """The number that a value is; None where it is no constant."""
    if _is_block(value.owner) or not value.owner.operation.name.endswith(".constant"):
        return None
    found = re.search(r"dense<(-?\d+)>", str(value.owner.operation.attributes["value"]))
    return int(found[1]) if found else None


def _layer_of(operation: Any) -> str:
    """The path of the innermost submodule that an operation is in; empty where its name tells none."""
    paths = [path_of_scope(part) for part in re.split(r"[/()]", _name_of(operation))]
    return next((path for path in reversed(paths) if path), "")


def _name_of(operation: Any) -> str:
    return getattr(operation.location, "name_str", "")


def _is_block(owner: Any) -> bool:
    return hasattr(owner, "arguments")


def _text(attribute: Any) -> str:
    return str(attribute).strip('"@')


def _element_bytes(name: str) -> int:
    """Bytes of an element, as of `f32` or `ui8`."""
    bits = re.search(r"\d+", name)
    size = 1 if bits is None else int(bits[0]) / 8
    return math.ceil(2 * size if name.startswith("complex") else size)
