"""What XLA makes of a program for a target that need not be there: the third and dearest tier of a plan.

A process of its own compiles it, so that neither the settings of compilers nor their memory stay in this one.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from keras_dist._support import backend_environment
from keras_dist._support.arguments import check_axis_sizes, check_kind, check_number
from keras_dist._support.extras import import_extra
from keras_dist._unstable import shardy
from keras_dist.errors import CompilationError, CompilationTimeoutError, MeshError
from keras_dist.planner.gpu_target_config import gpu_target_config
from keras_dist.planner.propagation import Collective, Kind
from keras_dist.planner.targets import Target, as_target, places_in_mesh
from keras_dist.planner.tracing import StepProgram

_LARGEST_ANSWER = 2**28  # bytes, of some hundred thousand collectives
_MOST_SECONDS = 10**8
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"


@dataclasses.dataclass(frozen=True)
class CompiledFigures:
    """What is known of a program once it is compiled. Bytes are of one device.

    Attributes:
        target: the name of what it is compiled for.
        argument_nbytes: of its arguments, as they lie in memory: TPUs pad them to tiles.
        output_nbytes: of its results.
        alias_nbytes: of results that take the place of arguments.
        temp_nbytes: of intermediate results at their peak. On `cpu` it tells nothing of other machines.
        peak_nbytes: of all that is in memory at once: arguments, results without those in place of arguments,
            intermediate results, and the program where it is in the device's memory.
        limit_nbytes: of the memory of a device; 0 where that is the memory of its host.
        collectives: the exchanges, in program order.
        flops: of multiplications of matrices and convolutions, two for each product.
        accessed_nbytes: which it reads and writes in memory, an estimate from the compiled program.
        seconds_to_compile: the time it took, without the start of the process.
        note: why it is not compiled, where it needs more memory than there is. What is known then are the bytes of its
            arguments, without padding, and those of its peak and of the limit, as XLA says them; all else is 0.
    """

    target: str
    argument_nbytes: int
    output_nbytes: int
    alias_nbytes: int
    temp_nbytes: int
    peak_nbytes: int
    limit_nbytes: int
    collectives: tuple[Collective, ...]
    flops: int
    accessed_nbytes: int
    seconds_to_compile: float
    note: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory; None where the target's has no limit of its own."""
        return self.peak_nbytes <= self.limit_nbytes if self.limit_nbytes else None

    @property
    def short_by_nbytes(self) -> int:
        """Bytes of memory that a device lacks; 0 where it fits."""
        return max(0, self.peak_nbytes - self.limit_nbytes) if self.limit_nbytes else 0

    def nbytes_by_axes(self) -> dict[tuple[Kind, tuple[str, ...]], int]:
        """Bytes of a run by kind and axes of the mesh, as those of `Propagated`."""
        found: collections.Counter[tuple[Kind, tuple[str, ...]]] = collections.Counter()
        for collective in self.collectives:
            found[collective.kind, collective.axes] += collective.nbytes_per_step
        return dict(found)


def compile_for(
    lowered: jax.stages.Lowered,
    target: str | Target,
    *,
    mesh: Mapping[str, int] | None = None,
    devices: Sequence[str] | None = None,
    timeout_seconds: float = 600,
) -> CompiledFigures:
    """Compile a lowered program for a target, on a machine that has none of its devices.

    XLA's settings in the environment of this process do not count: they are those of its own devices.

    Args:
        lowered: a program lowered for the platform of the target, on a mesh with as many devices:
            `jax.jit(step).trace(x).lower(lowering_platforms=(target.platform,))`. The mesh may be abstract.
        target: a machine, or its name; see `target`.
        mesh: the axes of the mesh in order, with their sizes; by default those of the program's.
        devices: names of the mesh's devices in its order. By default, and if they are not those of the target, the
            devices stand as a mesh of this shape has them by default: inner axes along the wires.
        timeout_seconds: after which the compiling process is killed.

    Returns:
        The figures, also of a program that needs more memory than a device has.

    Raises:
        UnknownNameError, ConfigError: the name of the target is none.
        MeshError: the mesh is of another number of devices.
        MissingExtraError: TPUs need the extra `tpu`, GPUs `cuda`.
        CompilationTimeoutError: it took too long.
        CompilationError: XLA cannot compile it for this target.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
        >>> from keras_dist.planner import compile_for
        >>> rows = NamedSharding(AbstractMesh((4,), ("data",)), PartitionSpec("data"))
        >>> x = jax.ShapeDtypeStruct((4096, 8), jnp.float32, sharding=rows)
        >>> figures = compile_for(jax.jit(jnp.sum).trace(x).lower(lowering_platforms=("cpu",)), "cpu:4")
        >>> figures.argument_nbytes, figures.nbytes_by_axes()
        (32768, {('all_reduce', ('data',)): 4})

    Source: `jax.experimental.topologies`.
    """
    check_kind("lowered", lowered, jax.stages.Lowered, "a lowered program, as jax.jit(step).lower(*arguments) gives")
    check_number("timeout_seconds", timeout_seconds, above=0, below=_MOST_SECONDS, example=600)
    machine = as_target(target)
    sizes = dict(shardy.mesh_of(lowered)) if mesh is None else check_axis_sizes("mesh", mesh, MeshError)
    sizes = sizes or {"devices": 1}
    places = places_in_mesh(machine, tuple(sizes.values()), devices)
    bytecode, free_arguments, free_results = shardy.program_of(lowered)
    request = {
        "topology": _topology(machine),
        "mesh": sizes,
        "devices": [place.id for place in places.flat],
        "slices": [place.slice_index for place in places.flat],
        "free_arguments": free_arguments,
        "free_results": free_results,
        "timeout_seconds": timeout_seconds,
    }
    return _read(machine, _ask(machine, request, bytecode), shardy.argument_nbytes(lowered))


def figures(program: StepProgram, target: str | Target, *, timeout_seconds: float = 600) -> CompiledFigures:
    """Compile a traced train step for a target; see `compile_for`.

    Args:
        program: what `trace_step` gives for a mesh of the target's devices.
        target: a machine, or its name.
        timeout_seconds: after which the compiling process is killed.
    """
    check_kind("program", program, StepProgram, "a StepProgram, as trace_step returns it")
    mesh = program.state.mesh
    return compile_for(
        program.lowered,
        target,
        mesh=mesh.axis_sizes,
        devices=mesh.device_names,
        timeout_seconds=timeout_seconds,
    )


def _topology(target: Target) -> dict[str, Any] | None:
    """What the compiling process asks JAX for the devices with; None for fake CPU devices."""
    if target.platform == "cpu":
        return None
    if target.platform == "cuda":
        import_extra("jax_cuda12_plugin", "cuda", f"compiling for {target.name!r}")
        shape = "x".join(map(str, (target.slices, *target.shape)))
        config = gpu_target_config(target.chip)
        return {"platform": "cuda", "topology_name": target.chip.name, "topology": shape, "target_config": config}
    import_extra("libtpu", "tpu", f"compiling for {target.name!r}")
    bounds = [2 if size % 2 == 0 and dim < 2 else 1 for dim, size in enumerate((*target.shape, 1)[:3])]
    options: dict[str, Any] = {"platform": "tpu", "topology_name": target.name.partition("*")[0]}
    options["chips_per_host_bounds"] = bounds
    if target.slices > 1:
        options["num_slices"] = target.slices
    if target.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # as on Cloud TPUs: one device a chip
    return options


def _ask(target: Target, request: Mapping[str, Any], bytecode: bytes) -> dict[str, Any]:
    """Start the process that compiles, and return its answer."""
    timeout = request["timeout_seconds"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "request.json").write_text(json.dumps(request))
        (folder / "program.mlirbc").write_bytes(bytecode)
        command = [sys.executable, "-P", "-m", "keras_dist.planner._compile", name]
        try:
            done = subprocess.run(
                command,
                env=_environment_of(target),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            summary = f"compiling for {target.name!r} took too long"
            fix = "a larger `timeout_seconds`; the process was killed"
            raise CompilationTimeoutError(summary, given=f"timeout_seconds={timeout}", fix=fix) from None
        answer = folder / "answer.json"
        if not answer.exists() or answer.stat().st_size > _LARGEST_ANSWER:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise _not_compiled(target, " ".join(lines[-3:]) or f"its process ended with code {done.returncode}")
        return json.loads(answer.read_text())


def _environment_of(target: Target) -> dict[str, str]:
    """The variables of the process that compiles: those of this one, without what is meant for its devices."""
    environment = {name: value for name, value in os.environ.items() if name not in backend_environment.OF_DEVICES}
    environment |= {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "JAX_PLATFORMS": "cpu",
        "JAX_OPTIMIZATION_LEVEL": "O1",  # an eighth of the time, for the same collectives
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TPU_SKIP_MDS_QUERY": "1",  # else it waits for a metadata server that only Google's machines have
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # none takes a TPU
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if target.platform == "cpu":
        environment |= {"JAX_NUM_CPU_DEVICES": str(target.device_count), "PJRT_NPROC": "2"}  # nothing runs on them
    return environment


def _read(target: Target, answer: Mapping[str, Any], argument_nbytes: int) -> CompiledFigures:
    note = answer.get("error", "")
    limit = target.hbm_nbytes
    if note.startswith("RESOURCE_EXHAUSTED"):
        used, limit = _exhausted(note, limit)
        known = (argument_nbytes, 0, 0, 0, max(used, argument_nbytes), limit)
        return CompiledFigures(target.name, *known, (), 0, 0, answer["seconds"], note.strip().splitlines()[0])
    if note:
        raise _not_compiled(target, note)
    sizes = {name: answer[f"{name}_nbytes"] for name in ("argument", "output", "alias", "temp", "accessed")}
    peak = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    if target.platform == "tpu":
        peak += answer["generated_code_nbytes"]
    return CompiledFigures(
        target=target.name,
        argument_nbytes=sizes["argument"],
        output_nbytes=sizes["output"],
        alias_nbytes=sizes["alias"],
        temp_nbytes=sizes["temp"],
        peak_nbytes=peak,
        limit_nbytes=limit,
        collectives=tuple(
            Collective(**{**each, "axes": tuple(each["axes"]), "places": tuple(each["places"])})
            for each in answer["collectives"]
        ),
        flops=answer["flops"],
        accessed_nbytes=sizes["accessed"],
        seconds_to_compile=answer["seconds"],
    )


def _exhausted(note: str, limit: int) -> tuple[int, int]:
    """The bytes that a program would need, and those there are, as XLA's error says them."""
    found = re.search(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)|[Uu]sed {_SIZE} of {_SIZE} hbm", note)
    if found is None:
        return limit + 1, limit
    parts = [part for part in found.groups() if part is not None]
    used, of = (int(float(size) * _UNITS[unit]) for size, unit in zip(parts[::2], parts[1::2], strict=True))
    return max(used, of + 1), of


def _not_compiled(target: Target, reason: str) -> CompilationError:
    fix = f"lower it with `lowering_platforms=({target.platform!r},)`; what is known without compiling stays"
    return CompilationError(f"the program cannot be compiled for {target.name!r}", given=reason[:2000], fix=fix)
