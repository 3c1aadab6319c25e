"""Forcing files to the disk (`fsync`), so that they outlive a failure of power."""

from __future__ import annotations

import itertools
import os
import pathlib


def sync(path: pathlib.Path) -> None:
    """Force a file, or the names in a folder, to the disk; Windows cannot for a folder."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_below(folder: pathlib.Path) -> None:
    """Force all files below a folder, and then all folders, to the disk, the outermost last."""
    for place, _, files in os.walk(folder, topdown=False):
        for path in itertools.chain((os.path.join(place, name) for name in files), [place]):
            sync(pathlib.Path(path))


def make_folders(folder: pathlib.Path) -> None:
    """Make a folder and those above it, as far as they are missing, and force their names to the disk."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)
