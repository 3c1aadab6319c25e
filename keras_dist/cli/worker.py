"""`python -m keras_dist.cli.worker PARENT script.py ...`: run a script in a process that ends with its launcher."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the script as `python script.py` does."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the launcher has ended")
    sys.argv = command
    sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
