"""What XLA for each backend makes of the collectives that Shardy inserts: their kind, element type and place.

`python -m benchmarks.bench_backends` compiles a small program for each entry, and prints what XLA does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from keras_dist.planner.sharded_module import ShardedModule, is_argument, returned_by

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"]


@dataclasses.dataclass(frozen=True)
class Backend:
    """How XLA for a backend moves arrays.

    Attributes:
        multiplied: for an element type the bytes of an element in which products are computed. Arrays that only
            products use are converted before they are gathered.
        added: for an element type the bytes of an element in which arrays are reduced.
        scattered_nbytes: arrays with more bytes, of two or more dims, are reduced and scattered, if devices use slices
            of the sum; None if they are always reduced as a whole.
        adds_after_loops: whether a sum over devices that a loop only adds up is reduced once, after the loop.
    """

    multiplied: Mapping[str, int] = dataclasses.field(default_factory=dict)
    added: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scattered_nbytes: int | None = None
    adds_after_loops: bool = False


BACKENDS = {
    "cpu": Backend(multiplied={"bf16": 4, "f16": 4}, added={"bf16": 4, "f16": 4}),
    "tpu": Backend(multiplied={"f32": 2}, scattered_nbytes=2**15, adds_after_loops=True),
    "cuda": Backend(scattered_nbytes=0),
}
"""XLA of jax 0.10 for CPUs, libtpu 0.0.42 for TPUs; for GPUs as XLA's source has it, in `ReduceScatterCreator`."""


def moved_as(kind: Kind, operation: Any, nbytes: int, module: ShardedModule) -> tuple[Kind, int]:
    """Return the kind of a collective in the compiled program, and the bytes that it moves, given those of Shardy."""
    backend, result = BACKENDS.get(module.platform, Backend()), operation.results[0]
    element = str(result.type.element_type)
    if kind == "all_reduce":
        least, users = backend.scattered_nbytes, list(_users(result))
        if least is not None and nbytes > least and result.type.rank > 1 and users:
            kind = "reduce_scatter" if all(_slices(each, operation) for each in users) else kind
        return kind, _converted(nbytes, result, backend.added.get(element))
    if kind == "all_gather" and element in backend.multiplied and all(map(_multiplies, _users(result))):
        return kind, _converted(nbytes, result, backend.multiplied[element])
    return kind, nbytes


def is_added_after_loop(reduction: Any, module: ShardedModule) -> bool:
    """Whether an all-reduce in a loop is only added to a sum that the loop returns, and moves behind the loop."""
    if not BACKENDS.get(module.platform, Backend()).adds_after_loops:
        return False
    block = reduction.operation.block if hasattr(reduction, "operation") else reduction.block
    users = list(_users(reduction.results[0]))
    if len(users) != 1 or users[0].name != "stablehlo.add":
        return False
    (total,) = users[0].results
    places = [place for place, value in enumerate(returned_by(block)) if value == total]
    sums = [value for value in users[0].operands if is_argument(value.owner)]
    return len(places) == 1 and len(list(total.uses)) == 1 and [value.arg_number for value in sums] == places


def _converted(nbytes: int, value: Any, width: int | None) -> int:
    return nbytes if width is None else nbytes * width * 8 // value.type.element_type.width


def _users(value: Any) -> Iterator[Any]:
    """Yield the operations that use a value, through those that only arrange or convert it."""
    for use in value.uses:
        user = use.owner.operation
        if user.name == "stablehlo.optimization_barrier":
            yield from _users(user.results[use.operand_number])
        elif user.name in _ARRANGING or (user.name == "stablehlo.reduce" and _is_reshape(user)):
            yield from _users(user.results[0])
        else:
            yield user


_ARRANGING = ("stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose")


def _is_reshape(reduction: Any) -> bool:
    shape, dims = reduction.operands[0].type.shape, map(int, reduction.attributes["dimensions"])
    return all(shape[dim] == 1 for dim in dims)


def _multiplies(user: Any) -> bool:
    """Whether an operation is a product of default precision."""
    if user.name not in ("stablehlo.dot_general", "stablehlo.convolution"):
        return False
    name = "precision_config"
    return name not in user.attributes or "HIGH" not in str(user.attributes[name])


def _slices(user: Any, reduction: Any) -> bool:
    """Whether an operation takes the slice of a device, along the axes of a reduction."""
    if user.name != "sdy.all_slice":
        return False
    sliced, reduced = str(user.attributes["slicing_axes"]), str(reduction.attributes["reduction_axes"])
    return all(axis in sliced for axis in reduced.split('"')[1::2])
