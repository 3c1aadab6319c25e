"""Collectives as XLA for each backend compiles those that Shardy inserts: their kind, element type and place.

`python -m tests.planner.backend_experiments v5e:2x4` compiles a small program for each entry, and compares it with what
is recorded there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from keras_dist.planner.sharded_module import ShardedModule, is_argument, returned_by, text_of

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"]


@dataclasses.dataclass(frozen=True)
class Backend:
    """Habits of XLA for a backend when it moves arrays.

    Attributes:
        multiplied: for an element type the bytes of an element in which products are computed. Arrays that only
            products use are converted before they are gathered.
        computes_so: whether all operations are computed so, and not products alone.
        added: for an element type the bytes of an element in which arrays are reduced.
        scattered_nbytes: arrays with more bytes, of two or more dims, are reduced and scattered, if devices use slices
            of the sum; None if they are always reduced as a whole.
        certain_nbytes: for arrays with at most as many bytes, XLA may choose otherwise.
        adds_after_loops: whether a sum over devices that a loop only adds up is reduced once, after the loop.
    """

    multiplied: Mapping[str, int] = dataclasses.field(default_factory=dict)
    computes_so: bool = False
    added: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scattered_nbytes: int | None = None
    certain_nbytes: int = 0
    adds_after_loops: bool = False


BACKENDS = {
    "cpu": Backend(multiplied={"bf16": 4, "f16": 4}, computes_so=True, added={"bf16": 4, "f16": 4}),
    "tpu": Backend(multiplied={"f32": 2}, scattered_nbytes=2**15, certain_nbytes=2**17, adds_after_loops=True),
    "cuda": Backend(scattered_nbytes=0),
}
"""XLA of jax 0.10 for CPUs, libtpu 0.0.42 for TPUs; for GPUs as XLA's source has it, in `ReduceScatterCreator`."""


class Moved(NamedTuple):
    """A collective of a compiled program."""

    kind: Kind
    nbytes: int  # 0 if an equal collective comes first
    doubt: str = ""  # why XLA may choose otherwise


def moved_as(kind: Kind, operation: Any, result: Any, nbytes: int, module: ShardedModule) -> Moved:
    """Return what XLA makes of a collective of these bytes; `result` has its users, which may be after a loop."""
    backend = BACKENDS.get(module.platform, Backend())
    element = str(result.type.element_type)
    if kind == "all_reduce":
        least, users, doubt = backend.scattered_nbytes, list(users_of(result, module)), ""
        if least is not None and result.type.rank > 1 and users and all(_is_slice(each, operation) for each in users):
            is_scattered = nbytes > least and not all(_is_one_tile(each, module) for each in users)
            kind = "reduce_scatter" if is_scattered else kind
            doubt = "XLA reduces some small arrays as a whole" if nbytes <= backend.certain_nbytes else ""
        return Moved(kind, _converted(nbytes, result, backend.added.get(element)), doubt)
    if kind == "all_gather" and operation.name == "sdy.all_gather":
        alike = _alike(operation)
        if alike[0] != operation:
            return Moved(kind, 0)
        users = [user for each in alike for user in users_of(each.results[0], module)]
        uses_so = _computes if backend.computes_so else _multiplies
        if element in backend.multiplied and all(map(uses_so, users)):
            return Moved(kind, _converted(nbytes, result, backend.multiplied[element]))
    return Moved(kind, nbytes)


def _alike(gather: Any) -> list[Any]:
    """Return the gathers of the same array in the same block to the same layout: XLA gathers once."""
    block, users = gather.operation.block, [use.owner.operation for use in gather.operands[0].uses]
    same = [each for each in users if each.name == gather.name and each.block == block]
    layout = str(gather.attributes["out_sharding"])
    return [
        each for each in block.operations if each.operation in same and str(each.attributes["out_sharding"]) == layout
    ]


def added_after_loop(reduction: Any, module: ShardedModule) -> Any:
    """Return the result of a loop that only adds up these all-reduces, which XLA reduces after the loop; else None."""
    users = list(users_of(reduction.results[0], module))
    if not BACKENDS.get(module.platform, Backend()).adds_after_loops or [user.name for user in users] != [_ADD]:
        return None
    total, sums = users[0].results[0], [value for value in users[0].operands if is_argument(value.owner)]
    while len(sums) == 1 and len(list(total.uses)) == 1 and total in returned_by(sums[0].owner):
        block, place = sums[0].owner, returned_by(sums[0].owner).index(total)
        if block.owner.operation.name == "stablehlo.while":
            return block.owner.operation.results[place] if place == sums[0].arg_number else None
        call = module.call_of(block.owner.operation)  # the body of a loop may be a function
        if call is None:
            return None
        before = call.operands[sums[0].arg_number]
        total, sums = call.results[place], [before] if is_argument(before.owner) else []
    return None


def _converted(nbytes: int, value: Any, width: int | None) -> int:
    return nbytes if width is None else nbytes * width * 8 // value.type.element_type.width


def users_of(value: Any, module: ShardedModule) -> Iterator[Any]:
    """Yield the operations that use a value: through those that only arrange or convert it, and out of functions.

    A slice of what was gathered for it is the array before the gather, and no use.
    """
    for use in value.uses:
        user = use.owner.operation
        call = module.call_of(user.block.owner.operation) if user.name == "func.return" else None
        if call is not None:
            yield from users_of(call.results[use.operand_number], module)
        elif user.name in ("func.call", "stablehlo.while"):
            yield from _users_inside(user, use.operand_number, module)
        elif user.name == "stablehlo.optimization_barrier":
            yield from users_of(user.results[use.operand_number], module)
        elif user.name in _ARRANGING or (user.name == "stablehlo.reduce" and _is_reshape(user)):
            yield from users_of(user.results[0], module)
        elif user.name != "sdy.all_slice" or is_argument(value.owner) or value.owner.operation.name != "sdy.all_gather":
            yield user


def _users_inside(user: Any, place: int, module: ShardedModule) -> Iterator[Any]:
    """Yield the operations that use an operand of a call or loop there, and the loop if it changes the operand."""
    if user.name == "func.call":
        yield from users_of(module.block(text_of(user.attributes["callee"])).arguments[place], module)
        return
    body = user.regions[1].blocks[0]
    if returned_by(body)[place] != body.arguments[place]:
        yield user
        return
    yield from users_of(user.results[place], module)
    yield from (each for each in users_of(body.arguments[place], module) if each.name != "stablehlo.return")


_ADD = "stablehlo.add"
_ARRANGING = ("stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose")


def _is_reshape(reduction: Any) -> bool:
    shape, dims = reduction.operands[0].type.shape, map(int, reduction.attributes["dimensions"])
    return all(shape[dim] == 1 for dim in dims)


def _computes(user: Any) -> bool:
    return not user.name.endswith(".return")


def _multiplies(user: Any) -> bool:
    """Whether an operation is a product of default precision."""
    if user.name not in ("stablehlo.dot_general", "stablehlo.convolution"):
        return False
    name = "precision_config"
    return name not in user.attributes or "HIGH" not in str(user.attributes[name])


def _is_slice(user: Any, reduction: Any) -> bool:
    """Whether an operation takes the slice of a device along the axes of a reduction."""
    if user.name != "sdy.all_slice":
        return False
    sliced, reduced = str(user.attributes["slicing_axes"]), str(reduction.attributes["reduction_axes"])
    return all(axis in sliced for axis in reduced.split('"')[1::2])


def _is_one_tile(slicing: Any, module: ShardedModule) -> bool:
    """Whether slices have 128 lanes of bfloat16, one tile of TPUs, which XLA does not scatter."""
    result = slicing.results[0]
    is_narrow = module.local_shape(result)[-1] == 128 < result.type.shape[-1]
    return module.platform == "tpu" and str(result.type.element_type) == "bf16" and is_narrow
