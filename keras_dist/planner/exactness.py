"""Where XLA's program may exchange other bytes than the propagated ones: reshards, and operations across shards.

XLA's SPMD partitioner chooses reshards by its own costs, and adds exchanges inside of operations that Shardy does not
show. A step without any of these places moves the propagated bytes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from keras_dist.distribution.mesh import axis_tuple
from keras_dist.planner.halos import axes_text
from keras_dist.planner.sharded_module import ShardedModule, is_argument, layer_in, name_of

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An operation whose exchanges in XLA's program are not known before compilation.

    Attributes:
        layer: path of the submodule; empty if not known.
        operation: the operation of JAX, such as `split`.
        reason: why its exchanges are not known.
        source: file and line of the user's code; empty if not known.
        count: number of such operations.

    Example:
        >>> import keras_dist as kd
        >>> print(kd.planner.Estimate("head", "sort", "sorts along a dim that 'model' shards", "model.py:7"))
        sort of 'head' (model.py:7): sorts along a dim that 'model' shards
    """

    layer: str
    operation: str
    reason: str
    source: str = ""
    count: int = 1

    def __str__(self) -> str:
        where = f" of {self.layer!r}" if self.layer else ""
        at = f" ({self.source})" if self.source else ""
        more = f"; {self.count - 1} more like it" if self.count > 1 else ""
        return f"{self.operation or 'an operation'}{where}{at}: {self.reason}{more}"


def estimate_at(operation: Any, reason: str) -> Estimate:
    """Return the estimate for an operation."""
    name = name_of(operation)
    return Estimate(layer_in(name), jax_operation(name), reason, source_of(operation.location))


def jax_operation(name: str) -> str:
    """Return the operation of JAX in its name with scopes."""
    return name.rpartition("/")[2].rstrip(":)")


def counted(estimates: Iterable[Estimate]) -> tuple[Estimate, ...]:
    """Return one estimate for all operations with the same layer, operation and reason."""
    found: dict[tuple[str, str, str], Estimate] = {}
    for each in estimates:
        key = each.layer, each.operation, each.reason
        count = each.count + (found[key].count if key in found else 0)
        found[key] = dataclasses.replace(found.get(key, each), count=count)
    return tuple(found.values())


def is_forced(reshard: Any, user: Any, module: ShardedModule) -> bool:
    """Whether the operation has one layout, as elementwise ones, broadcasts and transposes: XLA reshards to it too."""
    result, given = user.results[0], reshard.results[0]
    if any(use.owner.operation.name == "sdy.reshard" for use in result.uses):
        return False
    layout = module.axes(result)
    if user.name == "stablehlo.broadcast_in_dim":
        dims = map(int, user.attributes["broadcast_dimensions"])
        sizes = zip(dims, given.type.shape, strict=True)
        return module.axes(given) == tuple(layout[dim] if size > 1 else None for dim, size in sizes)
    if user.name == "stablehlo.transpose":
        return layout == tuple(module.axes(given)[int(dim)] for dim in user.attributes["permutation"])
    shapes = {tuple(each.type.shape) for each in (*user.operands, result)}
    is_elementwise = len(shapes) == 1 and user.name not in _CHECKS and not len(list(user.regions))
    return is_elementwise and user.name not in _PRODUCTS and module.axes(given) == layout


def doubt(operation: Any, module: ShardedModule) -> str:
    """Return why the exchanges of an operation are not known, or an empty string."""
    check = _CHECKS.get(operation.name)
    return check(operation, module) if check else ""


def _crossed(dims: Iterable[int], value: Any, module: ShardedModule, what: str) -> str:
    layout = module.axes(value)
    over = dict.fromkeys(axis for dim in dims for axis in axis_tuple(layout[dim]))
    return f"{what} a dim that {axes_text(list(over))} shards" if over else ""


def _concatenate(operation: Any, module: ShardedModule) -> str:
    dim = int(operation.attributes["dimension"])
    if _is_shift(operation, dim, module):
        return ""
    values = (*operation.operands, operation.results[0])
    return next(filter(None, (_crossed([dim], each, module, "concatenates along") for each in values)), "")


def _is_shift(operation: Any, dim: int, module: ShardedModule) -> bool:
    """Return whether shards of size 1 are rotated, as in a pipeline: one permute, which the slices count."""
    parts = [None if is_argument(value.owner) else value.owner.operation for value in operation.operands]
    if len(parts) != 2 or any(part is None or part.name != "stablehlo.slice" for part in parts):
        return False
    sources = [part.operands[0] for part in parts if part is not None]
    return sources[0] == sources[1] and module.local_shape(operation.results[0])[dim] == 1


def _reverse(operation: Any, module: ShardedModule) -> str:
    return _crossed(map(int, operation.attributes["dimensions"]), operation.operands[0], module, "reverses")


def _sort(operation: Any, module: ShardedModule) -> str:
    return _crossed([int(operation.attributes["dimension"])], operation.operands[0], module, "sorts along")


def _window(operation: Any, module: ShardedModule) -> str:
    sizes = [int(size) for size in operation.attributes["window_dimensions"]]
    dims = [dim for dim, size in enumerate(sizes) if size > 1]
    return _crossed(dims, operation.operands[0], module, "has a window over")


def _part(operation: Any, module: ShardedModule) -> str:
    """`dynamic_slice` and `dynamic_update_slice`, whose part is their result or second operand."""
    whole = operation.operands[0]
    part = operation.results[0] if operation.name == "stablehlo.dynamic_slice" else operation.operands[1]
    dims = [dim for dim, (one, all_) in enumerate(zip(part.type.shape, whole.type.shape, strict=True)) if one < all_]
    return _crossed(dims, whole, module, "takes or replaces a part of")


def _indexed(operation: Any, module: ShardedModule) -> str:
    name = "dimension_numbers" if operation.name == "stablehlo.gather" else "scatter_dimension_numbers"
    numbers = str(operation.attributes[name])
    indexed = re.search(r"(?:start_index_map|scatter_dims_to_operand_dims) = \[([\d, ]*)\]", numbers)
    dims = [int(dim) for dim in indexed[1].split(",")] if indexed else []
    return _crossed(dims, operation.operands[0], module, "indexes several dims and") if len(dims) > 1 else ""


def _grouped(operation: Any, module: ShardedModule) -> str:
    """Convolutions whose features or rows are in groups."""
    counts = (int(operation.attributes[f"{name}_group_count"]) for name in ("feature", "batch"))
    layouts = [axis for operand in operation.operands for axis in module.axes(operand)]
    is_sharded = max(counts) > 1 and any(axis is not None for axis in layouts)
    return "convolves groups of features on shards" if is_sharded else ""


def _reshape(operation: Any, module: ShardedModule) -> str:
    before, after = operation.operands[0], operation.results[0]
    local = math.prod(module.local_shape(before)), math.prod(module.local_shape(after))
    return "" if local[0] == local[1] else "regroups a sharded dim that its groups do not divide"


def _unknown(operation: Any, module: ShardedModule) -> str:
    values = (*operation.operands, *operation.results)
    is_sharded = any(axis is not None for value in values for axis in module.axes(value))
    return "XLA does not split it over devices by a known rule" if is_sharded else ""


def _manual(operation: Any, module: ShardedModule) -> str:
    del operation, module
    return "jax.shard_map calls collectives, which are not counted"


_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.slice", "stablehlo.pad")
_CHECKS: dict[str, Callable[[Any, ShardedModule], str]] = {
    "stablehlo.concatenate": _concatenate,
    "stablehlo.reverse": _reverse,
    "stablehlo.sort": _sort,
    "stablehlo.reduce_window": _window,
    "stablehlo.select_and_scatter": _window,
    "stablehlo.dynamic_slice": _part,
    "stablehlo.dynamic_update_slice": _part,
    "stablehlo.gather": _indexed,
    "stablehlo.scatter": _indexed,
    "stablehlo.convolution": _grouped,
    "stablehlo.reshape": _reshape,
    **dict.fromkeys(("stablehlo.fft", "stablehlo.cholesky", "stablehlo.triangular_solve", "chlo.top_k"), _unknown),
    **dict.fromkeys(
        [f"stablehlo.{kind}" for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")], _manual
    ),
    "stablehlo.collective_permute": _manual,
}


def source_of(location: Any) -> str:
    """Return file and line of the innermost frame outside of installed packages, or an empty string."""
    frames = [location]
    while frames:
        frame = frames.pop()
        if hasattr(frame, "filename") and not re.search(r"site-packages|/keras_dist/", frame.filename):
            return f"{frame.filename.rpartition('/')[2]}:{frame.start_line}"
        frames += (getattr(frame, name) for name in ("caller", "callee", "child_loc") if hasattr(frame, name))
    return ""
