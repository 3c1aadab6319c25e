"""Calls of MLIR and of Shardy, JAX's partitioner, that differ between versions. Nothing else imports them."""

from __future__ import annotations

from typing import Any

import jax
from jax._src.lib.mlir import passmanager  # pyright: ignore[reportPrivateImportUsage]
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
