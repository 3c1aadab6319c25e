"""Calls of MLIR and of Shardy, JAX's partitioner, that differ between versions. Nothing else imports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax._src.lib.mlir import ir, passmanager  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir.dialects import sdy as sdy  # whose attributes `run_passes` gives


def run_passes(lowered: jax.stages.Lowered, passes: str) -> Any:
    """Run passes of MLIR, such as Shardy's, on a copy of a lowered program.

    Args:
        lowered: the program.
        passes: their names and options, with commas between them.

    Returns:
        The operation of the copied module. Its values must not outlive it.
    """
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        copy = module.operation.clone()
        passmanager.PassManager.parse(f"builtin.module({passes})").run(copy)
    return copy


def factors_of(operation: Any) -> tuple[list[list[list[int]]], list[int]] | None:
    """How Shardy takes an operation's dims apart, as `sdy-populate-op-sharding-rules` says; None where it does not.

    Returns:
        For each operand, then each result, the factors of each dim, major first; and the size of each factor.
    """
    if "sdy.sharding_rule" not in operation.attributes:
        return None
    rule = sdy.OpShardingRuleAttr(operation.attributes["sdy.sharding_rule"])
    tensors = [
        [list(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(tensor).dim_mappings]
        for tensor in (*rule.operand_mappings, *rule.result_mappings)
    ]
    return tensors, list(rule.factor_sizes)


def lay_out(
    module: Any,
    sizes: Mapping[str, int],
    arguments: Sequence[Sequence[str | tuple[str, ...] | None]],
    results: Sequence[Sequence[str | tuple[str, ...] | None]],
    passes: str,
) -> Any:
    """Run passes on a copy of a lowered module, with other layouts on another mesh.

    Args:
        module: the operation of the module, whose `main` has no layouts, or others.
        sizes: the axes of the mesh, by name.
        arguments: for each argument of `main` the mesh axes of each dim.
        results: the same for its results.
        passes: names and options of the passes, with commas between them.

    Returns:
        The operation of the copied module. Its values must not outlive it.
    """
    with module.context, ir.Location.unknown():
        copy = module.clone()
        block = copy.regions[0].blocks[0]
        found = {str(each.operation.attributes["sym_name"]): each.operation for each in block.operations}
        mesh = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(name, size) for name, size in sizes.items()])
        if '"mesh"' in found:
            found['"mesh"'].attributes["mesh"] = mesh
        else:
            with ir.InsertionPoint.at_block_begin(block):
                sdy.MeshOp("mesh", mesh)
        known: dict[tuple[Any, ...], Any] = {}

        def attribute(axes: Sequence[str | tuple[str, ...] | None]) -> Any:
            key = tuple(axes)
            if key not in known:
                named = [() if axis is None else (axis,) if isinstance(axis, str) else axis for axis in key]
                dims = ", ".join("{" + ", ".join(f'"{name}"' for name in names) + "}" for names in named)
                sharding = ir.Attribute.parse(f"#sdy.sharding<@mesh, [{dims}]>")
                known[key] = ir.DictAttr.get({"sdy.sharding": sharding})
            return known[key]

        main = found['"main"']
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([attribute(axes) for axes in arguments])
        main.attributes["res_attrs"] = ir.ArrayAttr.get([attribute(axes) for axes in results])
        passmanager.PassManager.parse(f"builtin.module({passes})").run(copy)
    return copy


def ranks_of_main(module: Any) -> tuple[list[int], list[int]]:
    """The numbers of dims of the arguments of a module's `main`, and of its results."""
    operations = [each.operation for each in module.regions[0].blocks[0].operations]
    main = next(each for each in operations if str(each.attributes["sym_name"]) == '"main"')
    block = main.regions[0].blocks[0]
    returned = list(block.operations)[-1].operation.operands
    return [value.type.rank for value in block.arguments], [value.type.rank for value in returned]


def drop_constraints(module: Any) -> None:
    """Take the constraints of layouts out of a module: each value is then what was constrained."""
    blocks = [block for region in module.regions for block in region.blocks]
    for block in blocks:  # which grows
        for each in list(block.operations):
            operation = each.operation
            blocks += [inner for region in operation.regions for inner in region.blocks]
            if operation.name == "sdy.sharding_constraint":
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
