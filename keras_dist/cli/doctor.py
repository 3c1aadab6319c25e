"""`python -m keras_dist.cli.doctor PATH`: what is in a directory of checkpoints, and whether it is good.

The exit code is 0 if there is a state and none is damaged, 1 if one is damaged, 2 if there is nothing or it was called
wrongly. What was damaged and has been put aside is listed and does not count. No device is started, nothing is changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from keras_dist.checkpoint.doctor import examine, render_diagnosis, render_restoring
from keras_dist.config import parse_mesh_shape
from keras_dist.errors import CheckpointError, MeshError


def main(argv: Sequence[str] | None = None) -> int:
    """Examine the checkpoints at a path, and print what was found; the exit code says whether they are good."""
    parser = argparse.ArgumentParser(prog="python -m keras_dist.cli.doctor", description=(__doc__ or "").strip())
    parser.add_argument("path", metavar="PATH", help="a directory of checkpoints, or the folder of one")
    parser.add_argument(
        "--mesh",
        metavar="data=2,model=4",
        type=_mesh,
        help="also tell what restoring on this mesh would do, under the axes that were saved",
    )
    arguments = parser.parse_args(argv)
    try:
        found = examine(arguments.path)
    except (CheckpointError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(render_diagnosis(found))
    for state in found.states if arguments.mesh else ():
        if state.mesh:
            print(render_restoring(state.name, state.restored_on(arguments.mesh)))
    return 2 if not found.states else 0 if found.is_good else 1


def _mesh(text: str) -> dict[str, int]:
    """The sizes of mesh axes; all must be given, for no device is counted."""
    try:
        sizes = parse_mesh_shape(text)
    except MeshError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if -1 in sizes.values():
        raise argparse.ArgumentTypeError("-1 is not a size here: no device is counted")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
