"""`propagate`: the collectives and costs of a lowered step, found by JAX's partitioner Shardy.

Nothing is compiled, and no device is needed: a step on a mesh of a thousand devices takes milliseconds.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import jax

from keras_dist._support.arguments import check_kind
from keras_dist._unstable import shardy
from keras_dist.planner.peak_memory import peak_memory
from keras_dist.planner.sharded_module import (
    ShardedModule,
    is_argument,
    layer_in,
    name_of,
    operations_in,
    text_of,
    weight_in,
)

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"]

_TO_RESHARDS = "sdy-propagation-pipeline,func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
_TO_COLLECTIVES = "func.func(sdy-reshard-to-collectives)"
_MOST_USERS = 32
"""Number of operations that are searched for the submodule that needs an array."""
_SEPARATOR, _ASKED, _CONSTRAINT = " for ", "asked", "sharding_constraint"


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of a step.

    Attributes:
        kind: name of the collective in StableHLO.
        axes: axes of the mesh along which devices exchange, in the order of the mesh.
        nbytes: bytes of the larger of operand and result on one device, in one turn.
        turns: number of executions in a step; 0 in a loop of unknown length, which is taken as 1.
        layer: path of the submodule that computed the operand; empty if not known.
        operation: the operation of JAX that computed the operand, as `dot_general`.
        needed_by: path of the submodule that needs the result; empty for reductions, and if not known.
        is_asked: whether a constraint in the program asks for it: a layout rule of an activation, the gathered weights
            of a fully sharded layout, or `jax.lax.with_sharding_constraint`. True for all reductions.
        weight: path of the weight that is gathered; empty for any other array.
        is_joined: whether its result is only added to an earlier reduction; on TPUs and GPUs XLA combines the two.
        places: positions in the mesh of the first group of devices; empty for groups of all devices along `axes`.
            Compiled programs may split axes, into exchanges inside of slices and over slices.
    """

    kind: Kind
    axes: tuple[str, ...]
    nbytes: int
    turns: int
    layer: str
    operation: str
    needed_by: str = ""
    is_asked: bool = True
    weight: str = ""
    is_joined: bool = False
    places: tuple[int, ...] = ()

    @property
    def nbytes_per_step(self) -> int:
        """Bytes of all turns."""
        return self.nbytes * max(self.turns, 1)


@dataclasses.dataclass(frozen=True)
class Propagated:
    """Figures of a step before compilation, of one device.

    Attributes:
        collectives: the collectives, in program order.
        flops: FLOPs of matrix multiplications and convolutions, two for each product.
        dtype: element type of most of these FLOPs; empty without any.
        accessed_nbytes: bytes of arguments and results of the step, and of operands and results of matrix
            multiplications and convolutions: an estimate that takes all other operations as fused.
        activation_nbytes: estimate of the peak bytes of intermediate results; see `planner.peak_memory`.
        opaque: operations whose memory is not in the estimate, such as custom kernels.
    """

    collectives: tuple[Collective, ...]
    flops: int
    dtype: str
    accessed_nbytes: int
    activation_nbytes: int
    opaque: tuple[str, ...] = ()

    def nbytes_by_axes(self) -> dict[tuple[Kind, tuple[str, ...]], int]:
        """Return the bytes of a step by kind and axes of the mesh."""
        return nbytes_by_axes(self.collectives)


def nbytes_by_axes(collectives: Iterable[Collective]) -> dict[tuple[Kind, tuple[str, ...]], int]:
    """Return the bytes of a step by kind and axes of the mesh."""
    found: collections.Counter[tuple[Kind, tuple[str, ...]]] = collections.Counter()
    for collective in collectives:
        found[collective.kind, collective.axes] += collective.nbytes_per_step
    return dict(found)


def propagate(lowered: jax.stages.Lowered) -> Propagated:
    """Propagate the layouts of arguments and results through a step.

    Both branches of a `jax.lax.cond` count. Exchanges within an operation are not included, such as the borders of
    sharded images and shifts along a sharded dim; nor are collectives that a function calls, as in `jax.shard_map`.

    Args:
        lowered: a program, lowered for arguments with shardings on a mesh of devices or an abstract mesh.

    Raises:
        ModelError: `lowered` is not a lowered program.

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
    check_kind("lowered", lowered, jax.stages.Lowered, "a lowered program, as jax.jit(step).lower(*arguments) gives")
    return propagate_module(shardy.copy_of(lowered))


def propagate_module(operation: Any) -> Propagated:
    """Propagate layouts through the operation of a module, whose arguments have shardings, and change it."""
    shardy.run_passes(operation, _TO_RESHARDS)
    # the next pass keeps nothing but locations: they note who needs a reshard, and whether a constraint asks for it
    functions = ShardedModule(operation).functions
    for inner in operations_in(operation):
        if inner.name == "sdy.reshard":
            shardy.rename(inner, _SEPARATOR.join((name_of(inner), *_need_of(inner, functions))))
    shardy.run_passes(operation, _TO_COLLECTIVES)
    module = ShardedModule(operation)
    program = _Program(module)
    costs = program.costs_of("main")
    dtype = max(costs.flops_by_dtype, key=costs.flops_by_dtype.__getitem__, default="")
    accessed = costs.accessed + program.nbytes_of_interface
    flops = sum(costs.flops_by_dtype.values())
    peak = peak_memory(module)
    return Propagated(tuple(costs.collectives), flops, dtype, accessed, peak.nbytes, peak.opaque)


def _need_of(reshard: Any, functions: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the operation that needs a reshard, and whether a constraint is the reason."""
    users = [use.owner.operation for use in reshard.results[0].uses]
    asking = [each for each in (reshard, *users) if name_of(each).endswith(_CONSTRAINT)]
    for count, user in enumerate(users := [*asking, *users]):
        name = _place_of(user, functions)
        if layer_in(name) or weight_in(name) or count == _MOST_USERS:
            return name, _ASKED if asking else ""
        users += [use.owner.operation for result in user.results for use in result.uses]
    return name_of(users[0]) if users else "", _ASKED if asking else ""


def _place_of(operation: Any, functions: Mapping[str, Any]) -> str:
    """Return the name of an operation; for a loop or call, of its first operation in a submodule."""
    if layer_in(name_of(operation)):
        return name_of(operation)
    for inner in operations_in(operation) if operation.name in ("stablehlo.while", "func.call", "func.func") else ():
        body = functions[text_of(inner.attributes["callee"])] if inner.name == "func.call" else inner
        name = _place_of(body, functions) if body is not operation else ""
        if layer_in(name):
            return name
    return name_of(operation)


@dataclasses.dataclass
class _Costs:
    """Costs of a region."""

    collectives: list[Collective] = dataclasses.field(default_factory=list)
    flops_by_dtype: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    accessed: int = 0
    reduced: dict[Any, int] = dataclasses.field(default_factory=dict)
    """Results of all-reduces and sums of such, with the index of the first all-reduce."""

    def add(self, other: _Costs, turns: int, layer: str = "") -> None:
        self.accessed += other.accessed * max(turns, 1)
        for dtype, flops in other.flops_by_dtype.items():
            self.flops_by_dtype[dtype] += flops * max(turns, 1)
        for each in other.collectives:
            named = {"layer": each.layer or layer, "needed_by": each.needed_by or ("" if each.is_asked else layer)}
            self.collectives.append(dataclasses.replace(each, turns=each.turns * turns, **named))


class _Program:
    def __init__(self, module: ShardedModule) -> None:
        self._module = module
        self._known: dict[str, _Costs] = {}

    @property
    def nbytes_of_interface(self) -> int:
        """Bytes of the arguments and results of the program."""
        block = self._module.functions["main"].regions[0].blocks[0]
        results = list(block.operations)[-1].operation.operands
        return sum(map(self._module.nbytes, (*block.arguments, *results)))

    def costs_of(self, function: str) -> _Costs:
        """Return the costs of one call of a function."""
        if function not in self._known:
            self._known[function] = self._costs(self._module.functions[function].regions[0].blocks[0])
        return self._known[function]

    def _costs(self, block: Any) -> _Costs:
        costs = _Costs()
        for operation in block.operations:
            self._add(operation.operation, costs)
        return costs

    def _add(self, operation: Any, costs: _Costs) -> None:
        """Add the costs of an operation."""
        name = operation.name.removeprefix("sdy.")
        if name in get_args(Kind):
            costs.collectives.append(self._collective(name, operation))  # pyright: ignore[reportArgumentType]
            if name == "all_reduce":
                costs.reduced[operation.results[0]] = len(costs.collectives) - 1
        elif operation.name in _ON_ONE_ARRAY and operation.operands[0] in costs.reduced:
            costs.reduced[operation.results[0]] = costs.reduced[operation.operands[0]]
        elif operation.name == "stablehlo.add":
            self._join(operation, costs)
        elif operation.name in ("stablehlo.dot_general", "stablehlo.convolution"):
            dtype = str(operation.operands[0].type.element_type)
            costs.flops_by_dtype[_DTYPES.get(dtype, dtype)] += self._flops(operation)
            costs.accessed += sum(map(self._module.nbytes, (*operation.operands, *operation.results)))
        elif operation.name == "func.call":
            costs.add(self.costs_of(text_of(operation.attributes["callee"])), 1, layer_in(name_of(operation)))
        elif operation.name not in _REDUCTIONS:
            turns = _turns(operation) if operation.name == "stablehlo.while" else 1
            for block in (block for region in operation.regions for block in region.blocks):
                costs.add(self._costs(block), turns, layer_in(name_of(operation)))

    def _join(self, addition: Any, costs: _Costs) -> None:
        """Mark the second of two all-reduces whose results are only added: XLA reduces their sum instead."""
        if any(value not in costs.reduced or len(list(value.uses)) > 1 for value in addition.operands):
            return
        first, last = sorted(costs.reduced[value] for value in addition.operands)
        if first != last and costs.collectives[first].axes == costs.collectives[last].axes:
            costs.collectives[last] = dataclasses.replace(costs.collectives[last], is_joined=True)
            costs.reduced[addition.results[0]] = first

    def _collective(self, kind: Kind, operation: Any) -> Collective:
        given, made = self._module.nbytes(operation.operands[0]), self._module.nbytes(operation.results[0])
        name, *need = name_of(operation).split(_SEPARATOR)
        layer, made_by, axes = layer_in(name), name.rpartition("/")[2].rstrip(":"), self._axes_of(operation)
        found = Collective(kind, axes, max(given, made), 1, layer, made_by)
        if len(need) != 2:
            return found
        needed_by, weight = layer_in(need[0]), weight_in(need[0])
        return dataclasses.replace(found, needed_by=needed_by, is_asked=need[1] == _ASKED, weight=weight)

    def _axes_of(self, operation: Any) -> tuple[str, ...]:
        if operation.name == "sdy.collective_permute":
            before, after = (self._module.sharding(value) for value in (operation.operands[0], operation.results[0]))
            text = f"{before} {after}"
        else:
            text = " ".join(str(operation.attributes[name]) for name in _AXES if name in operation.attributes)
        named = set(re.findall(r'"([^"]*)"', text))
        return tuple(axis for axis in self._module.sizes if axis in named)

    def _flops(self, operation: Any) -> int:
        result = self._module.local_shape(operation.results[0])
        if operation.name == "stablehlo.dot_general":
            dims = operation.attributes["dot_dimension_numbers"]
            contracted = re.search(r"lhs_contracting_dimensions = \[([\d, ]*)\]", str(dims))
            lhs = self._module.local_shape(operation.operands[0])
            inner = math.prod(lhs[int(dim)] for dim in contracted[1].split(",")) if contracted else 1
            return 2 * math.prod(result) * inner
        kernel = self._module.local_shape(operation.operands[1])
        outputs = re.search(r"x\[([^\]]*)\]->", str(operation.attributes["dimension_numbers"]))
        of_kernel = [part.strip() for part in outputs[1].split(",")] if outputs else []
        return 2 * math.prod(result) * math.prod(kernel) // kernel[of_kernel.index("o")]


_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i8": "int8"}
_AXES = ("reduction_axes", "gathering_axes", "reduce_scatter_axes", "slicing_axes", "params")
_ON_ONE_ARRAY = ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.convert")
_REDUCTIONS = (
    "stablehlo.reduce",
    "stablehlo.reduce_window",
    "stablehlo.scatter",
    "stablehlo.select_and_scatter",
    "stablehlo.sort",
)
"""Operations whose regions combine two scalars."""


def _turns(loop: Any) -> int:
    """Return the number of turns of a loop that counts between constants, as in `jax.lax.scan`; 0 if unknown."""
    condition, body = (region.blocks[0] for region in loop.regions)
    compared = next((op.operation for op in condition.operations if op.operation.name == "stablehlo.compare"), None)
    if compared is None or "LT" not in str(compared.attributes["comparison_direction"]):
        return 0
    counter, limit = compared.operands
    if not is_argument(counter.owner):
        return 0
    first, end = _constant(loop.operands[counter.arg_number]), _constant(limit)
    step = list(body.operations)[-1].operation.operands[counter.arg_number].owner
    if is_argument(step) or step.operation.name != "stablehlo.add" or first is None or end is None:
        return 0
    by = _constant(step.operation.operands[1])
    return max(0, -(-(end - first) // by)) if by else 0


def _constant(value: Any) -> int | None:
    """Return the integer of a constant, else None."""
    if is_argument(value.owner) or not value.owner.operation.name.endswith(".constant"):
        return None
    found = re.search(r"dense<(-?\d+)>", str(value.owner.operation.attributes["value"]))
    return int(found[1]) if found else None
