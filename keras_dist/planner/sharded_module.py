"""`ShardedModule`: a program in MLIR after Shardy's passes, with the layouts of its values."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any

from keras_dist._unstable.shardy import PLATFORM, hlo, sdy
from keras_dist.distribution.layout import Axis
from keras_dist.training.activations import path_of_scope, weight_of_scope

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# the operations of MLIR have no types


class ShardedModule:
    """A program in MLIR after Shardy's passes: platform, functions by name, and sizes of the axes of its mesh."""

    def __init__(self, operation: Any) -> None:
        self._operation = operation  # kept alive: its values are freed with it
        self.functions: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.platform = text_of(operation.attributes[PLATFORM]) if PLATFORM in operation.attributes else ""
        self._shardings: dict[tuple[Any, int], Any] = {}
        self._places: dict[Any, dict[Any, int]] = {}
        self._shards_of: dict[tuple[Any, Any], tuple[list[int], int]] = {}
        for inner in operation.regions[0].blocks[0].operations:
            if inner.operation.name == "func.func":
                self.functions[text_of(inner.attributes["sym_name"])] = inner.operation
            elif inner.operation.name == "sdy.mesh":
                axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(inner.attributes["mesh"]).axes)
                self.sizes |= {axis.name: axis.size for axis in axes}

    def block(self, function: str) -> Any:
        """Return the operations of a function, with its arguments."""
        return self.functions[function].regions[0].blocks[0]

    def place(self, operation: Any) -> int:
        """Return the position of an operation in its block."""
        block = operation.block
        if block not in self._places:
            self._places[block] = {each.operation: index for index, each in enumerate(block.operations)}
        return self._places[block][operation]

    def local_shape(self, value: Any) -> list[int]:
        """Return the shape of one device's shard."""
        return self._shard_of(value)[0]

    def nbytes(self, value: Any) -> int:
        """Return the bytes of one device's shard."""
        return self._shard_of(value)[1]

    def _shard_of(self, value: Any) -> tuple[list[int], int]:
        key = kind, sharding = value.type, self.sharding(value)
        if key not in self._shards_of:
            shape = list(kind.shape) if hasattr(kind, "shape") else []
            if sharding is not None:
                dims = zip(shape, sharding.dimension_shardings, strict=True)
                shape = [-(-size // self._shards(dim)) for size, dim in dims]
            each = element_nbytes(str(kind.element_type)) if hasattr(kind, "element_type") else 0
            self._shards_of[key] = shape, math.prod(shape) * each
        return self._shards_of[key]

    def axes(self, value: Any) -> tuple[Axis, ...]:
        """Return, for each dim of a value, the axes of the mesh over which it is sharded."""
        sharding = self.sharding(value)
        if sharding is None:
            return (None,) * (value.type.rank if hasattr(value.type, "rank") else 0)
        dims = map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
        found = [[axis.name for axis in map(sdy.AxisRefAttr, each.axes)] for each in dims]
        return tuple(tuple(names) if len(names) > 1 else names[0] if names else None for names in found)

    def _shards(self, dim: Any) -> int:
        axes = map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dim).axes)
        parts = [(axis.name, axis.sub_axis_info) for axis in axes]
        return math.prod(self.sizes[name] if part is None else sdy.SubAxisInfoAttr(part).size for name, part in parts)

    def sharding(self, value: Any) -> Any:
        """Return the sharding of a value; None for a replicated value."""
        owner = value.owner
        if is_argument(owner):
            owner, index = owner.owner.operation, value.arg_number
            attributes = owner.attributes
            if owner.name == "func.func":
                attributes = attributes["arg_attrs"][index] if "arg_attrs" in attributes else {}
            # the arguments of a loop have the shardings of its results
        else:
            attributes, index = owner.operation.attributes, value.result_number
            if owner.operation.name == "sdy.manual_computation":  # a `shard_map`; its arguments are shards already
                attributes = {"sharding": attributes["out_shardings"]}
        named = (name for name in ("out_sharding", "sharding", "sdy.sharding") if name in attributes)
        found = next((attributes[name] for name in named), None)
        if found is None:
            return None
        key = found, index
        if key not in self._shardings:
            if sdy.TensorShardingPerValueAttr.isinstance(found):
                found = sdy.TensorShardingPerValueAttr(found).shardings[index]
            self._shardings[key] = sdy.TensorShardingAttr(found)
        return self._shardings[key]

    def argument_of(self, value: Any) -> int | None:
        """Return the position of the argument of `main` of which a value is a view or a conversion, else None."""
        while True:
            owner = value.owner
            if is_argument(owner):
                inner = owner.owner.operation
                if inner.name == "func.func":
                    if text_of(inner.attributes["sym_name"]) == "main":
                        return value.arg_number
                    inner = self.call_of(inner)
                value = None if inner is None else inner.operands[value.arg_number]
            elif owner.operation.name in _VIEWS:
                value = owner.operation.operands[value.result_number]
            else:
                return None
            if value is None:
                return None

    def call_of(self, function: Any) -> Any:
        """Return a call of a function, or None."""
        return self._calls.get(text_of(function.attributes["sym_name"]))

    @functools.cached_property
    def _calls(self) -> dict[str, Any]:
        """A call of each function."""
        found = (inner for inner in operations_in(self._operation) if inner.name == "func.call")
        return {text_of(call.attributes["callee"]): call for call in found}


_VIEWS = (
    "stablehlo.convert",
    "stablehlo.dynamic_slice",
    "stablehlo.optimization_barrier",
    "stablehlo.reshape",
    "stablehlo.transpose",
)


def layers_in(name: str) -> list[str]:
    """Return the paths of submodules in the name of an operation, the innermost last."""
    paths = (path_of_scope(part) for part in re.split(r"[/()]", name))
    return [path for path in paths if path]


def weight_in(name: str) -> str:
    """Return the path of the weight in the name of a layout constraint, or an empty string."""
    paths = (weight_of_scope(part) for part in re.split(r"[/()]", name))
    return next((path for path in paths if path), "")


def layer_in(name: str) -> str:
    """Return the path of the innermost submodule in the name of an operation, or an empty string."""
    return (layers_in(name) or [""])[-1]


def operations_in(operation: Any) -> Iterator[Any]:
    """Yield an operation, and all operations inside it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from operations_in(inner.operation)


def returned_by(block: Any) -> list[Any]:
    """Return the values that a block returns."""
    return list(block.operations[len(block.operations) - 1].operation.operands)


def product_dims(product: Any) -> list[tuple[list[int], list[int]]]:
    """Return the batching and the contracted dims of both operands of a product."""
    numbers = hlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    batching = numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions
    contracted = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
    return [(list(dims), list(others)) for dims, others in zip(batching, contracted, strict=True)]


def indexed_dims(lookup: Any) -> list[int]:
    """Return the dims of its first operand that a gather or scatter indexes."""
    if lookup.name == "stablehlo.scatter":
        numbers = hlo.ScatterDimensionNumbers(lookup.attributes["scatter_dimension_numbers"])
        return list(numbers.scattered_dims_to_operand_dims)
    return list(hlo.GatherDimensionNumbers(lookup.attributes["dimension_numbers"]).start_index_map)


def name_of(operation: Any) -> str:
    """Return JAX's name of an operation, with its scopes."""
    return getattr(operation.location, "name_str", "")


def is_argument(owner: Any) -> bool:
    """Whether the owner of a value is a block, with the value as argument."""
    return hasattr(owner, "arguments")


def text_of(attribute: Any) -> str:
    """Return the name in an attribute."""
    return str(attribute).strip('"@')


def element_nbytes(name: str) -> int:
    """Return the bytes of an element of this type of MLIR, such as `bf16`."""
    bits = re.search(r"\d+", name)
    size = 1 if bits is None else int(bits[0]) / 8
    return math.ceil(2 * size if name.startswith("complex") else size)
