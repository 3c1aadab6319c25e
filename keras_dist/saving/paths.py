"""What arguments that name files and folders may be."""

from __future__ import annotations

import os
from typing import Any

from keras_dist.errors import KerasDistError, ModelError, shorten


def checked_path(caller: str, argument: str, value: Any, example: str, error: type[KerasDistError] = ModelError) -> str:
    """A path as a string.

    Args:
        caller: how errors call what asks for it.
        argument: its name.
        value: what was given.
        example: a path that would do.
        error: the class of what is raised.

    Raises:
        KerasDistError: it is none.
    """
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if isinstance(path, str) and path and "\0" not in path:
        return path
    raise error(
        f"{caller}: `{argument}` is no path",
        given=f"{argument}={shorten(value)} of type {type(value).__name__}",
        expected="a string, or a pathlib.Path",
        fix=f"for example {argument}={example!r}",
    )
