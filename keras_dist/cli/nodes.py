"""`NodePosition`: the nodes of a launcher's job, from arguments or from Slurm, Open MPI or Kubernetes."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from keras_dist.errors import ClusterError
from keras_dist.jobs.addresses import check_address

_SLURM, _OPEN_MPI, _KUBERNETES = "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE", "JOB_COMPLETION_INDEX"
_PORTS = 2**12  # ports of Slurm's jobs are the last so many, two for each: the next one is for `--min-nodes`
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?")


@dataclasses.dataclass(frozen=True)
class NodePosition:
    """Position of this node among the nodes of the job; each node has one launcher."""

    nodes: int = 1
    rank: int = 0
    coordinator: str | None = None  # "host:port" on the first node; None for a free port of this machine

    @classmethod
    def resolve(
        cls,
        nodes: int | None = None,
        rank: int | None = None,
        coordinator: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> NodePosition:
        """Return the position, with values of None taken from the scheduler."""
        if coordinator is not None:
            check_address("--coordinator", coordinator)
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
            given = f"--nodes {nodes}, {'no --node-rank' if rank is None else f'--node-rank {rank}'}"
            fix = f"give each node its --node-rank, 0 to {nodes - 1}; srun, Open MPI and indexed jobs do so"
            raise ClusterError("launch: which node is this?", given=given, fix=fix)
        if coordinator is None:
            summary = f"launch: node {rank} of {nodes} has no address of the coordinator"
            fix = "--coordinator host:port, a free port of the first node, on every node; srun provides it"
            raise ClusterError(summary, given="no --coordinator", fix=fix)
        return cls(nodes, rank, coordinator)


def _rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this node in the scheduler's variables, for a given number of nodes."""
    names = ("SLURM_NODEID",) if _SLURM in environ else ("OMPI_COMM_WORLD_RANK", _KUBERNETES)
    return next((_integer(environ, name) for name in names if name in environ), None)


def _detected(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the number of nodes and the rank of this node; None without a scheduler."""
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
    """Return the first node, with a port derived from the id of the job."""
    first = _FIRST_HOST.match(environ[_SLURM])
    if first is None:
        return None
    port = 2 * _integer(environ, "SLURM_JOB_ID") % _PORTS + 2**16 - _PORTS
    return f"{''.join(part or '' for part in first.groups())}:{port}"
