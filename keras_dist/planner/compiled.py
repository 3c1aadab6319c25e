"""`compile_for`: figures of the program that XLA compiles for a target, whose devices need not exist.

A separate process compiles it, at the optimization level of this process, as training would: lower levels are faster,
but their programs need other memory.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax

from keras_dist._support.arguments import check_axis_sizes, check_kind, check_number
from keras_dist._support.extras import import_extra
from keras_dist._unstable import shardy
from keras_dist.errors import MeshError, MissingExtraError
from keras_dist.planner.backends import Kind
from keras_dist.planner.compilers import Compilers, not_compiled
from keras_dist.planner.propagated import Collective, nbytes_by_axes
from keras_dist.planner.targets import Chip, Target, as_target, places_in_mesh
from keras_dist.planner.tracing import StepProgram

_MOST_SECONDS = 10**8
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"


@dataclasses.dataclass(frozen=True)
class CompiledFigures:
    """Figures of a compiled program, per device.

    Attributes:
        target: name of the target.
        argument_nbytes: bytes of the arguments in memory; on TPUs padded to tiles.
        output_nbytes: bytes of the results.
        alias_nbytes: bytes of results that reuse the memory of arguments.
        temp_nbytes: peak bytes of intermediate results. On `cpu` it is not comparable to other machines.
        peak_nbytes: peak bytes of memory: arguments, results, intermediate results, and on TPUs the program. XLA for
            TPUs counts arrays of loops twice in its sum of intermediate results; its figure for the peak does not.
        limit_nbytes: bytes of memory of a device; 0 for memory of the host.
        collectives: the collectives, in program order.
        flops: FLOPs of matrix multiplications and convolutions, two for each product.
        accessed_nbytes: bytes read and written in memory, an estimate.
        seconds_to_compile: compile time, without the start of the process [s]. Minutes for large TPU programs.
        note: XLA's message for a program that exceeds the memory, else empty. `argument_nbytes` is without padding
            then, `peak_nbytes` and `limit_nbytes` are from the message, and other figures are 0.
        kernels: calls in a run by the name of the kernel: of Pallas on TPUs, and of attention by cuDNN. Their FLOPs are
            not in `flops`.
        host_nbytes: bytes in the memory of the host, of each device; not part of the others.
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
    kernels: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    host_nbytes: int = 0

    @property
    def fits(self) -> bool | None:
        """Whether the program fits into the memory of a device; None for memory of the host."""
        return self.peak_nbytes <= self.limit_nbytes if self.limit_nbytes else None

    @property
    def short_by_nbytes(self) -> int:
        """Missing bytes of memory; 0 if the program fits."""
        return max(0, self.peak_nbytes - self.limit_nbytes) if self.limit_nbytes else 0

    def nbytes_by_axes(self) -> dict[tuple[Kind, tuple[str, ...]], int]:
        """Return the bytes of a run by kind and axes of the mesh."""
        return nbytes_by_axes(self.collectives)


def compile_for(
    lowered: jax.stages.Lowered,
    target: str | Target,
    *,
    mesh: Mapping[str, int] | None = None,
    devices: Sequence[str] | None = None,
    timeout_seconds: float = 600,
) -> CompiledFigures:
    """Compile a lowered program for a target, on a machine without its devices.

    The program is compiled at the optimization level that `fit` would use in this process: by default XLA's default.
    `XLA_FLAGS` and other settings in the environment are ignored: they are for the devices of this machine.

    Args:
        lowered: a program lowered for the platform of the target, on a mesh with as many devices:
            `jax.jit(step).trace(x).lower(lowering_platforms=(target.platform,))`. The mesh may be abstract.
        target: a machine, or its name; see `target`.
        mesh: sizes of the axes of the mesh, in order. By default the mesh of the program.
        devices: names of the devices, in the order of the mesh. By default, and for devices of another machine, the
            default order of the target for a mesh of this shape: inner axes along links.
        timeout_seconds: time limit for the compiling process [s].

    Returns:
        The figures, also of a program that exceeds the memory of a device.

    Raises:
        UnknownNameError, ConfigError: `target` is not the name of a machine.
        MeshError: the mesh and the target have different numbers of devices.
        MissingExtraError: TPUs need the extra `tpu`, GPUs `cuda`.
        CompilationTimeoutError: the compilation exceeds the time limit.
        CompilationError: XLA cannot compile the program for this target.

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
    with Compilers(machine, 1) as compilers:
        return start(compilers, lowered, mesh, devices, timeout_seconds)()


def start(
    compilers: Compilers,
    lowered: jax.stages.Lowered,
    mesh: Mapping[str, int] | None,
    devices: Sequence[str] | None,
    timeout_seconds: float,
) -> Callable[[], CompiledFigures]:
    """Start to compile a program, as `compile_for`; the result waits for its figures, or raises."""
    target, sizes = compilers.target, dict(shardy.mesh_of(lowered))
    sizes = (sizes if mesh is None else check_axis_sizes("mesh", mesh, MeshError)) or {"devices": 1}
    places = places_in_mesh(target, tuple(sizes.values()), devices)
    bytecode, free_arguments, free_results = shardy.program_of(lowered)
    try:
        topology = _topology(target)
    except MissingExtraError as error:
        return functools.partial(_raise, error)
    request = {
        "topology": topology,
        "mesh": sizes,
        "devices": [place.id for place in places.flat],
        "slices": [place.slice_index for place in places.flat],
        "free_arguments": free_arguments,
        "free_results": free_results,
    }
    answer, nbytes = compilers.submit(request, bytecode, timeout_seconds), shardy.argument_nbytes(lowered)
    return lambda: _read(target, answer.result(), nbytes)


def _raise(error: Exception) -> NoReturn:
    raise error


def figures(program: StepProgram, target: str | Target, *, timeout_seconds: float = 600) -> CompiledFigures:
    """Compile a traced train step for a target; see `compile_for`.

    Args:
        program: a step that `trace_step` traced on a mesh with as many devices.
        target: a machine, or its name.
        timeout_seconds: time limit for the compiling process [s].
    """
    check_kind("program", program, StepProgram, "a StepProgram, as trace_step returns it")
    mesh, lowered = program.state.mesh, program.lowered
    options = {"mesh": mesh.axis_sizes, "devices": mesh.device_names}
    return compile_for(lowered, target, timeout_seconds=timeout_seconds, **options)


def _topology(target: Target) -> dict[str, Any] | None:
    """Return the arguments of `get_topology_desc`; None for CPU devices."""
    if target.platform == "cpu":
        return None
    if target.platform == "cuda":
        try:
            import_extra("jax_cuda13_plugin", "cuda", f"compiling for {target.name!r}")
        except MissingExtraError:
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


def _read(target: Target, answer: Mapping[str, Any], argument_nbytes: int) -> CompiledFigures:
    note = answer.get("error", "")
    limit = target.hbm_nbytes
    if note.startswith("RESOURCE_EXHAUSTED"):
        used, limit = _exhausted(note, limit)
        known = (argument_nbytes, 0, 0, 0, max(used, argument_nbytes), limit)
        return CompiledFigures(target.name, *known, (), 0, 0, answer["seconds"], note.strip().splitlines()[0])
    if note:
        raise not_compiled(target, note)
    argument, output, alias, temp = (answer[f"{name}_nbytes"] for name in ("argument", "output", "alias", "temp"))
    interface, code = argument + output - alias, 0
    if target.platform == "tpu":
        code = answer["generated_code_nbytes"]
        # jax 0.10, libtpu 0.0.42: 24.5 GB of `temp` compiled for 15.75 GiB, with a `peak` of 13.4 GB
        temp = min(temp, max(0, answer["peak_nbytes"] - interface)) if answer["peak_nbytes"] else temp
    sizes = (argument, output, alias, temp, interface + temp + code, limit)
    collectives = tuple(
        Collective(**{**each, "axes": tuple(each["axes"]), "places": tuple(each["places"])})
        for each in answer["collectives"]
    )
    run = answer["flops"], answer["accessed_nbytes"], answer["seconds"]
    return CompiledFigures(
        target.name, *sizes, collectives, *run, kernels=answer["kernels"], host_nbytes=answer["host_nbytes"]
    )


def _exhausted(note: str, limit: int) -> tuple[int, int]:
    """Return the required and the available bytes in XLA's error."""
    found = re.search(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)|[Uu]sed {_SIZE} of {_SIZE} hbm", note)
    if found is None:
        return limit + 1, limit
    parts = [part for part in found.groups() if part is not None]
    used, of = (int(float(size) * _UNITS[unit]) for size, unit in zip(parts[::2], parts[1::2], strict=True))
    return max(used, of + 1), of


class _Gpu(NamedTuple):
    """Figures of a GPU's architecture."""

    capability: int  # CUDA's compute capability
    cores: int  # streaming multiprocessors
    units: int  # float32 units per core
    shared_kib: int  # shared memory per core
    l2_mib: float
    clock_ghz: float
    links: int  # NVLink


_GPUS = {
    "a100": _Gpu(8, 108, 64, 164, 40, 1.41, 12),
    "h100": _Gpu(9, 132, 128, 228, 50, 1.98, 18),
    "h200": _Gpu(9, 132, 128, 228, 50, 1.98, 18),
    "b200": _Gpu(10, 148, 128, 228, 126, 1.965, 18),
}


def gpu_target_config(chip: Chip) -> str:
    """Return XLA's `GpuTargetConfigProto` of a GPU, as text.

    Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities: technical specifications; white papers of the
        A100, H100 and Blackwell architectures.
    """
    gpu = _GPUS[chip.name]
    extension = "ACCELERATED_FEATURES" if gpu.capability >= 9 else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {(gpu.shared_kib - 1) * 1024}
  shared_memory_per_core: {gpu.shared_kib * 1024}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.units}
  l2_cache_size: {int(gpu.l2_mib * 2**20)}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {chip.hbm_nbytes}
  memory_bandwidth: {int(chip.hbm_bytes_per_second)}
  cuda_compute_capability {{ major: {gpu.capability} feature_extension: {extension} }}
  device_interconnect_info {{ active_links: {gpu.links} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "NVIDIA {chip.name.upper()}"
"""
