"""Calls of MLIR and of Shardy, JAX's partitioner, that differ between versions. Nothing else imports them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import compiler, dispatch
from jax._src.interpreters import mlir, pxla
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
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


def mesh_of(lowered: jax.stages.Lowered) -> dict[str, int]:
    """The axes of the mesh that a program is lowered for, with their sizes, in the order of the mesh.

    Empty where it is lowered for one device.
    """
    module: Any = lowered.compiler_ir("stablehlo")
    found: dict[str, int] = {}
    for operation in module.operation.regions[0].blocks[0].operations:
        if operation.operation.name == "sdy.mesh":
            axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(operation.attributes["mesh"]).axes)
            sizes = {axis.name: axis.size for axis in axes}
            found = max(found, sizes, key=lambda each: math.prod(each.values()))
    return found


def program_of(lowered: jax.stages.Lowered) -> tuple[bytes, list[bool], list[bool]]:
    """Return what `compile_program` takes: bytecode, and whose layouts of arguments and of results XLA chooses."""
    of: Any = lowered
    arguments = of._lowering.compile_args
    ordered = len(arguments["ordered_effects"])
    free = pxla.get_prop_to_input_output(arguments["in_shardings"], arguments["out_shardings"], ordered)
    return (mlir.module_to_bytecode(of.compiler_ir("stablehlo")), *map(list, free))


def argument_nbytes(lowered: jax.stages.Lowered) -> int:
    """Return the bytes of the arguments of a lowered program on one device, without padding."""
    arguments = lowered._lowering.compile_args  # pyright: ignore[reportAttributeAccessIssue]
    total = 0
    for aval, sharding in zip(arguments["global_in_avals"], arguments["in_shardings"], strict=True):
        shape = sharding.shard_shape(aval.shape) if isinstance(sharding, jax.sharding.Sharding) else aval.shape
        total += math.prod(shape) * aval.dtype.itemsize
    return total


def compile_program(
    bytecode: bytes, devices: Sequence[Any], free_arguments: Sequence[bool], free_results: Sequence[bool]
) -> Any:
    """Compile a program of `program_of` for devices in the order of its mesh, which need not be there.

    Returns:
        XLA's executable.

    Raises:
        jax.errors.JaxRuntimeError: XLA cannot compile it; its text begins with a code such as `RESOURCE_EXHAUSTED`.
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
