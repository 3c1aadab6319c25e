"""A program that propagates layouts through a module and notes their origins: `python -P sharding_origins.py`.

It reads the module from standard input and writes it to standard output, as MLIR's bytecode. It runs in a separate
process because the pass that notes origins crashes on some programs, such as attention with seven heads over sixteen
devices. It imports neither JAX nor this package.

Seen with jaxlib 0.10.2 and 0.12.0. Upstream: not reported.
"""

from __future__ import annotations

import io
import sys

PASSES = (
    "sdy-flatten-call-graph,sdy-add-func-data-flow-edges,sdy-import-pipeline,"
    "sdy-user-priority-propagate{debug-sharding-origins=true}"
)


def propagated(written: bytes) -> bytes:
    """Run `PASSES` on a module of MLIR's bytecode."""
    from jaxlib.mlir import ir, passmanager  # noqa: PLC0415
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # noqa: PLC0415
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo  # noqa: PLC0415

    upstream = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(upstream)
    with ir.Context() as context:
        context.append_dialect_registry(upstream)
        for dialect in (sdy, stablehlo, chlo):
            dialect.register_dialect(context)
        mhlo.register_mhlo_dialect(context)
        context.load_all_available_dialects()
        module = ir.Module.parse(written).operation
        passmanager.PassManager.parse(f"builtin.module({PASSES})").run(module)
        result = io.BytesIO()
        module.write_bytecode(result)
    return result.getvalue()


if __name__ == "__main__":
    sys.stdout.buffer.write(propagated(sys.stdin.buffer.read()))
