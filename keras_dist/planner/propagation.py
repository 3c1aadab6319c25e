"""`propagate`: the collectives and costs of a lowered step, found by JAX's partitioner Shardy.

Nothing is compiled, and no device is needed: a step on a mesh of a thousand devices takes milliseconds.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

from keras_dist._support.arguments import check_kind
from keras_dist._unstable import shardy
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.planner.backends import Kind, added_after_loop, moved_as
from keras_dist.planner.exchanges import (
    Estimate,
    Halo,
    counted,
    doubt,
    estimate_at,
    halo_of,
    is_forced,
    jax_operation,
    products_of,
)
from keras_dist.planner.peak_memory import PeakMemory, peak_memory
from keras_dist.planner.sharded_module import (
    ShardedModule,
    is_argument,
    layer_in,
    name_of,
    operations_in,
    product_dims,
    returned_by,
    text_of,
    weight_in,
)

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
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
class Repeated:
    """Matrix multiplications and convolutions of a submodule that devices repeat.

    Attributes:
        layer: path of the submodule; empty if not known.
        axes: axes of the mesh along which all devices compute the same.
        flops: FLOPs of one device in a step.
    """

    layer: str
    axes: tuple[str, ...]
    flops: int


@dataclasses.dataclass(frozen=True)
class Propagated:
    """Figures of a step before compilation, of one device.

    Attributes:
        collectives: the collectives, in program order.
        flops: FLOPs of matrix multiplications and convolutions, two for each product; products with padding, and with
            zeros that strides and transposed convolutions insert, do not count.
        dtype: element type of most of these FLOPs; empty without any.
        accessed_nbytes: bytes of arguments and results of the step, and of operands and results of matrix
            multiplications and convolutions: an estimate that takes all other operations as fused.
        activation_nbytes: estimate of the peak bytes of intermediate results; see `memory`.
        estimates: operations whose collectives in XLA's program may differ; empty if all collectives are known.
        scores_nbytes: the part of `accessed_nbytes` that is scores of attention, (..., queries, keys), which kernels of
            flash attention do not store.
        repeated: matrix multiplications and convolutions that devices repeat, in program order.
        sliced: for the position of an argument that is whole along axes of the mesh the axes, although a device uses
            only its slice.
        opaque: operations whose memory is not in `activation_nbytes`, such as custom kernels.
        interface_nbytes: the part of `accessed_nbytes` that is arguments and results of the step.
        memory: estimates of memory that verdicts bound.
    """

    collectives: tuple[Collective, ...]
    flops: int
    dtype: str
    accessed_nbytes: int
    activation_nbytes: int
    estimates: tuple[Estimate, ...] = ()
    scores_nbytes: int = 0
    repeated: tuple[Repeated, ...] = ()
    sliced: tuple[tuple[int, tuple[str, ...]], ...] = ()
    opaque: tuple[str, ...] = ()
    interface_nbytes: int = 0
    memory: PeakMemory = dataclasses.field(default_factory=PeakMemory)

    def nbytes_by_axes(self) -> dict[tuple[Kind, tuple[str, ...]], int]:
        """Return the bytes of a step by kind and axes of the mesh."""
        return nbytes_by_axes(self.collectives)

    def traffic_nbytes(self, vector_nbytes: int) -> float:
        """Return the bytes read and written in main memory by a chip with this vector memory [bytes].

        The share of the intermediate results that fits into the vector memory is taken as never leaving it.
        """
        kept = min(1.0, vector_nbytes / self.activation_nbytes) if self.activation_nbytes else 1.0
        return self.interface_nbytes + (self.accessed_nbytes - self.interface_nbytes) * (1 - kept)


def nbytes_by_axes(collectives: Iterable[Collective]) -> dict[tuple[Kind, tuple[str, ...]], int]:
    """Return the bytes of a step by kind and axes of the mesh."""
    found: collections.Counter[tuple[Kind, tuple[str, ...]]] = collections.Counter()
    for collective in collectives:
        found[collective.kind, collective.axes] += collective.nbytes_per_step
    return dict(found)


def propagate(lowered: jax.stages.Lowered) -> Propagated:
    """Propagate the layouts of arguments and results through a step.

    Both branches of a `jax.lax.cond` count. Exchanges within slices, padding and convolutions of a sharded dim count
    where the rule of XLA is known. `estimates` lists operations whose collectives may differ in XLA's program, such as
    those that need another layout than their operands have.

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
    before = ShardedModule(operation)
    chosen: list[Estimate] = []  # reshards that XLA may choose otherwise
    for inner in operations_in(operation):
        if inner.name == "sdy.reshard":
            user, (need, asked) = _chooser_of(inner, before), _need_of(inner, before.functions)
            if user is not None and not asked:
                chosen.append(estimate_at(user, "needs other layouts of its operands, and XLA may exchange others"))
            number = len(chosen) - 1 if user is not None and not asked else ""
            shardy.rename(inner, _SEPARATOR.join((name_of(inner), need, asked, f"{number}")))
    shardy.run_passes(operation, _TO_COLLECTIVES)
    module = ShardedModule(operation)
    costs, peak = _Costs(module, chosen), peak_memory(module)
    dtype = max(costs.flops_by_dtype, key=costs.flops_by_dtype.__getitem__, default="")
    figures = sum(costs.flops_by_dtype.values()), dtype, costs.accessed, peak.nbytes, counted(costs.estimates)
    repeated = tuple(Repeated(*key, flops) for key, flops in costs.repeated.items())
    rest = costs.scores, repeated, tuple(costs.sliced), peak.opaque, costs.interface, peak
    return Propagated(tuple(costs.collectives), *figures, *rest)


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


def _chooser_of(reshard: Any, module: ShardedModule) -> Any:
    """Return the operation for which Shardy chose a reshard, or None where XLA must make the same one."""
    maker = reshard.operands[0].owner
    if not is_argument(maker) and maker.operation.name == "stablehlo.concatenate":
        return None
    for user in (use.owner.operation for use in reshard.results[0].uses):
        if user.name not in _NEEDS_ITS_LAYOUT and not (user.results and is_forced(reshard, user, module)):
            return user
    return None


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


class _Around(NamedTuple):
    """Where an operation runs: in loops, submodules and `jax.shard_map`."""

    turns: int = 1  # 0 in a loop of unknown length
    outside: int = 1  # turns of the loop around the innermost one
    times: int = 1  # the same, with such loops taken as one turn
    layer: str = ""
    divided: frozenset[str] = frozenset()  # axes over which the enclosing `jax.shard_map` divides work


class _Costs:
    """Costs of a program, of one device."""

    def __init__(self, module: ShardedModule, chosen: list[Estimate]) -> None:
        self._module = module
        self._chosen = chosen
        self._softmaxes = {
            _alike(operation.results[0])
            for function in module.functions.values()
            for operation in operations_in(function)
            if operation.name == "stablehlo.exponential"
        }
        """Shapes of softmax, by the sizes of their dims."""
        self._reduced: dict[Any, int] = {}
        """Results of all-reduces and sums of such, with the index of the first all-reduce."""
        self.collectives: list[Collective] = []
        self.flops_by_dtype: collections.Counter[str] = collections.Counter()
        self.repeated: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        self.sliced: dict[tuple[int, tuple[str, ...]], None] = {}
        self.estimates: list[Estimate] = []
        main, self.scores = module.block("main"), 0
        self.accessed = self.interface = sum(map(module.nbytes, (*main.arguments, *returned_by(main))))
        self._walk(main, _Around())

    def _walk(self, block: Any, around: _Around) -> None:
        outside, self._reduced = self._reduced, {}  # a sum in a loop does not join exchanges before it
        for operation in block.operations:
            self._add(operation.operation, around)
        self._reduced = outside

    def _add(self, operation: Any, around: _Around) -> None:
        """Add the costs of an operation."""
        name = operation.name.rpartition(".")[2]  # of Shardy, or in a `shard_map` of StableHLO
        self._add_inner(operation, around)
        if name in get_args(Kind):
            self._add_collective(name, operation, around)  # pyright: ignore[reportArgumentType]
        elif operation.name in _ON_ONE_ARRAY and operation.operands[0] in self._reduced:
            self._reduced[operation.results[0]] = self._reduced[operation.operands[0]]
        elif operation.name == "stablehlo.add":
            self._join(operation)
        elif operation.name in ("stablehlo.dot_general", "stablehlo.convolution"):
            dtype, flops = str(operation.operands[0].type.element_type), self._flops(operation) * around.times
            self.flops_by_dtype[_DTYPES.get(dtype, dtype)] += flops
            self._add_traffic(operation, around)
            if axes := self._repeating(operation, around):
                self.repeated[layer_in(name_of(operation)) or around.layer, axes] += flops
        elif operation.name == "stablehlo.custom_call" and text_of(operation.attributes["call_target_name"]).startswith(
            _KERNELS
        ):
            self._add_traffic(operation, around)
        elif name == "all_slice":
            argument = self._module.argument_of(operation.operands[0])
            self.sliced |= {} if argument is None else {(argument, self._axes_of(operation)): None}
        elif operation.name == "func.call":
            around = around._replace(layer=layer_in(name_of(operation)) or around.layer)
            self._walk(self._module.block(text_of(operation.attributes["callee"])), around)
        elif operation.name not in _REDUCTIONS:
            turns, divided = _turns(operation) if operation.name == "stablehlo.while" else 1, around.divided
            if name == "manual_computation":
                shardings = f"{operation.attributes['in_shardings']} {operation.attributes['out_shardings']}"
                divided |= set(re.findall(r'"([^"]*)"', shardings))
            layer, times = layer_in(name_of(operation)) or around.layer, around.times * max(turns, 1)
            for block in (block for region in operation.regions for block in region.blocks):
                outside = around.turns if operation.name == "stablehlo.while" else around.outside
                self._walk(block, _Around(around.turns * turns, outside, times, layer, divided))

    def _repeating(self, operation: Any, around: _Around) -> tuple[str, ...]:
        """Return the axes of the mesh along which devices compute the same."""
        layouts = [self._module.axes(value) for value in (*operation.operands, *operation.results)]
        used = {name for axes in layouts for axis in axes for name in axis_tuple(axis)} | around.divided
        return tuple(axis for axis, size in self._module.sizes.items() if size > 1 and axis not in used)

    def _add_traffic(self, operation: Any, around: _Around) -> None:
        values = (*operation.operands, *operation.results)
        self.accessed += sum(map(self._module.nbytes, values)) * around.times
        if operation.name == "stablehlo.dot_general" and product_dims(operation)[0][0]:
            scores = sum(self._module.nbytes(value) for value in values if _alike(value) in self._softmaxes)
            self.scores += scores * around.times

    def _add_inner(self, operation: Any, around: _Around) -> None:
        """Add the exchanges inside of an operation that computes across shards."""
        found = halo_of(operation, self._module) if any(list(each.uses) for each in operation.results) else None
        if isinstance(found, Halo):
            name = name_of(operation)
            made_by = layer_in(name) or around.layer, jax_operation(name)
            self.collectives += (
                Collective("collective_permute", found.axes, nbytes, around.turns, *made_by) for nbytes in found.nbytes
            )
            if operation.name == "stablehlo.convolution" and self._module.platform != "cpu":
                found = "other convolutions may use the same borders of shards"
        if reason := found if isinstance(found, str) else doubt(operation, self._module):
            self._estimate(estimate_at(operation, reason), around)

    def _estimate(self, found: Estimate, around: _Around) -> None:
        self.estimates.append(dataclasses.replace(found, layer=found.layer or around.layer))

    def _add_collective(self, kind: Kind, operation: Any, around: _Around) -> None:
        found, number = self._collective(kind, operation, around)
        kind = found.kind
        if not found.nbytes:
            return
        if number:
            self._estimate(self._chosen[int(number)], around)
        if kind == "all_reduce" and self._module.platform != "cpu" and _is_statistic(operation.operands[0].owner):
            reason = "XLA may exchange equal sums of batch statistics once"
            self._estimate(estimate_at(operation.operands[0].owner.operation, reason), around)
        for axes in self._reduced_together(operation, found.axes) if kind == "all_reduce" else [found.axes]:
            self.collectives.append(dataclasses.replace(found, axes=axes))
        if kind == "all_reduce":
            self._reduced[operation.results[0]] = len(self.collectives) - 1

    def _reduced_together(self, reduction: Any, axes: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the axes of each all-reduce: XLA for CPUs reduces one dim of an operand after the other."""
        owner = reduction.operands[0].owner
        is_whole = len(axes) == 1 or self._module.platform != "cpu"
        if is_whole or is_argument(owner) or owner.operation.name not in _REDUCE_BY_DIMS:
            return [axes]
        for operand in owner.operation.operands:
            dims = map(axis_tuple, self._module.axes(operand))
            found = [tuple(axis for axis in axes if axis in names) for names in dims]
            if sum(map(len, found)) == len(axes):
                return [names for names in found if names]
        return [axes]

    def _join(self, addition: Any) -> None:
        """Mark the second of two all-reduces whose results are only added: XLA reduces their sum instead."""
        if any(value not in self._reduced or len(list(value.uses)) > 1 for value in addition.operands):
            return
        first, last = sorted(self._reduced[value] for value in addition.operands)
        if first != last and self.collectives[first].axes == self.collectives[last].axes:
            self.collectives[last] = dataclasses.replace(self.collectives[last], is_joined=True)
            self._reduced[addition.results[0]] = first

    def _collective(self, kind: Kind, operation: Any, around: _Around) -> tuple[Collective, str]:
        """Return a collective, and the number of the estimate of its reshard or an empty string."""
        given, made = self._module.nbytes(operation.operands[0]), self._module.nbytes(operation.results[0])
        name, *need = name_of(operation).split(_SEPARATOR)
        layer, made_by, axes = layer_in(name) or around.layer, jax_operation(name), self._axes_of(operation)
        late = added_after_loop(operation, self._module) if kind == "all_reduce" and around.turns != 1 else None
        moved = moved_as(kind, operation, late or operation.results[0], max(given, made), self._module)
        if moved.doubt:
            self._estimate(estimate_at(operation.operands[0].owner.operation, moved.doubt), around)
        turns = around.outside if late else around.turns
        found = Collective(moved.kind, axes, moved.nbytes, turns, layer, made_by)
        if len(need) != 3:
            return found, ""
        weight, is_asked = weight_in(need[0]), need[1] == _ASKED
        needed_by = layer_in(need[0]) or ("" if is_asked else around.layer)
        return dataclasses.replace(found, needed_by=needed_by, is_asked=is_asked, weight=weight), need[2]

    def _axes_of(self, operation: Any) -> tuple[str, ...]:
        if operation.name == "sdy.collective_permute":
            before, after = (self._module.sharding(value) for value in (operation.operands[0], operation.results[0]))
            text = f"{before} {after}"
        elif operation.name.startswith("stablehlo."):
            return self._axes_within(operation)
        else:
            text = " ".join(str(operation.attributes[name]) for name in _AXES if name in operation.attributes)
        named = set(re.findall(r'"([^"]*)"', text))
        return tuple(axis for axis in self._module.sizes if axis in named)

    def _axes_within(self, operation: Any) -> tuple[str, ...]:
        """Return the axes along which the first group of devices differs, in a `shard_map`."""
        named = (name for name in ("source_target_pairs", "replica_groups") if name in operation.attributes)
        groups = operation.attributes[next(named)]
        if axes := re.findall(r'axis_ref<name = "([^"]*)"', str(groups)):  # from JAX 0.12 on
            return tuple(axis for axis in self._module.sizes if axis in axes)
        group = np.asarray(groups)[0]
        places = np.unravel_index(group, tuple(self._module.sizes.values()))
        return tuple(axis for axis, place in zip(self._module.sizes, places, strict=True) if len(set(place)) > 1)

    def _flops(self, operation: Any) -> int:
        result = self._module.local_shape(operation.results[0])
        if operation.name == "stablehlo.dot_general":
            lhs, (_, contracted) = self._module.local_shape(operation.operands[0]), product_dims(operation)[0]
            return 2 * math.prod(result) * math.prod(lhs[dim] for dim in contracted)
        return 2 * products_of(operation, self._module)


_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i8": "int8"}
_KERNELS = ("tpu_custom_call", "__cudnn$fmha")
_NEEDS_ITS_LAYOUT = ("func.return", "stablehlo.return", "stablehlo.concatenate")
"""Users of reshards for which XLA was found to exchange as Shardy does."""
_REDUCE_BY_DIMS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce", "stablehlo.scatter")
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


def _is_statistic(maker: Any) -> bool:
    """Return whether a layer adds up rows in the forward pass, as BatchNormalization does."""
    if is_argument(maker) or maker.operation.name != "stablehlo.reduce":
        return False
    name, rank = name_of(maker.operation), maker.operation.results[0].type.rank
    return bool(layer_in(name)) and "transpose(" not in name and rank == 1


def _alike(value: Any) -> tuple[int, ...]:
    """Return the sizes of the dims of an array, in no order."""
    return tuple(sorted(value.type.shape)) if hasattr(value.type, "shape") else ()


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
    step = returned_by(body)[counter.arg_number].owner
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
