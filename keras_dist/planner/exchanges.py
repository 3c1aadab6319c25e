"""Exchanges inside of operations, which Shardy does not show: known ones, and operations for which XLA decides.

XLA's SPMD partitioner adds collective-permutes for slices, padding and windows of a sharded dim, one for each group of
pairs of devices. The widths of the groups follow `ExchangeHalo` and `ExchangeHaloCompact` of XLA (jax 0.10 to 0.12). It
also chooses reshards by its own costs. A step without an `Estimate` moves the propagated bytes.

Source: https://github.com/openxla/xla/blob/main/xla/service/spmd/spmd_partitioner_util.cc
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_dist.distribution.mesh import axis_tuple
from keras_dist.planner.estimates import Estimate
from keras_dist.planner.sharded_module import ShardedModule, indexed_dims, is_argument, layer_in, name_of

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types
Interval = tuple[int, int]


class Halo(NamedTuple):
    """The exchange of one operation along one dim."""

    axes: tuple[str, ...]  # of the mesh, that shard the dim
    nbytes: tuple[int, ...]  # of each collective-permute on one device


def halo_of(operation: Any, module: ShardedModule) -> Halo | str | None:
    """Return the exchange inside of an operation, a text if its size is not known, or None without an exchange."""
    is_empty = any(0 in value.type.shape for value in (*operation.operands, *operation.results))
    windows = _WINDOWS[operation.name](operation, module) if operation.name in _WINDOWS and not is_empty else None
    if not windows:
        return None
    value, layout = operation.operands[0], module.axes(operation.operands[0])
    sharded = [dim for dim in windows if layout[dim] is not None]
    if not sharded:
        return None
    shape, local = list(value.type.shape), module.local_shape(value)
    dim = sharded[0]
    axes, window, widths, count = axis_tuple(layout[dim]), windows[dim], None, -(-shape[dim] // local[dim])
    is_short = operation.name == "stablehlo.slice" and operation.results[0].type.shape[dim] < count  # XLA may sum it
    if len(sharded) == 1 and window is not None and (not is_short or _rotates(operation, local[dim])):
        starts = range(window[0], window[0] + window[1] * count, window[1])
        widths = permute_widths(local[dim], shape[dim], [(start, start + window[2]) for start in starts])
    if widths is None:
        return f"crosses the borders of a dim that {axes_text(axes)} shards"
    each = module.nbytes(value) // local[dim]
    return Halo(axes, tuple(width * each for width in widths))


def _rotates(operation: Any, places: int) -> bool:
    """Whether a slice is a part of a rotation among devices that have one place each, as between stages."""
    users = (use.owner.operation.name for use in operation.results[0].uses)
    return places == 1 and all(name in ("stablehlo.concatenate", "stablehlo.pad") for name in users)


def axes_text(axes: Sequence[str]) -> str:
    """Return the names of axes in a sentence."""
    return " and ".join(map(repr, axes))


_Windows = dict[int, tuple[int, int, int] | None]
"""For each dim that is not computed place by place `start, step, size`: shard `index` needs the places
`[start + index * step, start + index * step + size)`. None for other patterns."""


def _slice(operation: Any, module: ShardedModule) -> _Windows:
    shape = operation.operands[0].type.shape
    starts, limits, strides = (
        numbers_of(operation.attributes[name]) for name in ("start_indices", "limit_indices", "strides")
    )
    result = module.local_shape(operation.results[0])
    found = enumerate(zip(shape, starts, limits, strides, strict=True))
    return {
        dim: (start, result[dim], result[dim]) if stride == 1 else None
        for dim, (size, start, limit, stride) in found
        if (start, limit, stride) != (0, size, 1)
    }


def _pad(operation: Any, module: ShardedModule) -> _Windows:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inner = (numbers_of(operation.attributes[name]) for name in names)
    result = module.local_shape(operation.results[0])
    found = enumerate(zip(low, high, inner, strict=True))
    return {
        dim: None if inside else (-before, result[dim], result[dim])
        for dim, (before, after, inside) in found
        if before or after or inside
    }


def _convolution(operation: Any, module: ShardedModule) -> _Windows:
    image, kernel, result = labels_of(operation)
    window = window_of(operation)
    local_kernel, local_result = module.local_shape(operation.operands[1]), module.local_shape(operation.results[0])
    found: _Windows = {}
    for label, (before, after), stride, dilation, gap in window:
        size, ends = local_kernel[kernel.index(label)], local_result[result.index(label)]
        whole = operation.operands[1].type.shape[kernel.index(label)]
        if whole == 1 and (before, after, stride, gap) == (0, 0, 1, 1):
            continue
        reach = (ends - 1) * stride + (size - 1) * dilation + 1
        step = size * dilation if size < whole else ends * stride
        is_plain = gap == 1 and not (size < whole and (stride, dilation) != (1, 1))
        found[image.index(label)] = (-before, step, reach) if is_plain else None
    return found


def labels_of(convolution: Any) -> list[list[str]]:
    """Return the labels of the dims of image, kernel and result, such as `b`, `0` and `f`."""
    numbers = str(convolution.attributes["dimension_numbers"])
    return [[part.strip() for part in labels.split(",")] for labels in re.findall(r"\[([^\]]*)\]", numbers)]


def window_of(convolution: Any) -> list[tuple[str, Interval, int, int, int]]:
    """Return label, padding, stride, dilation of the kernel and of the image for each spatial dim of a convolution."""
    attributes = convolution.attributes
    labels = sorted(label for label in labels_of(convolution)[0] if label.isdigit())
    count = len(labels)
    names = ("window_strides", "rhs_dilation", "lhs_dilation")
    given = [numbers_of(attributes[name]) if name in attributes else [1] * count for name in names]
    padding = [0] * (2 * count)
    if "padding" in attributes:
        padding = [int(each) for each in re.findall(r"-?\d+", str(attributes["padding"]).partition(":")[0])]
        padding = padding if len(padding) == 2 * count else padding * (2 * count)  # a splat, as in dense<1>
    return [
        (label, (padding[2 * place], padding[2 * place + 1]), *(each[place] for each in given))
        for place, label in enumerate(labels)
    ]  # pyright: ignore[reportReturnType]


_WINDOWS = {"stablehlo.slice": _slice, "stablehlo.pad": _pad, "stablehlo.convolution": _convolution}


def products_of(convolution: Any, module: ShardedModule) -> int:
    """Return the products of one device, without those with padding and with zeros between places of the image."""
    image, kernel, result = labels_of(convolution)
    lhs, rhs, out = (list(each.type.shape) for each in (*convolution.operands, convolution.results[0]))
    local_rhs, local_out = (module.local_shape(each) for each in (convolution.operands[1], convolution.results[0]))
    products = local_out[result.index("b")] * local_out[result.index("f")] * local_rhs[kernel.index("i")]
    for label, (before, _), stride, dilation, gap in window_of(convolution):
        size, ends = kernel.index(label), result.index(label)
        whole = products_in_window(lhs[image.index(label)], rhs[size], out[ends], stride, dilation, gap, before)
        products *= whole * local_rhs[size] * local_out[ends] / (rhs[size] * out[ends])
    return round(products)


def products_in_window(image: int, kernel: int, result: int, stride: int, dilation: int, gap: int, before: int) -> int:
    """Return the products along one dim of a convolution, without those with padding and inserted zeros."""
    (few, by), (many, step) = sorted(((result, stride), (kernel, dilation)))
    places = (np.arange(many) * step - before + index * by for index in range(few))
    return sum(int(np.count_nonzero((at >= 0) & (at % gap == 0) & (at < image * gap))) for at in places)


def permute_widths(shard: int, size: int, needed: Sequence[Interval]) -> list[int] | None:
    """Return the widths of permutes that give each shard an interval of a dim; None if XLA gathers the dim."""
    count = len(needed)
    if count < 2:
        return []
    left = [index * shard - start for index, (start, _) in enumerate(needed)]
    right = [end - (index + 1) * shard for index, (_, end) in enumerate(needed)]
    window = max(end - start for start, end in needed)
    if max(*left, *right) > 2 * window:
        return None if 2 * window >= count * shard else _compact(shard, size, needed)
    most_left, most_right = max(left[1:]), max(right[:-1])
    if most_left + most_right + shard >= shard * count and max(most_left, most_right) > shard:
        return None
    bounds = -max(left), shard + max(right)
    if bounds[0] >= bounds[1]:
        return None
    widths: list[int] = []
    for hop in range(math.ceil(max(most_left, 0) / shard)):
        if (-hop - 1) * shard < bounds[1]:
            widths.append(min(most_left - shard * hop, shard) - max(-hop * shard - bounds[1], 0))
    skipped = min(max(bounds[0] - shard, 0), max(most_right, 0)) // shard
    for hop in range(skipped, math.ceil(max(most_right, 0) / shard)):
        widths.append(min(most_right - shard * hop, shard) - max(bounds[0] - (hop + 1) * shard, 0))
    return widths


def _compact(shard: int, size: int, needed: Sequence[Interval]) -> list[int]:
    """Return the widths of permutes for shards that need small parts of distant shards."""
    wanted: list[list[tuple[int, int, Interval]]] = [[] for _ in needed]  # of each source: offset, target, part
    for index, (begin, end) in enumerate(needed):
        start = max(begin, 0)
        while start < min(end, size):
            source, first = divmod(start, shard)
            last = min(shard, first + end - start)
            if source != index:
                wanted[source].append((start - begin, index, (first, last)))
            start += last - first
    queues = [sorted(each, key=lambda item: item[0]) for each in wanted]
    widths: list[int] = []
    while any(queues):
        targets: set[int] = set()
        low, high = shard, 0
        for queue in (each for each in queues if each):
            _, target, (first, last) = queue[0]
            apart = (low > last and high == shard and first == 0) or (high < first and low == 0 and last == shard)
            if targets and (target in targets or apart):
                continue
            targets.add(target)
            low, high = min(low, first), max(high, last)
            queue.pop(0)
        widths.append(high - low)
    return widths


def numbers_of(attribute: Any) -> list[int]:
    """Return the integers in an attribute."""
    return [int(each) for each in attribute]


def estimate_at(operation: Any, reason: str, kind: str = "other") -> Estimate:
    """Return the estimate for an operation."""
    name = name_of(operation)
    return Estimate(layer_in(name), jax_operation(name), reason, source_of(operation.location), kind=kind)


def jax_operation(name: str) -> str:
    """Return the operation of JAX in its name with scopes."""
    return name.rpartition("/")[2].rstrip(":)")


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


def whole_nbytes(operation: Any, module: ShardedModule) -> int:
    """Return the bytes of the largest operand or result, gathered over the axis with the most devices."""
    found = [0]
    for value in (*operation.operands, *operation.results):
        sizes = [math.prod(module.sizes[name] for name in axis_tuple(axis)) for axis in module.axes(value)]
        found.append(module.nbytes(value) * max(sizes, default=1))
    return max(found)


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
    dims = indexed_dims(operation)
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
    **dict.fromkeys(["stablehlo.all_reduce", "stablehlo.reduce_scatter"], _manual),
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
