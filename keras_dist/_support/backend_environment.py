"""Environment variables that must be set before a JAX backend starts. Imports no JAX.

XLA runs each fake CPU device on a thread of a pool, whose default size is the number of cores. A collective holds one
thread for each device until all have arrived, so that a smaller pool deadlocks, and XLA aborts the process.
`PJRT_NPROC` sets the size of the pool; it is read once, when the backend starts.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import sys

_XLA_DEVICE_COUNT = re.compile(r"""--xla_force_host_platform_device_count=["']?(\d+)["']?""")
_THREADS_PER_DEVICE = 2

OF_DEVICES = frozenset(("JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "PJRT_NPROC", "NPROC", "XLA_FLAGS"))
"""Variables that select the devices of a process, and how XLA compiles for them."""


def fake_device_count() -> int:
    """Return the number of fake CPU devices that the environment requests, or 0."""
    flags = _XLA_DEVICE_COUNT.findall(_xla_flags())
    if flags:
        return int(flags[-1])
    configured = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    return int(configured) if configured.isdigit() else 0


def _xla_flags() -> str:
    """Return the flags in `XLA_FLAGS`, or in the file that it names."""
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        try:
            return pathlib.Path(flags).read_text("utf-8")
        except OSError:
            return ""
    return flags


def forget_fake_device_count() -> None:
    """Remove the device count from `XLA_FLAGS`, so that JAX's own setting decides."""
    flags = os.environ.get("XLA_FLAGS")
    if flags is not None and _XLA_DEVICE_COUNT.search(flags):
        os.environ["XLA_FLAGS"] = _XLA_DEVICE_COUNT.sub("", flags).strip()


def size_thread_pool(device_count: int) -> None:
    """Give XLA enough threads for `device_count` fake CPU devices, unless more are set."""
    needed = _THREADS_PER_DEVICE * device_count
    current = os.environ.get("PJRT_NPROC", "")
    if device_count > 1 and not (current.isdigit() and int(current) >= needed):
        os.environ["PJRT_NPROC"] = str(needed)


def release_freed_memory() -> None:
    """Return freed memory to the operating system (glibc only).

    XLA's CPU client allocates by `malloc`, which keeps freed blocks of up to 32 MiB between live arrays.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
