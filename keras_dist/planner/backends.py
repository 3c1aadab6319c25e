"""Collectives as XLA for each backend compiles those that Shardy inserts: their kind, element type and place.

`python -m tests.planner.backend_experiments v5e:2x4` compiles a small program for each entry, and compares it with what
is recorded there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

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
        gathers_narrow: whether arrays that were converted to a wider type are gathered before.
        joins_conversions: whether an array that is converted twice is gathered once.
        added: for an element type the bytes of an element in which arrays are reduced.
        scattered_nbytes: arrays with more bytes, of two or more dims, are reduced and scattered, if devices use slices
            of the sum; None if they are always reduced as a whole.
        certain_nbytes: for arrays with at most as many bytes, XLA may choose otherwise.
        adds_after_loops: whether a sum over devices that a loop only adds up is reduced once, after the loop.
        lanes: vectors in shards of a multiple of so many elements are gathered; others are put in place and reduced.
    """

    multiplied: Mapping[str, int] = dataclasses.field(default_factory=dict)
    computes_so: bool = False
    gathers_narrow: bool = False
    joins_conversions: bool = True
    added: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scattered_nbytes: int | None = None
    certain_nbytes: int = 0
    adds_after_loops: bool = False
    lanes: int = 1


DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i8": "int8"}
"""NumPy's name of an element type, by the name in MLIR."""
_WIDENED = {"bfloat16": 4, "float16": 4}
BACKENDS = {
    "cpu": Backend(multiplied=_WIDENED, computes_so=True, added=_WIDENED),
    "tpu": Backend(
        multiplied={"float32": 2},
        gathers_narrow=True,
        scattered_nbytes=2**15,
        certain_nbytes=2**18,
        adds_after_loops=True,
        lanes=128,
    ),
    "cuda": Backend(gathers_narrow=True, joins_conversions=False, scattered_nbytes=0, adds_after_loops=True),
}
"""XLA of jax 0.10 for CPUs and, compiled without one, for H100; libtpu 0.0.42 for TPUs."""


class Moved(NamedTuple):
    """A collective of a compiled program."""

    kind: Kind
    nbytes: int  # 0 if an equal collective comes first
    doubt: str = ""  # why XLA may choose otherwise


def shards_moved_as(platform: str | None, shape: Sequence[int], dtype: str, nbytes: int) -> tuple[Moved, Moved]:
    """Return the gather of a sharded weight of `nbytes` for products, and the reduction of its gradient to shards."""
    backend = BACKENDS.get(platform or "cuda", Backend())
    multiplied, least = (backend.multiplied if len(shape) > 1 else {}).get(dtype), backend.scattered_nbytes
    is_scattered = least is not None and len(shape) > 1 and nbytes > least
    reduced = _converted(nbytes, dtype, backend.added.get(dtype))
    return (
        Moved("all_gather", _converted(nbytes, dtype, multiplied)),
        Moved("reduce_scatter" if is_scattered else "all_reduce", reduced),
    )


def moved_as(kind: Kind, operation: Any, result: Any, nbytes: int, module: ShardedModule) -> Moved:
    """Return what XLA makes of a collective of these bytes; `result` has its users, which may be after a loop."""
    backend = BACKENDS.get(module.platform, Backend())
    element = str(result.type.element_type)
    dtype = DTYPES.get(element, element)
    if kind == "all_reduce":
        if (whole := _sharded_operand_nbytes(operation.operands[0].owner, module)) <= nbytes and whole:
            multiplied = backend.multiplied if _multiplies(operation.operands[0].owner.operation) else {}
            return Moved("all_gather", _converted(whole, dtype, multiplied.get(dtype)))
        least, users, doubt = backend.scattered_nbytes, list(users_of(result, module)), ""
        if least is not None and result.type.rank > 1 and users and all(_is_slice(each, operation) for each in users):
            is_scattered = nbytes > least and not all(_is_one_tile(each, module) for each in users)
            kind = "reduce_scatter" if is_scattered else kind
            doubt = "XLA reduces some small arrays as a whole" if nbytes <= backend.certain_nbytes else ""
        return Moved(kind, _converted(nbytes, dtype, backend.added.get(dtype)), doubt)
    if kind == "all_gather" and operation.name == "sdy.all_gather":
        shard = operation.operands[0]
        if shard.type.rank == 1 and module.local_shape(shard)[0] % backend.lanes:
            return Moved("all_reduce", nbytes)
        alike = _alike(operation, backend.joins_conversions, module)
        if alike[0] != operation:
            return Moved(kind, 0)
        stored = DTYPES.get(str(_origin(operation.operands[0]).type.element_type))
        if backend.gathers_narrow and stored and element in DTYPES:
            nbytes = min(nbytes, _converted(nbytes, dtype, np.dtype(stored).itemsize))
            dtype = min(stored, dtype, key=lambda name: np.dtype(name).itemsize)
        users = [user for each in alike for user in _computing(each.results[0], module)]
        uses_so = _computes if backend.computes_so else _multiplies
        if dtype in backend.multiplied and all(uses_so(user) or _is_narrow(user) for user in users):
            return Moved(kind, _converted(nbytes, dtype, backend.multiplied[dtype]))
    return Moved(kind, nbytes)


def _sharded_operand_nbytes(maker: Any, module: ShardedModule) -> int:
    """Return the bytes of the operand of a product that XLA gathers if the sum of the product is not smaller, or 0.

    It contracts dims that are whole in the other operand, of which a device uses its slice.
    """
    if is_argument(maker) or maker.operation.name != "stablehlo.dot_general":
        return 0
    for sliced, other in zip(maker.operation.operands, reversed(maker.operation.operands), strict=True):
        if not is_argument(sliced.owner) and sliced.owner.operation.name == "sdy.all_slice":
            shards = module.nbytes(sliced.owner.operation.operands[0]) // max(module.nbytes(sliced), 1)
            return module.nbytes(other) * shards
    return 0


def _alike(gather: Any, with_conversions: bool, module: ShardedModule) -> list[Any]:
    """Return the gathers of the same array in the same block to the same type and layout: XLA gathers once."""
    block, made = gather.operation.block, str(gather.results[0].type)
    source = _origin(gather.operands[0]) if with_conversions else gather.operands[0]
    same = [each for each in _gathers(source) if each.block == block]
    layout = str(gather.attributes["out_sharding"])
    same = [
        each for each in same if (str(each.attributes["out_sharding"]), str(each.results[0].type)) == (layout, made)
    ]
    return sorted(same, key=module.place)


def _origin(value: Any) -> Any:
    """Return the array of which a value is a conversion."""
    while not is_argument(value.owner) and value.owner.operation.name == "stablehlo.convert":
        value = value.owner.operation.operands[0]
    return value


def _gathers(value: Any) -> Iterator[Any]:
    """Yield the gathers of an array and of its conversions."""
    for user in (use.owner.operation for use in value.uses):
        if user.name == "sdy.all_gather":
            yield user
        elif user.name == "stablehlo.convert":
            yield from _gathers(user.results[0])


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


def _converted(nbytes: int, dtype: str, width: int | None) -> int:
    return nbytes if width is None else nbytes * width // np.dtype(dtype).itemsize


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
        elif arranges(user):
            yield from users_of(user.results[0], module)
        elif user.name != "sdy.all_slice" or is_argument(value.owner) or value.owner.operation.name != "sdy.all_gather":
            yield user


def _computing(value: Any, module: ShardedModule) -> Iterator[Any]:
    """Yield the operations that use the elements of an array, also after a lookup."""
    for user in users_of(value, module):
        if user.name in _LOOKUP:
            yield from _computing(user.results[0], module)
        else:
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
_LOOKUP = ("stablehlo.gather", "stablehlo.select")
_ARRANGING = ("stablehlo.convert", "stablehlo.reshape", "stablehlo.reverse", "stablehlo.transpose")


def arranges(operation: Any) -> bool:
    """Whether an operation only arranges or converts an array."""
    if operation.name != "stablehlo.reduce":
        return operation.name in _ARRANGING
    shape, dims = operation.operands[0].type.shape, map(int, operation.attributes["dimensions"])
    return all(shape[dim] == 1 for dim in dims)


def _computes(user: Any) -> bool:
    return not user.name.endswith(".return")


def _multiplies(user: Any) -> bool:
    """Whether an operation is a product of default precision."""
    if user.name not in ("stablehlo.dot_general", "stablehlo.convolution"):
        return False
    name = "precision_config"
    return name not in user.attributes or "HIGH" not in str(user.attributes[name])


def _is_narrow(user: Any) -> bool:
    """Whether an operation computes in 16 bits: what it uses was converted."""
    return {str(operand.type.element_type) for operand in user.operands} <= {"bf16", "f16"}


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
