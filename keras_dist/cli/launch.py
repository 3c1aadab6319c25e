"""`python -m keras_dist.cli.launch --processes 4 script.py`: run a script in several processes, and heal the job.

Each process finds its place in `KERAS_DISTRIBUTION_*`, which `keras_dist.initialize()` reads. When one dies or does not
answer, the others are ended, and all are started again on another port; with `BackupAndRestore` in the script they go
on where they were. The job is given up after --max-restarts, or after two restarts in a row without a new save.

With --nodes, the same command runs once on each of them, and starts --processes there. srun, mpirun and indexed jobs of
Kubernetes tell which node it is; across nodes the port of the coordinator stays the same.

Ctrl-C and SIGTERM go to every process; the second one ends all at once. The exit code is 0 when all have ended well, 75
when the job has saved its state after such a signal and can be started again, else that of the process that died.
However the launcher ends, on Linux it leaves no process behind.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from keras_dist import _environment
from keras_dist.cli.nodes import Place
from keras_dist.cli.process_tree import run_guarded
from keras_dist.cli.supervision import Job, Supervisor
from keras_dist.errors import ClusterError

_JOIN_S, _JOIN_NODES_S = 60, 600  # other nodes may have to be found first


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job to its end."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_dist.cli.launch",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--processes", type=_positive, default=1, metavar="N", help="how many on each node (default: 1)")
    add("--devices-per-process", type=_positive, metavar="N", help="fake CPU devices of each (default: what JAX finds)")
    add("--max-restarts", type=_natural, default=3, metavar="N", help="how often (default: 3)")
    add("--hang-timeout", type=_natural, default=600, metavar="SECONDS", help="without a step (default: 600; 0: never)")
    add("--join-timeout", type=_positive, metavar="SECONDS", help="to start in (default: 60; of several nodes 600)")
    add("--grace", type=_natural, default=30, metavar="SECONDS", help="to end in after a signal (default: 30)")
    add("--report", type=_writable, metavar="jobs.json", help="where deaths and restarts are written to")
    add("--nodes", type=_positive, metavar="N", help="how many (default: what the scheduler says, or 1)")
    add("--node-rank", type=_natural, metavar="N", help="which of them this is, from 0")
    add("--coordinator", metavar="HOST:PORT", help="an address of the first node, and a port that is free there")
    add("script", help="a Python file")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    given = parser.parse_args(argv)
    try:
        place = Place.resolve(given.nodes, given.node_rank, given.coordinator)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not pathlib.Path(given.script).is_file():
        parser.error(f"argument script: expected a Python file, got {given.script!r}")
    job = Job(
        [given.script, *given.arguments],
        given.processes,
        place,
        devices=given.devices_per_process,
        hang_timeout_s=given.hang_timeout,
        join_timeout_s=given.join_timeout or (_JOIN_S if place.nodes == 1 else _JOIN_NODES_S),
    )
    if job.devices is not None:
        _environment.forget_fake_device_count()
    supervisor = Supervisor(job, max_restarts=given.max_restarts, grace_s=given.grace, report=given.report)
    return run_guarded(supervisor.run, supervisor.on_signal)


def _natural(text: str, low: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None
    if number < low:
        raise argparse.ArgumentTypeError(f"{text} is below {low}")
    return number


def _positive(text: str) -> int:
    return _natural(text, 1)


def _writable(text: str) -> pathlib.Path:
    path = pathlib.Path(text).absolute()
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file, got the folder {str(path)!r}")
    return path


if __name__ == "__main__":
    sys.exit(main())
