"""Published figures of chips: memory, FLOPs, and bandwidths.

All bandwidths are of one chip, in one direction: half of a published sum of both directions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

Platform = Literal["cpu", "tpu", "cuda"]

_GIB = 2**30
_SCALING = "How To Scale Your Model, https://jax-ml.github.io/scaling-book/"
_SUPERCOMPUTER = "Jouppi et al., A Domain-Specific Supercomputer for Training Deep Neural Networks, CACM 63(7), 2020"
_CLOUD = "https://docs.cloud.google.com/tpu/docs/"


@dataclasses.dataclass(frozen=True)
class Chip:
    """Figures of a kind of chip.

    Attributes:
        name: name in targets, such as `v5e`.
        platform: platform that JAX lowers for.
        hbm_nbytes: bytes of memory, on GPUs without the driver's; 0 for memory of the host.
        flops_per_second: peak of matrix multiplication by element type. float32 has JAX's default precision: bfloat16
            on TPUs, TF32 on GPUs.
        hbm_bytes_per_second: bandwidth of memory.
        link_bytes_per_second: bandwidth of one link to a neighbour (ICI), or of all lanes to the switch between the
            GPUs of a host (NVLink).
        network_bytes_per_second: its share of the network cards of its host, between slices (TPUs) and hosts (GPUs).
        torus_dims: number of dims of the torus of its links; 0 for a switch.
        wraps_at: a dim of a slice is a ring if its size is a multiple of this number, else a line; 0 for no rings.
        devices: number of JAX devices per chip.
        source: sources of the figures.
    """

    name: str
    platform: Platform
    hbm_nbytes: int
    flops_per_second: Mapping[str, float]
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    network_bytes_per_second: float
    torus_dims: int = 0
    wraps_at: int = 0
    devices: int = 1
    source: str = ""


def _flops(bfloat16: float, int8: float | None = None, float32: float | None = None) -> dict[str, float]:
    return {"bfloat16": bfloat16, "float32": float32 or bfloat16, "int8": int8 or bfloat16}


_ALL = (
    Chip(
        "cpu", "cpu", 0, _flops(5e10, float32=5e10), 1e10, 1e10, 1e9,
        source="assumed: one core of a server, 16 float32 operations a turn at 3 GHz. Fake devices share their cores",
    ),
    Chip(
        "v2", "tpu", 16 * _GIB, _flops(46e12), 700e9, 62e9, 6.25e9, 2, 16, 2,
        source=f"{_SUPERCOMPUTER}: 46 TFLOP/s, 700 GB/s, links of 496 Gbit/s; network as v3",
    ),
    Chip(
        "v3", "tpu", 32 * _GIB, _flops(123e12), 900e9, 82e9, 6.25e9, 2, 32, 2,
        source=f"{_CLOUD}v3: 123 TFLOP/s, 32 GiB, 900 GB/s; {_SUPERCOMPUTER}: links of 656 Gbit/s; {_SCALING}tpus: "
        "25 GB/s of network a host",
    ),
    Chip(
        "v4", "tpu", 32 * _GIB, _flops(275e12, 275e12), 1200e9, 45e9, 6.25e9, 3, 4, 1,
        source=f"{_CLOUD}v4: 275 TFLOP/s, 32 GiB, 1200 GB/s; {_SCALING}tpus: 45 GB/s a link, 25 GB/s of network a host",
    ),
    Chip(
        "v5e", "tpu", 16 * _GIB, _flops(197e12, 393e12), 819e9, 50e9, 3.125e9, 2, 16, 1,
        source=f"{_CLOUD}v5e: 197 TFLOP/s, 393 TOP/s, 16 GB, 819 GB/s, 400 GB/s over 4 links in both directions, "
        "6.4 Tbit/s of network for 256 chips",
    ),
    Chip(
        "v5p", "tpu", 95 * _GIB, _flops(459e12, 918e12), 2765e9, 100e9, 6.25e9, 3, 4, 1,
        source=f"{_CLOUD}v5p-training: 459 TFLOP/s, 95 GiB, 2765 GB/s, 1200 GB/s over 6 links in both directions, "
        f"50 Gbit/s of network; {_SCALING}tpus: 918 TOP/s",
    ),
    Chip(
        "v6e", "tpu", 32 * _GIB, _flops(918e12, 1836e12), 1638e9, 100e9, 12.5e9, 2, 16, 1,
        source=f"{_CLOUD}v6e and {_CLOUD}tpu7x: 918 TFLOP/s, 1836 TOP/s, 32 GB, 1638 GB/s, 800 GB/s over 4 links in "
        "both directions, 100 Gbit/s of network",
    ),
    Chip(
        "tpu7x", "tpu", 192 * _GIB, _flops(2307e12), 7380e9, 100e9, 12.5e9, 3, 4, 2,
        source=f"{_CLOUD}tpu7x: 2307 TFLOP/s (4614 of 8-bit floats), 192 GiB, 7380 GB/s, 1200 GB/s over 6 links in "
        "both directions, 100 Gbit/s of network",
    ),
    Chip(
        "a100", "cuda", 79 * _GIB, _flops(312e12, 624e12, 156e12), 2039e9, 300e9, 25e9,
        source="NVIDIA A100 Tensor Core GPU data sheet (SXM, 80 GB): 312 TFLOP/s, TF32 156, 624 TOP/s, 2039 GB/s, "
        "NVLink 600 GB/s in both directions; DGX A100 data sheet: 8 cards of 200 Gbit/s",
    ),
    Chip(
        "h100", "cuda", 79 * _GIB, _flops(989e12, 1979e12, 494e12), 3350e9, 450e9, 50e9,
        source="NVIDIA H100 Tensor Core GPU data sheet (SXM): 989 TFLOP/s, TF32 494, 1979 TOP/s (half of what it says "
        f"for sparse ones), 3.35 TB/s, NVLink 900 GB/s in both directions; {_SCALING}gpus: 8 cards of 400 Gbit/s",
    ),
    Chip(
        "h200", "cuda", 141 * _GIB, _flops(989e12, 1979e12, 494e12), 4800e9, 450e9, 50e9,
        source="NVIDIA H200 Tensor Core GPU data sheet (SXM): as H100, 141 GB, 4.8 TB/s",
    ),
    Chip(
        "b200", "cuda", 178 * _GIB, _flops(2250e12, 4500e12, 1125e12), 8000e9, 900e9, 50e9,
        source="NVIDIA DGX B200 data sheet: 1440 GB and 64 TB/s for 8 GPUs, NVLink 1.8 TB/s in both directions; "
        f"{_SCALING}gpus: 2.25 PFLOP/s, 4.5 POP/s, 400 GB/s of network a host",
    ),
)  # fmt: skip  # a chip's figures in one line

CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _ALL}
"""All chips by name."""
