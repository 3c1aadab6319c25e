"""`Place`: among which nodes a launcher runs, from its arguments or from what Slurm, Open MPI or Kubernetes say."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from keras_dist.errors import ClusterError

_SLURM, _OPEN_MPI, _KUBERNETES = "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE", "JOB_COMPLETION_INDEX"
_PORTS = 2**12  # Slurm's jobs take their ports from the last so many, as in JAX
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a launcher stands among those of its job, of which each node has one.

    Attributes:
        nodes: how many there are.
        rank: the index of this one.
        coordinator: `"host:port"` of the coordinator, on the first node; None for a free port of this machine.
    """

    nodes: int = 1
    rank: int = 0
    coordinator: str | None = None

    @classmethod
    def resolve(
        cls,
        nodes: int | None = None,
        rank: int | None = None,
        coordinator: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Place:
        """Take what is None from the scheduler's variables.

        Raises:
            ClusterError: the values contradict each other, or one is missing.
        """
        found = _detected(environ) if nodes is None else None
        options = {"--node-rank": rank, "--coordinator": coordinator}
        given = [f"{name} {value}" for name, value in options.items() if value is not None]
        if nodes is None and found is None and given:
            fix = "--nodes with the number of nodes, each of which runs this command; --nodes 1 for one"
            raise ClusterError("launch: how many nodes are there?", given=f"{' '.join(given)}, no --nodes", fix=fix)
        if nodes is None:
            nodes = 1 if found is None else found[0]
        if nodes == 1 and rank in (None, 0):
            return cls(coordinator=coordinator)
        if rank is None:
            rank = _rank(environ) if found is None else found[1]
        if coordinator is None and _SLURM in environ:
            coordinator = _slurm_coordinator(environ)
        if rank is None or not 0 <= rank < nodes:
            raise ClusterError(
                "launch: which node is this?",
                given=f"--nodes {nodes}, {'no --node-rank' if rank is None else f'--node-rank {rank}'}",
                fix=f"number the nodes, 0 <= --node-rank < {nodes}; under srun, Open MPI and in indexed jobs they are",
            )
        if coordinator is None:
            summary = f"launch: node {rank} of {nodes} does not know the coordinator"
            fix = "--coordinator host:port, a free port of the first node, on every node; under srun it is found"
            raise ClusterError(summary, given="no --coordinator", fix=fix)
        return cls(nodes, rank, coordinator)


def _rank(environ: Mapping[str, str]) -> int | None:
    """The rank of this node, where its number of nodes was given."""
    names = ("SLURM_NODEID",) if _SLURM in environ else ("OMPI_COMM_WORLD_RANK", _KUBERNETES)
    return next((_integer(environ, name) for name in names if name in environ), None)


def _detected(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """The number of nodes and the rank of this one; None where no scheduler has started this launcher.

    Raises:
        ClusterError: several launchers on a node, or a number that a scheduler does not say.
    """
    if _SLURM in environ:
        nodes = _integer(environ, "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES")
        tasks = _integer(environ, "SLURM_STEP_NUM_TASKS") if "SLURM_STEP_NUM_TASKS" in environ else nodes
        if tasks != nodes:
            summary = "launch: a node must have one launcher, which starts its processes"
            given = f"{tasks} tasks on {nodes} nodes"
            raise ClusterError(summary, given=given, fix="srun --ntasks-per-node=1 keras-dist launch --processes ...")
        return nodes, _integer(environ, "SLURM_NODEID")
    if _OPEN_MPI in environ:
        return _integer(environ, _OPEN_MPI), _integer(environ, "OMPI_COMM_WORLD_RANK")
    if _KUBERNETES in environ:
        given = f"{_KUBERNETES}={environ[_KUBERNETES]}, no --nodes"
        fix = "--nodes with the number of pods (completions) of the indexed job; --nodes 1 for a job in each pod"
        raise ClusterError("launch: how many nodes are there?", given=given, fix=fix)
    return None


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isdecimal() and text.isascii()):
        fix = "give --nodes, --node-rank and --coordinator"
        raise ClusterError(f"launch: environment variable {name} must be a number", given=f"{name}={text!r}", fix=fix)
    return int(text)


def _slurm_coordinator(environ: Mapping[str, str]) -> str | None:
    """The first of the nodes, and a port that follows from the number of the job."""
    first = _FIRST_HOST.match(environ[_SLURM])
    if first is None:
        return None
    port = _integer(environ, "SLURM_JOB_ID") % _PORTS + 2**16 - _PORTS
    return f"{''.join(part or '' for part in first.groups())}:{port}"
