"""`keras-dist launch`: runs a script in several processes, and restarts them when one fails."""

from __future__ import annotations

import pathlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from keras_dist._support import backend_environment
from keras_dist.cli.nodes import NodePosition
from keras_dist.cli.process_tree import run_guarded
from keras_dist.cli.supervision import Job, Supervisor

_JOIN_S, _JOIN_NODES_S = 60, 600  # other nodes may start later


class LaunchCommand(TyperCommand):
    """The command, which refuses its own options after the script unless `--` separates them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, `-m` as a script; raise where an option would silently go to the script."""
        index = 0
        while index < len(args) and args[index].startswith("--") and args[index] != "--":
            index += 1 if "=" in args[index] or args[index] in ("--debug", "--help") else 2
        first = args[index : index + 1]
        rest = super().parse_args(ctx, [*args[:index], "--", *args[index:]] if first == ["-m"] else [*args])
        theirs = [*(ctx.params.get("arguments") or ())]
        before = theirs[: theirs.index("--")] if "--" in theirs else theirs
        own = {name for parameter in self.params for name in parameter.opts if parameter.name not in ("help", "debug")}
        misplaced = [each for each in before if each.partition("=")[0] in own]
        if misplaced and first != ["--"]:
            script = ctx.params["script"]
            raise typer.BadParameter(
                f"options of launch stand before the script: keras-dist launch {misplaced[0]} ... -- {script}; "
                f"an option of the script stands after --, too: keras-dist launch -- {script} {misplaced[0]} ...",
                param_hint=misplaced[0],
            )
        return rest


def _in_a_folder(path: pathlib.Path | None) -> pathlib.Path | None:
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"folder {str(path.absolute().parent)!r} does not exist")
    return path and path.absolute()


def _check_least(name: str, least: int | None, of: str, number: int) -> None:
    if least is not None and least > number:
        raise typer.BadParameter(f"{least} is more than {of} {number}", param_hint=name)


def launch(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="a Python file, or -m and a module")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="...", help="its arguments")] = None,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="processes on each node")] = 1,
    devices_per_process: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="fake CPU devices of each; by default JAX's devices")
    ] = None,
    min_processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="restart with so many on each node, if others stay away")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, metavar="N", help="largest number of restarts in a row without progress")
    ] = 3,
    hang_timeout: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="time without a step after which a process ends; 0: never")
    ] = 600,
    join_timeout: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="time to start; by default 60, with several nodes 600")
    ] = None,
    grace: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="time to exit after a signal")] = 30,
    report: Annotated[
        pathlib.Path | None,
        typer.Option(dir_okay=False, callback=_in_a_folder, metavar="jobs.json", help="file for failures and restarts"),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="number of nodes; by default from the scheduler, or 1")
    ] = None,
    min_nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="restart on so many nodes, if others stay away")
    ] = None,
    node_rank: Annotated[int | None, typer.Option(min=0, metavar="N", help="index of this node, from 0")] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="address of the first node, with a free port")
    ] = None,
) -> int:
    """Run a script in several processes.

    keras-dist launch --processes 4 -- train.py --epochs 3

    keras-dist launch --processes 4 -- -m keras_dist train run.toml

    Each process gets its place in `KERAS_DISTRIBUTION_*`, which `keras_dist.initialize()` reads. When one fails or
    hangs, the others are stopped, and all are restarted on another port; with `BackupAndRestore` in the script they
    resume. The launcher gives up after --max-restarts in a row without a new save or step.

    With --nodes, run the same command once on each node; it starts --processes there. srun, mpirun and indexed jobs of
    Kubernetes provide the index of the node. Across nodes the port of the coordinator stays the same. If a node does
    not start in time, the launchers of the others exit with 75. Each node writes the failures that it finds; --report
    jobs.json is jobs.node1.json on node 1.

    With --min-processes and --min-nodes the job continues on fewer processes if one fails again right after a restart,
    or a node does not return in time; it grows again at a save once they are back. With --min-nodes the launcher of the
    first node also listens on the next port.

    The first Ctrl-C or SIGTERM is sent to every process, which has --grace seconds to save; SIGHUP and SIGUSR1 count as
    SIGTERM. Further signals do not end a save, except the third Ctrl-C, which kills all. The exit code is 0 after
    success, 75 if the job has saved its state after a signal and can be started again, else the code of the failed
    process. On Linux no process outlives the launcher.
    """
    place = NodePosition.resolve(nodes, node_rank, coordinator)
    if script != "-m" and not pathlib.Path(script).is_file():
        hint = "; launch starts Python itself, so name the script alone" * script.startswith("python")
        raise typer.BadParameter(f"{script!r} is not a file in {str(pathlib.Path.cwd())!r}{hint}", param_hint="SCRIPT")
    _check_least("--min-processes", min_processes, "--processes", processes)
    _check_least("--min-nodes", min_nodes, "--nodes", place.nodes)
    if min_processes is not None and min_nodes is None and place.nodes > 1:
        text = f"several nodes agree on the number of processes only with --min-nodes; {place.nodes} for all of them"
        raise typer.BadParameter(text, param_hint="--min-processes")
    job = Job(
        [script, *(arguments or ())],
        processes,
        place=place,
        min_processes=min_processes,
        min_nodes=min_nodes,
        devices=devices_per_process,
        hang_timeout_s=hang_timeout,
        join_timeout_s=join_timeout or (_JOIN_S if place.nodes == 1 else _JOIN_NODES_S),
    )
    if report is not None and place.rank:
        report = report.with_suffix(f".node{place.rank}{report.suffix}")
    if job.devices is not None:
        backend_environment.forget_fake_device_count()
    supervisor = Supervisor(job, max_restarts=max_restarts, grace_s=grace, report=report)
    return run_guarded(supervisor.run, supervisor.on_signal)
