"""`keras-dist launch`: a script in several processes, which are started again when one dies."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from keras_dist._support import backend_environment
from keras_dist.cli.nodes import Place
from keras_dist.cli.process_tree import run_guarded
from keras_dist.cli.supervision import Job, Supervisor

_JOIN_S, _JOIN_NODES_S = 60, 600  # other nodes may have to be found first


def _in_a_folder(path: pathlib.Path | None) -> pathlib.Path | None:
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(path.absolute().parent)!r}")
    return path and path.absolute()


def launch(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="a Python file, or -m and a module")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="...", help="its arguments")] = None,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="how many on each node")] = 1,
    devices_per_process: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="fake CPU devices of each; by default what JAX finds")
    ] = None,
    max_restarts: Annotated[int, typer.Option(min=0, metavar="N", help="how often the job is started again")] = 3,
    hang_timeout: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="after which one without a step is taken for dead; 0: never")
    ] = 600,
    join_timeout: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="to start in; by default 60, of several nodes 600")
    ] = None,
    grace: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="to end in after a signal")] = 30,
    report: Annotated[
        pathlib.Path | None,
        typer.Option(
            dir_okay=False,
            callback=_in_a_folder,
            metavar="jobs.json",
            help="where deaths and restarts are written to",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="how many; by default what the scheduler says, or 1")
    ] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, metavar="N", help="which of them this is, from 0")] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="an address of the first node, and a port that is free there"),
    ] = None,
) -> int:
    """Run a script in several processes.

    keras-dist launch --processes 4 -- train.py --epochs 3

    keras-dist launch --processes 4 -- -m keras_dist train run.toml

    Each process finds its place in `KERAS_DISTRIBUTION_*`, which `keras_dist.initialize()` reads. When one dies or does
    not answer, the others are ended, and all are started again on another port; with `BackupAndRestore` in the script
    they go on where they were. The job is given up after --max-restarts, or after two restarts in a row without a new
    save.

    With --nodes, the same command runs once on each of them, and starts --processes there. srun, mpirun and indexed
    jobs of Kubernetes tell which node it is; across nodes the port of the coordinator stays the same.

    Ctrl-C and SIGTERM go to every process; the second one ends all at once. The exit code is 0 when all have ended
    well, 75 when the job has saved its state after such a signal and can be started again, else that of the process
    that died. However the launcher ends, on Linux it leaves no process behind.
    """
    place = Place.resolve(nodes, node_rank, coordinator)
    if script != "-m" and not pathlib.Path(script).is_file():
        raise typer.BadParameter(f"expected a Python file, got {script!r}", param_hint="SCRIPT")
    job = Job(
        [script, *(arguments or ())],
        processes,
        place,
        devices=devices_per_process,
        hang_timeout_s=hang_timeout,
        join_timeout_s=join_timeout or (_JOIN_S if place.nodes == 1 else _JOIN_NODES_S),
    )
    if job.devices is not None:
        backend_environment.forget_fake_device_count()
    supervisor = Supervisor(job, max_restarts=max_restarts, grace_s=grace, report=report)
    return run_guarded(supervisor.run, supervisor.on_signal)
