"""The process that compiles a program for a target: `python -m keras_dist.planner._compile FOLDER`.

It reads `request.json` and `program.mlirbc` in the folder, and writes `answer.json`. Nothing runs on a device.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import threading
import time
from typing import Any

import jax
from jax.experimental import topologies

from keras_dist._unstable import shardy
from keras_dist.planner.hlo import parse_program


def main(folder: pathlib.Path) -> None:
    """Compile the program in a folder."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    request = json.loads((folder / "request.json").read_text("utf-8"))
    began = time.perf_counter()
    try:
        compiled = _compiled(request, (folder / "program.mlirbc").read_bytes())
    except (jax.errors.JaxRuntimeError, RuntimeError, NotImplementedError, ValueError) as error:
        answer: dict[str, Any] = {"error": str(error)}
    else:
        answer = _figures(compiled, request["mesh"], request["slices"])
    (folder / "answer.json").write_text(json.dumps({**answer, "seconds": time.perf_counter() - began}), "utf-8")


def _exit_with_parent() -> None:
    """Exit where standard input ends, of which the parent holds the other end, also while a program is compiled."""
    os.read(0, 1)
    os._exit(1)


def _compiled(request: dict[str, Any], bytecode: bytes) -> Any:
    if request["topology"] is None:
        found = jax.devices()
    else:
        found = topologies.get_topology_desc(**request["topology"]).devices
    known = {device.id: device for device in found}
    devices = [known[identity] for identity in request["devices"]]
    return shardy.compile_program(bytecode, devices, request["free_arguments"], request["free_results"])


def _figures(compiled: Any, mesh: dict[str, int], slices: list[int]) -> dict[str, Any]:
    memory = compiled.get_compiled_memory_stats()
    program = parse_program(compiled.hlo_modules()[0].to_string())
    sizes = {
        f"{name}_nbytes": getattr(memory, f"{name}_size_in_bytes")
        for name in ("argument", "output", "alias", "temp", "generated_code")
    }
    host = {name: getattr(memory, f"host_{name}_size_in_bytes") for name in ("argument", "output", "alias", "temp")}
    sizes["host_nbytes"] = host["argument"] + host["output"] - host["alias"] + host["temp"]
    peak = getattr(memory, "peak_memory_in_bytes", 0)  # since jax 0.9
    sizes["peak_nbytes"] = max(0, peak - sizes["host_nbytes"])  # XLA counts memory of the host, too
    collectives = [vars(each) for each in program.collectives(mesh, slices)]
    run = {"flops": program.flops(), "accessed_nbytes": program.nbytes_accessed(), "kernels": program.kernels()}
    return {**sizes, "collectives": collectives, **run}


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
