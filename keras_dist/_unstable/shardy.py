"""Calls of MLIR and of Shardy, JAX's partitioner, that differ between versions.

Operations that are returned belong to copies of a lowered module; values of a module must not outlive its operation.
"""

from __future__ import annotations

import contextlib
import io
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import compiler, dispatch
from jax._src.interpreters import mlir, pxla
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir import ir, passmanager  # pyright: ignore[reportPrivateImportUsage]
from jax._src.lib.mlir.dialects import hlo as hlo  # the attributes of operations
from jax._src.lib.mlir.dialects import sdy as sdy  # its attributes are what the passes return

from keras_dist._unstable import sharding_origins

PLATFORM = "jax.platform"
_TIMEOUT_S = 120


def copy_of(lowered: jax.stages.Lowered) -> Any:
    """Return the operation of a copy of a lowered program's module, for analysis: it computes other values.

    The attribute `PLATFORM` of the module names its platform.

    Shardy has no sharding rules for the elementwise operations of CHLO, such as `erf` and `square`, which XLA lowers
    before it propagates (jaxlib 0.10.2 and 0.12). In the copy products replace them; for CPUs, what XLA lowers them to.
    """
    of: Any = lowered
    module: Any = of.compiler_ir("stablehlo")
    with module.context:
        copy = module.operation.clone()
        copy.attributes[PLATFORM] = ir.StringAttr.get(of._lowering._platforms[0])
        if of._lowering._platforms[0] == "cpu":
            hlo.register_stablehlo_passes()
            run_passes(copy, "func.func(chlo-legalize-to-stablehlo)")
        found: list[Any] = []
        copy.walk(lambda operation: found.append(operation) or ir.WalkResult.ADVANCE)
        for operation in found:
            types = {value.type for value in (*operation.operands, *operation.results)}
            if operation.name.startswith("chlo.") and len(types) == len(operation.results) == 1:
                operands = [operation.operands[0], operation.operands[-1]]
                with ir.InsertionPoint(operation):
                    product = ir.Operation.create("stablehlo.multiply", [*types], operands, loc=operation.location)
                operation.results[0].replace_all_uses_with(product.results[0])
                operation.erase()
    return copy


def run_passes(module: Any, passes: str) -> None:
    """Run passes of MLIR, such as Shardy's, on the operation of a module, in place."""
    with module.context:
        passmanager.PassManager.parse(f"builtin.module({passes})").run(module)


def with_origins(lowered: jax.stages.Lowered) -> Any:
    """Propagate layouts through a copy of a lowered program, and note their origins at each value.

    Where the process of `sharding_origins` crashes, origins are missing.
    """
    module = copy_of(lowered)
    written = io.BytesIO()
    module.write_bytecode(written)
    program = [sys.executable, "-P", sharding_origins.__file__]
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        found = subprocess.run(program, input=written.getvalue(), capture_output=True, check=True, timeout=_TIMEOUT_S)
        with module.context:
            return ir.Module.parse(found.stdout).operation
    run_passes(module, sharding_origins.PASSES.partition("{")[0])
    return module


def rename(operation: Any, name: str) -> None:
    """Set the name in the location of an operation, which passes copy to the operations they create from it."""
    with operation.context:
        operation.location = ir.Location.name(name)


def factors_of(operation: Any) -> tuple[list[list[list[int]]], list[int]] | None:
    """Return the factors of each dim of operands and results, major first, and their sizes, or None.

    `sdy-populate-op-sharding-rules` notes them.
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
) -> Any:
    """Return a copy of a lowered module for a mesh with axes of these sizes, with new layouts.

    Args:
        module: the operation of the module.
        sizes: the size of each axis of the mesh, by name.
        arguments: for each argument of `main` the mesh axes of each dim.
        results: for each result of `main` the mesh axes of each dim.
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
    return copy


def main_of(module: Any) -> Any:
    """Return the block of a module's `main`."""
    operations = [each.operation for each in module.regions[0].blocks[0].operations]
    main = next(each for each in operations if str(each.attributes["sym_name"]) == '"main"')
    return main.regions[0].blocks[0]


def drop_constraints(
    module: Any,
    is_kept: Callable[[Any], bool] = lambda operation: False,
    has_layouts: Callable[[Any], bool] = lambda operation: False,
) -> None:
    """Remove the sharding constraints of a module, except kept ones, and what is done in a `shard_map` for layouts."""
    blocks = [block for region in module.regions for block in region.blocks]
    for block in blocks:  # which grows
        for each in list(block.operations):
            operation = each.operation
            blocks += [inner for region in operation.regions for inner in region.blocks]
            is_left_out = operation.name == "sdy.sharding_constraint" and not is_kept(operation)
            if is_left_out or (operation.name == "sdy.manual_computation" and has_layouts(operation)):
                for result, operand in zip(operation.results, operation.operands, strict=True):
                    result.replace_all_uses_with(operand)
                operation.erase()


def mesh_of(lowered: jax.stages.Lowered) -> dict[str, int]:
    """Return the axes of a lowered program's mesh, with their sizes; empty if it is lowered for one device."""
    module: Any = lowered.compiler_ir("stablehlo")
    found: dict[str, int] = {}
    for operation in module.operation.regions[0].blocks[0].operations:
        if operation.operation.name == "sdy.mesh":
            axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(operation.attributes["mesh"]).axes)
            sizes = {axis.name: axis.size for axis in axes}
            found = max(found, sizes, key=lambda each: math.prod(each.values()))
    return found


def program_of(lowered: jax.stages.Lowered) -> tuple[bytes, list[bool], list[bool]]:
    """Return bytecode, and whether XLA chooses the layout of each argument and each result, for `compile_program`."""
    of: Any = lowered
    arguments = of._lowering.compile_args
    ordered = len(arguments["ordered_effects"])
    free = pxla.get_prop_to_input_output(arguments["in_shardings"], arguments["out_shardings"], ordered)
    return mlir.module_to_bytecode(of.compiler_ir("stablehlo")), list(free[0]), list(free[1])


def argument_nbytes(lowered: jax.stages.Lowered) -> int:
    """Return the bytes of the arguments of a lowered program in the memory of one device, without padding."""
    arguments = lowered._lowering.compile_args  # pyright: ignore[reportAttributeAccessIssue]
    total = 0
    for aval, sharding in zip(arguments["global_in_avals"], arguments["in_shardings"], strict=True):
        shape = sharding.shard_shape(aval.shape) if isinstance(sharding, jax.sharding.Sharding) else aval.shape
        is_on_device = getattr(sharding, "memory_kind", None) in (None, "device")
        total += math.prod(shape) * aval.dtype.itemsize * is_on_device
    return total


def compile_program(
    bytecode: bytes, devices: Sequence[Any], free_arguments: Sequence[bool], free_results: Sequence[bool]
) -> Any:
    """Compile a program of `program_of` for devices in the order of its mesh, which need not exist.

    If XLA cannot compile it, the text of the JaxRuntimeError begins with a code such as `RESOURCE_EXHAUSTED`.
    """
    with mlir.make_ir_context():
        module = ir.Module.parse(bytecode)
    client = devices[0].client
    assigned = np.array(devices, dtype=object).reshape(1, -1)
    options = compiler.get_compile_options(1, len(devices), assigned, backend=client)
    options.parameter_is_tupled_arguments = dispatch.should_tuple_args(len(free_arguments), devices[0].platform)
    build = options.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = list(free_arguments)
    build.allow_spmd_sharding_propagation_to_output = list(free_results)
    return compiler.backend_compile_and_load(client, module, xla_client.DeviceList(tuple(devices)), options, [])
