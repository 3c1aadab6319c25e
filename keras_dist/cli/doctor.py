"""`keras-dist doctor`: lists and checks a directory of checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from keras_dist.cli.arguments import AsJson, show


def doctor(
    path: Annotated[str, typer.Argument(metavar="PATH", help="a directory of checkpoints, or the folder of one")],
    mesh: Annotated[
        str | None,
        typer.Option(metavar="data=2,model=4", help="also show the layouts after restoring on this mesh"),
    ] = None,
    json: AsJson = False,
) -> int:
    """Examine a directory of checkpoints.

    The exit code is 0 if there are states and none is damaged, 1 if one is damaged, 2 without states. Damaged states
    that were moved aside are listed only. No device is started, nothing is changed.
    """
    from keras_dist.checkpoint import examine

    found = examine(path, mesh)
    show(found, json)
    return 2 if not found.states else 0 if found.is_good else 1
