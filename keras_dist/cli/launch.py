"""`python -m keras_dist.cli.launch --processes 4 script.py`: run a script in several processes, and heal the job.

Each process finds its place in `KERAS_DISTRIBUTION_*`, which `keras_dist.initialize()` reads. When one dies or does not
answer, the others are ended, and all are started again on another port; with `BackupAndRestore` in the script they go
on where they were. The exit code is 0 when all have ended well, else that of the process that died first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from keras_dist.cli.supervision import Supervisor


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job to its end."""
    parser = argparse.ArgumentParser(prog="python -m keras_dist.cli.launch", description=(__doc__ or "").strip())
    parser.add_argument("--processes", type=_positive, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--devices-per-process", type=_positive, metavar="N", help="fake CPU devices of each")
    parser.add_argument("--max-restarts", type=_natural, default=3, metavar="N", help="how often (default: 3)")
    parser.add_argument(
        "--hang-timeout", type=_positive, default=600, metavar="SECONDS", help="without a step (default: 600)"
    )
    parser.add_argument("--report", metavar="jobs.json", help="write each death and restart into this file")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    given = parser.parse_args(argv)
    supervisor = Supervisor(
        [given.script, *given.arguments],
        given.processes,
        devices=given.devices_per_process,
        max_restarts=given.max_restarts,
        hang_timeout_s=given.hang_timeout,
        report=given.report,
    )
    return supervisor.run()


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
