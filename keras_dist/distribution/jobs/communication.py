"""`CommunicationOptions`: how the devices of several processes exchange data."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

import jax

from keras_dist._support.arguments import check_kind
from keras_dist._unstable import jax_runtime
from keras_dist.errors import ClusterError, one_of, shorten

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# JAX's own types are unknown in part

_IMPLEMENTATIONS = ("auto", "gloo", "mpi", "nccl")
_MPI_VARIABLE = "MPITRAMPOLINE_LIB"
_WAYS_OUT_OF_TENSORFLOW = {
    "AUTO": 'CommunicationOptions("auto"), or none',
    "RING": 'CommunicationOptions("gloo"), or none: between CPU devices, Gloo sums in rings',
    "NCCL": 'CommunicationOptions("nccl") on GPUs, or none: NCCL is what JAX uses between them',
}


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """How the devices of several processes exchange data, for `initialize(communication_options=...)`.

    Args:
        implementation: `"auto"` for what JAX has chosen: NCCL between GPUs, and between CPU devices Gloo, or what
            `JAX_CPU_COLLECTIVES_IMPLEMENTATION` says. `"gloo"` and `"mpi"` are for CPU devices alone, and change
            nothing between devices of other kinds; MPI is the library that MPItrampoline finds through
            `MPITRAMPOLINE_LIB`. `"nccl"` makes sure that JAX runs on GPUs.

    Raises:
        ClusterError: the implementation is none of these.

    Example:
        >>> import keras_dist as kd
        >>> kd.distribution.CommunicationOptions("gloo")
        CommunicationOptions(implementation='gloo')

    Differs from TensorFlow: it is told to `initialize`, since JAX chooses when it starts; `RING` is `"gloo"`; neither
    `bytes_per_pack`, since XLA decides what is sent together, nor `timeout_seconds`.

    Source: `tf.distribute.experimental.CommunicationOptions`, `jax_cpu_collectives_implementation`.
    """

    implementation: Literal["auto", "gloo", "mpi", "nccl"] = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.implementation, str) or self.implementation not in _IMPLEMENTATIONS:  # pyright: ignore[reportUnnecessaryIsInstance]
            summary = f"CommunicationOptions: `implementation` must be {one_of(_IMPLEMENTATIONS)}"
            fix = _WAYS_OUT_OF_TENSORFLOW.get(_name(self.implementation), 'CommunicationOptions("auto")')
            raise ClusterError(summary, given=f"implementation={shorten(self.implementation)}", fix=fix)


def _name(implementation: Any) -> str:
    """The name of an implementation as TensorFlow has it: `CommunicationImplementation.RING`, or a string."""
    return str(getattr(implementation, "value", implementation)).upper()


def apply_communication_options(options: Any) -> None:
    """Make JAX's settings, before its backend starts.

    Raises:
        ClusterError: these are no options, or what they ask for is not on this machine. No setting is changed then.
    """
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
    """Check for the library of MPI, without which its calls end the process."""
    library = os.environ.get(_MPI_VARIABLE, "")
    if not os.path.isfile(library):
        summary = "CommunicationOptions: JAX finds no library of MPI, wrapped by MPIwrapper"
        fix = f'build MPIwrapper and set {_MPI_VARIABLE} to its file, or CommunicationOptions("gloo")'
        raise ClusterError(summary, given=f'implementation="mpi", {_MPI_VARIABLE}={library!r}', fix=fix)
