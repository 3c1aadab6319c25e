"""Datasets: `text` reads files. For demos, `digits` needs no network, `mnist` downloads once (extra `datasets`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keras_dist._support.missing_names import missing_from

if TYPE_CHECKING:
    from keras_dist.datasets import digits, mnist, text

__all__ = ["digits", "mnist", "text"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return importlib.import_module(f"{__name__}.{name}") if name in __all__ else missing_from(__name__)(name)
