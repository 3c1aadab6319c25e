"""`propagate`: the collectives and costs of a lowered step, found by JAX's partitioner Shardy.

Nothing is compiled, and no device is needed: a step on a mesh of a thousand devices takes milliseconds.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

from keras_dist._support.arguments import check_kind
from keras_dist._unstable import shardy
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.planner.backends import BACKENDS, DTYPES, Kind, added_after_loop, arranges, moved_as
from keras_dist.planner.estimates import Estimate, counted, interval_of
from keras_dist.planner.exchanges import (
    Halo,
    doubt,
    estimate_at,
    halo_of,
    is_forced,
    jax_operation,
    products_of,
    whole_nbytes,
)
from keras_dist.planner.peak_memory import PeakMemory, peak_memory
from keras_dist.planner.propagated import Collective, Propagated, Repeated
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


def propagate_module(operation: Any, with_memory: bool = True) -> Propagated:
    """Propagate layouts through the operation of a module, whose arguments have shardings, and change it."""
    shardy.run_passes(operation, _TO_RESHARDS)
    # the next pass keeps nothing but locations: they note who needs a reshard, and whether a constraint asks for it
    before = ShardedModule(operation)
    chosen: list[Estimate] = []  # reshards that XLA may choose otherwise
    for inner in operations_in(operation):
        if inner.name == "sdy.reshard":
            user, (need, asked) = _chooser_of(inner, before), _need_of(inner, before.functions)
            if user is not None and not asked:
                reason = "needs other layouts of its operands, and XLA may exchange others"
                chosen.append(estimate_at(user, reason, "stack" if user.name in _PARTS else "reshard"))
            number = len(chosen) - 1 if user is not None and not asked else ""
            shardy.rename(inner, _SEPARATOR.join((name_of(inner), need, asked, f"{number}")))
    shardy.run_passes(operation, _TO_COLLECTIVES)
    module = ShardedModule(operation)
    costs, peak = _Costs(module, chosen), peak_memory(module) if with_memory else PeakMemory()
    dtype = max(costs.flops_by_dtype, key=costs.flops_by_dtype.__getitem__, default="")
    exchanges = list(_with_neighbours(costs.exchanges))
    collectives = tuple(each for each, _ in exchanges if each is not None)
    estimates = counted(each for _, each in exchanges if each is not None)
    figures = sum(costs.flops_by_dtype.values()), dtype, costs.accessed, peak.nbytes, estimates
    repeated = tuple(Repeated(*key, flops) for key, flops in costs.repeated.items())
    rest = costs.scores, repeated, tuple(costs.sliced), peak.opaque, costs.interface, peak
    return Propagated(collectives, *figures, *rest)


_Exchange = tuple[Collective | None, Estimate | None]


def _with_neighbours(exchanges: Sequence[_Exchange]) -> Iterator[_Exchange]:
    """Mark collectives of layers for whose operands XLA may choose other layouts, or rotate shards.

    A layout that XLA chooses is kept up to the next all-to-all, and so on.
    """
    chosen = {layer for moved, _ in exchanges if moved and moved.doubt == "reshard" for layer in _layers(moved)}
    joined = [_layers(moved) for moved, _ in exchanges if moved and moved.kind == "all_to_all"]
    known = 0
    while known < len(chosen):
        known, around = len(chosen), {outer for layer in chosen for outer in _enclosing(layer)}
        chosen |= {layer for layers in joined if not layers.isdisjoint(around) for layer in layers}
    rotated = {found.layer for moved, found in exchanges if found and not moved}
    reason = "XLA may choose other layouts in this layer"
    for moved, found in exchanges:
        if moved and moved.doubt not in ("reshard", "stack"):
            of = {"collective_permute": moved.layer, "all_gather": moved.needed_by, "all_to_all": moved.needed_by}
            is_rotated = of.get(moved.kind) in rotated - {""}
            if is_rotated or any(not chosen.isdisjoint(_enclosing(layer)) for layer in _layers(moved)):
                moved = dataclasses.replace(moved, doubt="neighbour")
                found = Estimate(moved.layer, moved.operation, reason, "", 1, *moved.interval, moved.doubt)
        yield moved, found


def _layers(moved: Collective) -> set[str]:
    """Return the layers that compute and need an array."""
    return {moved.layer, moved.needed_by} - {""}


def _enclosing(layer: str) -> set[str]:
    """Return the path of a layer, and of those it is inside of."""
    return {layer[: found.start()] for found in re.finditer("/|$", layer)}


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
        self.exchanges: list[tuple[Collective | None, Estimate | None]] = []
        self.flops_by_dtype: collections.Counter[str] = collections.Counter()
        self.repeated: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        self.sliced: dict[tuple[int, tuple[str, ...]], None] = {}
        main, self.scores = module.block("main"), 0
        self.accessed = self.interface = sum(map(module.nbytes, (*main.arguments, *returned_by(main))))
        self._walk(main, _Around())

    def _walk(self, block: Any, around: _Around, reduced: Mapping[Any, int] | None = None) -> list[int | None]:
        """Add the costs of a block; return the indices of all-reduces whose sums it returns."""
        outside, self._reduced = self._reduced, dict(reduced or {})  # a sum in a loop does not join exchanges before it
        for operation in block.operations:
            self._add(operation.operation, around)
        found = [self._reduced.get(value) for value in returned_by(block)]
        self._reduced = outside
        return found

    def _add(self, operation: Any, around: _Around) -> None:
        """Add the costs of an operation."""
        name = operation.name.rpartition(".")[2]  # of Shardy, or in a `shard_map` of StableHLO
        self._add_inner(operation, around)
        if name in get_args(Kind):
            self._add_collective(name, operation, around)  # pyright: ignore[reportArgumentType]
        elif arranges(operation) and operation.operands[0] in self._reduced:
            self._reduced[operation.results[0]] = self._reduced[operation.operands[0]]
        elif operation.name == "stablehlo.broadcast_in_dim" and _is_zero(operation.operands[0]):
            self._reduced[operation.results[0]] = _ZERO
        elif operation.name == "stablehlo.add":
            self._join(operation)
        elif operation.name in ("stablehlo.dot_general", "stablehlo.convolution"):
            dtype, flops = str(operation.operands[0].type.element_type), self._flops(operation) * around.times
            self.flops_by_dtype[DTYPES.get(dtype, dtype)] += flops
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
            block = self._module.block(text_of(operation.attributes["callee"]))
            given = zip(block.arguments, operation.operands, strict=True)
            added = {value: self._reduced[each] for value, each in given if self._is_only_added(each)}
            made = zip(operation.results, self._walk(block, around, added), strict=True)
            self._reduced |= {value: first for value, first in made if first is not None}
        elif operation.name not in _REDUCTIONS:
            turns, divided = _turns(operation) if operation.name == "stablehlo.while" else 1, around.divided
            if name == "manual_computation":
                shardings = f"{operation.attributes['in_shardings']} {operation.attributes['out_shardings']}"
                divided |= set(re.findall(r'"([^"]*)"', shardings))
                divided |= {axis for each in operations_in(operation) for axis in self._exchanging(each)}
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
            name, is_border = name_of(operation), operation.name == "stablehlo.convolution"
            reason = "other convolutions may use the same borders of shards"
            shared = estimate_at(operation, reason, "border") if is_border and self._module.platform != "cpu" else None
            made_by = layer_in(name) or around.layer, jax_operation(name)
            for nbytes in found.nbytes:
                moved = Collective("collective_permute", found.axes, nbytes, around.turns, *made_by)
                self._move(moved, shared, around)
        if reason := found if isinstance(found, str) else doubt(operation, self._module):
            whole = whole_nbytes(operation, self._module) * around.times
            self._move(None, estimate_at(operation, reason), around, interval_of(whole, "other"))

    def _move(
        self, moved: Collective | None, found: Estimate | None, around: _Around, interval: tuple[int, int] = (0, 0)
    ) -> None:
        """Add a collective, or the interval of an unknown one, and its estimate."""
        if found is not None:
            moved = moved and dataclasses.replace(moved, doubt=found.kind)
            least, most = moved.interval if moved else interval
            layer = found.layer or around.layer
            found = dataclasses.replace(found, layer=layer, least_nbytes=least, most_nbytes=most)
        self.exchanges.append((moved, found))

    def _add_collective(self, kind: Kind, operation: Any, around: _Around) -> None:
        found, estimate = self._collective(kind, operation, around)
        if not found.nbytes:
            return
        kind = found.kind
        for axes in self._reduced_together(operation, found.axes) if kind == "all_reduce" else [found.axes]:
            self._move(dataclasses.replace(found, axes=axes), estimate, around)
        if kind == "all_reduce":
            self._reduced[operation.results[0]] = len(self.exchanges) - 1

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

    def _is_only_added(self, value: Any) -> bool:
        return value in self._reduced and (self._reduced[value] == _ZERO or len(list(value.uses)) == 1)

    def _join(self, addition: Any) -> None:
        """Leave out the second of two all-reduces that are only added: XLA reduces their sum, except on CPUs."""
        if self._module.platform == "cpu" or not all(map(self._is_only_added, addition.operands)):
            return
        first, last = sorted(self._reduced[value] for value in addition.operands)
        if first != _ZERO and first != last:
            (one, _), (other, _) = self.exchanges[first], self.exchanges[last]
            if one is None or other is None or one.axes != other.axes:
                return
            self.exchanges[last] = None, None
        self._reduced[addition.results[0]] = last if first == _ZERO else first

    def _collective(self, kind: Kind, operation: Any, around: _Around) -> tuple[Collective, Estimate | None]:
        """Return a collective, and its estimate if XLA may exchange otherwise."""
        given, made = self._module.nbytes(operation.operands[0]), self._module.nbytes(operation.results[0])
        name, *need = name_of(operation).split(_SEPARATOR)
        layer, made_by, axes = layer_in(name) or around.layer, jax_operation(name), self._axes_of(operation)
        late = added_after_loop(operation, self._module) if kind == "all_reduce" and around.turns != 1 else None
        exchanged = self._module.nbytes(late) if late else max(given, made)  # the sum may have a wider type
        moved = moved_as(kind, operation, late or operation.results[0], exchanged, self._module)
        turns, maker, estimate = around.outside if late else around.turns, operation.operands[0].owner, None
        if moved.doubt:
            estimate = estimate_at(maker.operation, moved.doubt, "small")
        elif moved.kind == "all_reduce" and self._module.platform != "cpu" and _is_statistic(maker):
            reason = "XLA may exchange equal sums of batch statistics once"
            estimate = estimate_at(maker.operation, reason, "statistic")
        elif moved.kind == "all_reduce" and self._has_small_operand(maker, axes):
            estimate = estimate_at(maker.operation, "XLA may gather an operand instead of a larger sum", "product")
        elif (
            self._module.platform == "tpu"
            and around.turns != 1
            and moved.nbytes < made <= BACKENDS["tpu"].certain_nbytes
        ):
            estimate = estimate_at(operation, "in loops XLA gathers some small arrays before it converts them", "wide")
        found = Collective(moved.kind, axes, moved.nbytes, turns, layer, made_by)
        if len(need) != 3:
            return found, estimate
        weight, is_asked = weight_in(need[0]), need[1] == _ASKED
        needed_by = layer_in(need[0]) or ("" if is_asked else around.layer)
        estimate = self._chosen[int(need[2])] if need[2] else estimate
        return dataclasses.replace(found, needed_by=needed_by, is_asked=is_asked, weight=weight), estimate

    def _has_small_operand(self, maker: Any, axes: tuple[str, ...]) -> bool:
        """Whether arguments of a function are multiplied that are smaller than their product, as in unrolled loops."""
        if is_argument(maker) or maker.operation.name != "stablehlo.dot_general":
            return False
        operands, shards = maker.operation.operands, math.prod(self._module.sizes[axis] for axis in axes)
        is_inside = all(is_argument(each.owner) and each.owner.owner.operation.name == "func.func" for each in operands)
        is_inside = is_inside and operands[0].owner != self._module.block("main")
        made = self._module.nbytes(maker.operation.results[0])
        return is_inside and shards * min(map(self._module.nbytes, operands)) < made

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

    def _exchanging(self, operation: Any) -> tuple[str, ...]:
        """Return the axes along which an operation of a `shard_map` exchanges what devices have computed."""
        is_one = operation.name in ("stablehlo.all_to_all", "stablehlo.all_gather")
        return self._axes_within(operation) if is_one else ()

    def _flops(self, operation: Any) -> int:
        result = self._module.local_shape(operation.results[0])
        if operation.name == "stablehlo.dot_general":
            lhs, (_, contracted) = self._module.local_shape(operation.operands[0]), product_dims(operation)[0]
            return 2 * math.prod(result) * math.prod(lhs[dim] for dim in contracted)
        return 2 * products_of(operation, self._module)


_PARTS = ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")
_KERNELS = ("tpu_custom_call", "__cudnn$fmha")
_NEEDS_ITS_LAYOUT = ("func.return", "stablehlo.return", "stablehlo.concatenate")
"""Users of reshards for which XLA was found to exchange as Shardy does."""
_REDUCE_BY_DIMS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce", "stablehlo.scatter")
_AXES = ("reduction_axes", "gathering_axes", "reduce_scatter_axes", "slicing_axes", "params")
_ZERO = -1
"""The index of sums of nothing."""
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


def _is_zero(value: Any) -> bool:
    """Whether an array without dims is a constant zero."""
    if is_argument(value.owner) or not value.owner.operation.name.endswith(".constant") or "complex" in str(value.type):
        return False
    return value.type.rank == 0 and "dense<0.0" in str(value.owner.operation.attributes["value"])


def _constant(value: Any) -> int | None:
    """Return the integer of a constant, else None."""
    if is_argument(value.owner) or not value.owner.operation.name.endswith(".constant"):
        return None
    found = re.search(r"dense<(-?\d+)>", str(value.owner.operation.attributes["value"]))
    return int(found[1]) if found else None
