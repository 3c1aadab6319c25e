"""`Slurm`: a cluster of two nodes on this machine, whose names are addresses of it: nothing has to resolve them."""

import getpass
import os
import pathlib
import re
import socket
import subprocess

import psutil

from tests.clusters.engine import DEPLOY, TRAIN, Engine, Trial, free_ports, require, wait_until

NODES = ("127.0.0.1", "127.0.0.2")
_CONFIG = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
MpiDefault=none
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
ReturnToService=2
FirstJobId={first_job}
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmdTimeout=10
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=128
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=128
PartitionName=all Nodes=ALL Default=YES
"""
# cred_expire: a requeued job waits so long [s] before it starts again; 120 by default.


class Slurm(Engine):
    """munged, slurmctld and two slurmd, which track the processes of a job as `proctrack` does."""

    daemons = frozenset({"munged", "slurmctld", "slurmd", "slurmscriptd"})

    def __init__(self, folder: pathlib.Path, proctrack: str) -> None:
        require("slurm-wlm munge", "munged", "slurmctld", "slurmd", "srun", "sbatch")
        super().__init__(folder, SLURM_CONF=str(folder / "slurm.conf"))
        (folder / "state").mkdir()
        for node in NODES:
            (folder / f"spool-{node}").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        names = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "nodes": NODES}
        numbers = {"ports": free_ports(3), "first_job": _first_job(proctrack)}
        (folder / "slurm.conf").write_text(_CONFIG.format(folder=folder, proctrack=proctrack, **names, **numbers))
        files = ["key", "socket", "pid", "log", "seed"]
        options = [f"--{name}{'-file' * (name != 'socket')}={folder}/munge.{name}" for name in files]
        self.start("munged", "--foreground", "--force", *options)
        wait_until((folder / "munge.socket").exists, self.log)
        self.start("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], self.log)

    def log(self) -> str:
        return (self.folder / "engine.log").read_text(errors="replace")[-5000:]

    def start_node(self, node: str) -> None:
        self.start("slurmd", "-D", "-N", node)

    def run(self, *command: str, cwd: pathlib.Path | None = None) -> str:
        """Run a client; what it prints."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run(command, env=self.env, cwd=cwd or self.folder, check=False, **streams).stdout

    def submit(self, folder: pathlib.Path, *options: str) -> "SlurmJob":
        """Submit `deploy/slurm/train.sbatch` in a folder."""
        script = [str(DEPLOY / "slurm" / "train.sbatch"), str(TRAIN), str(folder), *options]
        printed = self.run("sbatch", "--parsable", "--output=output", *script, cwd=folder)
        assert printed.strip().isdecimal(), printed
        return SlurmJob(folder, self, printed.strip())

    def kill_node(self, node: str, worker: psutil.Process) -> None:
        """Kill slurmd of a node, and the step to which a process belongs, as when the machine loses power."""
        daemon = next(each for each in self.processes() if each.cmdline()[-3:] == ["-D", "-N", node])
        step = next(parent for parent in worker.parents() if parent.name() == "slurmstepd")
        for process in (daemon, step, *step.children(recursive=True)):
            process.kill()


class SlurmJob(Trial):
    """A batch job."""

    def __init__(self, folder: pathlib.Path, slurm: Slurm, number: str) -> None:
        super().__init__(folder)
        self.slurm, self.number = slurm, number

    def shown(self) -> dict[str, str]:
        """What `scontrol show job` prints."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.slurm.run("scontrol", "show", "job", self.number)))

    def update(self, **changes: str) -> None:
        changed = [f"{name}={value}" for name, value in changes.items()]
        assert self.slurm.run("scontrol", "update", f"JobId={self.number}", *changed) == ""

    def wait_for_state(self, *states: str, restarts: int = 0) -> None:
        """Wait until the job is in one of these states, after so many requeues."""

        def is_there():
            shown = self.shown()
            return shown["JobState"] in states and int(shown["Restarts"]) >= restarts

        wait_until(is_there, lambda: f"{self.shown()}\n{self.printed()}\n{self.slurm.log()}")

    def end(self) -> dict[str, str]:
        """Wait for the end of the job; its description."""
        self.wait_for_state("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return self.shown()


def _first_job(proctrack: str) -> int:
    """The number of a cluster's first job; the port of a coordinator follows from it, and no two clusters share any."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return 1 + 64 * (2 * worker + (proctrack == "pgid"))
