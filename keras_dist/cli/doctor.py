"""`keras-dist doctor`: what is in a directory of checkpoints, and whether it is good."""

from __future__ import annotations

from typing import Annotated

import typer

from keras_dist.cli.arguments import AsJson, show


def doctor(
    path: Annotated[str, typer.Argument(metavar="PATH", help="a directory of checkpoints, or the folder of one")],
    json: AsJson = False,
) -> int:
    """Examine a directory of checkpoints.

    The exit code is 0 if there is a state and none is damaged, 1 if one is damaged, 2 if there is nothing. What was
    damaged and has been put aside is listed and does not count. No device is started, nothing is changed.
    """
    from keras_dist.checkpoint import examine

    found = examine(path)
    show(found, json)
    return 2 if not found.states else 0 if found.is_good else 1
