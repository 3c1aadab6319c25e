"""What XLA must know of a GPU to compile for it where there is none."""

from __future__ import annotations

import dataclasses

from keras_dist.planner.hardware import Chip


@dataclasses.dataclass(frozen=True)
class _Gpu:
    """A GPU by what its architecture says.

    Attributes:
        capability: CUDA's compute capability.
        cores: streaming multiprocessors.
        units: of float32 in each.
        shared_kib: shared memory of each.
        l2_mib: the cache of all.
        clock_ghz: when it runs at its fastest.
        links: of NVLink.
    """

    capability: int
    cores: int
    units: int
    shared_kib: int
    l2_mib: float
    clock_ghz: float
    links: int


_GPUS = {
    "a100": _Gpu(8, 108, 64, 164, 40, 1.41, 12),
    "h100": _Gpu(9, 132, 128, 228, 50, 1.98, 18),
    "h200": _Gpu(9, 132, 128, 228, 50, 1.98, 18),
    "b200": _Gpu(10, 148, 128, 228, 126, 1.965, 18),
}


def gpu_target_config(chip: Chip) -> str:
    """Return XLA's `GpuTargetConfigProto` of a GPU, as text.

    Args:
        chip: it.

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
