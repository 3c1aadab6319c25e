"""Going through batches that are done already, to come to where a run was; it may take long, and so it is shown."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import track


def skipped(batches: Iterator[Any], count: int, title: str) -> Iterator[Any]:
    """`batches` without the first `count`."""
    for _ in shown_skipping(itertools.islice(batches, count), count, title):
        pass
    return batches


def shown_skipping(batches: Iterable[Any], count: int, title: str) -> Iterable[Any]:
    """The batches that are skipped, with a progress bar on standard error; none where there are none."""
    if not count:
        return batches
    console = Console(file=sys.stderr, soft_wrap=True)
    console.print(f"skipping {count} batches of {title}, which are done: it has no numbers to begin with", markup=False)
    return track(batches, "skipping", total=count, console=console, transient=True)
