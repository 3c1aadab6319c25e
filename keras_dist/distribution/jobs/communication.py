"""`CommunicationOptions`: collective communication between processes."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

import jax

from keras_dist._support.arguments import check_kind
from keras_dist._unstable import jax_runtime
from keras_dist.errors import ClusterError, one_of, shorten

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

_IMPLEMENTATIONS = ("auto", "gloo", "mpi", "nccl")
_MPI_VARIABLE = "MPITRAMPOLINE_LIB"
_WAYS_OUT_OF_TENSORFLOW = {
    "AUTO": 'CommunicationOptions("auto"), or none',
    "RING": 'CommunicationOptions("gloo"), or none: between CPU devices, Gloo sums in rings',
    "NCCL": 'CommunicationOptions("nccl") on GPUs, or none: NCCL is what JAX uses between them',
}


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Collective communication between processes, for `initialize(communication_options=...)`.

    Args:
        implementation: `"auto"` for JAX's choice: NCCL between GPUs; between CPU devices Gloo, or the value of
            `JAX_CPU_COLLECTIVES_IMPLEMENTATION`. `"gloo"` and `"mpi"` apply to CPU devices only; MPItrampoline finds
            the MPI library through `MPITRAMPOLINE_LIB`. `"nccl"` checks that JAX runs on GPUs.

    Raises:
        ClusterError: the implementation has another value.

    Example:
        >>> import keras_dist as kd
        >>> kd.distribution.CommunicationOptions("gloo")
        CommunicationOptions(implementation='gloo')

    Differs from TensorFlow: passed to `initialize`, since JAX chooses when it starts; `RING` is `"gloo"`;
    `bytes_per_pack` and `timeout_seconds` are not available, since XLA decides what is sent together.

    Source: `tf.distribute.experimental.CommunicationOptions`, `jax_cpu_collectives_implementation`.
    """

    implementation: Literal["auto", "gloo", "mpi", "nccl"] = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.implementation, str) or self.implementation not in _IMPLEMENTATIONS:  # pyright: ignore[reportUnnecessaryIsInstance]
            summary = f"CommunicationOptions: `implementation` must be {one_of(_IMPLEMENTATIONS)}"
            name = str(getattr(self.implementation, "value", self.implementation)).upper()  # TensorFlow has an enum
            fix = _WAYS_OUT_OF_TENSORFLOW.get(name, 'CommunicationOptions("auto")')
            raise ClusterError(summary, given=f"implementation={shorten(self.implementation)}", fix=fix)


def apply_communication_options(options: Any) -> None:
    """Set JAX's options before its backend starts; raise a `ClusterError` before any is changed."""
    fix = 'communication_options=kd.distribution.CommunicationOptions("gloo")'
    check_kind(
        "communication_options", options, CommunicationOptions, "a CommunicationOptions", fix=fix, error=ClusterError
    )
    if options.implementation == "nccl":
        _check_gpus()
    elif options.implementation != "auto":
        if options.implementation == "mpi":
            _check_mpi()
        jax.config.update("jax_cpu_collectives_implementation", options.implementation)


def _check_gpus() -> None:
    if not jax_runtime.looks_for_gpus():
        summary = "CommunicationOptions: NCCL connects GPUs, and JAX will not run on any"
        fix = 'pip install "jax[cuda12]" on machines with GPUs, or CommunicationOptions("gloo") for CPU devices'
        raise ClusterError(summary, given='implementation="nccl"', fix=fix)


def _check_mpi() -> None:
    # without the library, a call of MPI ends the process
    library = os.environ.get(_MPI_VARIABLE, "")
    if not os.path.isfile(library):
        summary = "CommunicationOptions: JAX finds no library of MPI, wrapped by MPIwrapper"
        fix = f'build MPIwrapper and set {_MPI_VARIABLE} to its file, or CommunicationOptions("gloo")'
        raise ClusterError(summary, given=f'implementation="mpi", {_MPI_VARIABLE}={library!r}', fix=fix)
