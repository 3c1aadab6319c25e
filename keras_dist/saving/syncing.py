"""Flushing files to disk (`fsync`), so that they survive a power failure."""

from __future__ import annotations

import itertools
import os
import pathlib


def sync(path: pathlib.Path) -> None:
    """Flush a file, or the entries of a folder, to disk; does nothing for folders on Windows."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_below(folder: pathlib.Path) -> None:
    """Flush all files below a folder to disk, then all folders, the outermost last."""
    for place, _, files in os.walk(folder, topdown=False):
        for path in itertools.chain((os.path.join(place, name) for name in files), [place]):
            sync(pathlib.Path(path))


def make_folders(folder: pathlib.Path) -> None:
    """Create a folder and its missing parents, and flush their entries to disk."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)
