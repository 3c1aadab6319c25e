"""Packages that only an extra of keras_dist installs, imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

from keras_dist.errors import MissingExtraError


def import_extra(module: str, extra: str, needed_for: str) -> Any:
    """Import a module that `pip install 'keras_dist[extra]'` brings.

    Args:
        module: its whole name.
        extra: the extra that installs it.
        needed_for: what needs it, for the error.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{needed_for} needs the package {package}",
            given=f"an environment in which it cannot be imported: {error}",
            expected=f"keras_dist with its extra {extra!r}",
            fix=f"pip install 'keras_dist[{extra}]'",
        ) from error
