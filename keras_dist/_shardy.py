"""Calls of MLIR and of Shardy, JAX's partitioner, that differ between versions. Nothing else imports them."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from typing import Any

import jax
from jax._src.lib.mlir import (
    ir,  # pyright: ignore[reportPrivateImportUsage]
    passmanager,  # pyright: ignore[reportPrivateImportUsage]
)
from jax._src.lib.mlir.dialects import sdy as sdy  # whose attributes the passes give

from keras_dist import _sharding_origins

_TIMEOUT_S = 120


def copy_of(lowered: jax.stages.Lowered) -> Any:
    """Return the operation of a copy of a lowered program's module. Its values must not outlive it."""
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        return module.operation.clone()


def run_passes(module: Any, passes: str) -> None:
    """Run passes of MLIR, such as Shardy's, on a module, in place.

    Args:
        module: its operation.
        passes: their names and options, with commas between them.
    """
    with module.context:
        passmanager.PassManager.parse(f"builtin.module({passes})").run(module)


def with_origins(lowered: jax.stages.Lowered) -> Any:
    """Propagate layouts through a copy of a lowered program, and note at each value where they come from.

    The pass ends its process on some programs, so it runs in one of its own; where that ends, origins are missing.

    Returns:
        The operation of the copied module. Its values must not outlive it.
    """
    module: Any = lowered.compiler_ir("stablehlo")
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    program = [sys.executable, "-P", _sharding_origins.__file__]
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        found = subprocess.run(program, input=written.getvalue(), capture_output=True, check=True, timeout=_TIMEOUT_S)
        with module.context:
            return ir.Module.parse(found.stdout).operation
    copy = copy_of(lowered)
    run_passes(copy, _sharding_origins.PASSES.partition("{")[0])
    return copy


def rename(operation: Any, name: str) -> None:
    """Exchange the name in the location of an operation, which passes hand on to what they make of it."""
    with operation.context:
        operation.location = ir.Location.name(name)
