"""`OpenMpi`: `mpirun` on two hosts that are this machine; what starts its daemon on another host starts it here."""

import os
import pathlib

import psutil

from tests.clusters.engine import DEPLOY, TRAIN, Engine, Trial, free_ports, require

HOSTS = ("localhost", "other")
_AGENT = """#!/bin/sh
shift # the name of the host
exec sh -c "$*"
"""


class OpenMpi(Engine):
    """`mpirun` with all of its files in one folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        require("openmpi-bin", "mpirun")
        agent = folder / "agent"
        agent.write_text(_AGENT)
        agent.chmod(0o755)
        variables = {"plm_rsh_agent": agent, "oob_tcp_if_include": "lo", "btl_tcp_if_include": "lo"}
        settings = {f"OMPI_MCA_{name}": str(value) for name, value in variables.items()}
        if os.getuid() == 0:
            settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        hosts = folder / "hosts"
        hosts.write_text("".join(f"{host}\n" for host in HOSTS))
        super().__init__(folder, HOSTS=str(hosts), PORT=str(free_ports(1)[0]), **settings)

    def train(self, folder: pathlib.Path, *options: str) -> "MpiJob":
        """Start `deploy/mpi/train.sh` in a folder."""
        job = MpiJob(folder, self)
        script = [str(DEPLOY / "mpi" / "train.sh"), str(TRAIN), str(folder)]
        self.start(*script, *options, cwd=folder, output=job.output)
        return job


class MpiJob(Trial):
    """A job that `mpirun` has started."""

    def __init__(self, folder: pathlib.Path, engine: OpenMpi) -> None:
        super().__init__(folder)
        self.engine = engine

    def process(self, name: str) -> psutil.Process:
        """The process of this job that runs a program: `train.sh` or `mpirun`."""
        below = (each for each in self.engine.processes() if str(self.folder) in each.cmdline())
        return next(each for each in below if any(name == pathlib.Path(word).name for word in each.cmdline()[:2]))
