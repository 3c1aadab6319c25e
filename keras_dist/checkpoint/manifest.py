"""The manifest of a checkpoint: name, length and CRC-32C of every file, so that damage is seen before it is loaded.

A checksum tells of accidents, and takes a fifth of the time of a digest. Whoever may write to the folder may forge
both, which is why loading runs nothing that it reads.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c

from keras_dist.distribution.rendezvous import Rendezvous

NAME = "manifest.json"
FORMAT = 1

_CHUNK_BYTES = 2**20
"""How much of a file is in memory at a time."""


def write_manifest(folder: pathlib.Path, job: Rendezvous | None = None) -> None:
    """Note every file below `folder`. What is written there later is none of the checkpoint.

    Args:
        folder: what all processes see.
        job: where the processes meet, each of which reads a part of the files.
    """
    job = job or Rendezvous()
    names = job.first(lambda: [path.relative_to(folder).as_posix() for path in _files_below(folder)])
    mine = names[job.process :: job.processes]
    parts = job.each(lambda: _noted(folder, mine))
    files = {name: noted for part in parts for name, noted in part.items()}
    job.first(lambda: (folder / NAME).write_bytes(_rendered({name: files[name] for name in names})))


def damage_of(folder: pathlib.Path) -> list[str]:
    """What is wrong with the files of a checkpoint, each by its name; empty if nothing is.

    Not one byte can differ without being noticed, in the manifest itself neither.
    """
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return [f"{NAME} is missing"]
    except OSError as error:
        return [f"{NAME} cannot be read: {error}"]
    files = _files_of(content)
    if files is None:
        return [f"{NAME} is damaged"]
    with _threads() as threads:
        problems = threads.map(functools.partial(_damage, folder), files, files.values())
        return [problem for problem in problems if problem is not None]


def listed_in(folder: pathlib.Path) -> frozenset[str]:
    """The names of the files of a checkpoint; others that lie in its folder are none of it."""
    return frozenset(_files_of((folder / NAME).read_bytes()) or ())


def _files_below(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _noted(folder: pathlib.Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the manifest says of these files."""
    with _threads() as threads:
        checksums = threads.map(lambda name: _checksum(folder / name), names)
        return {
            name: {"bytes": (folder / name).stat().st_size, "crc32c": checksum}
            for name, checksum in zip(names, checksums, strict=True)
        }


def _damage(folder: pathlib.Path, name: str, noted: dict[str, Any]) -> str | None:
    path = folder / name
    if pathlib.PurePosixPath(name).is_absolute() or ".." in pathlib.PurePosixPath(name).parts:
        return f"{name} is not inside of the checkpoint"
    try:
        size = path.stat().st_size
        if size != noted["bytes"]:
            return f"{name} has {size} bytes instead of {noted['bytes']}"
        return None if _checksum(path) == noted["crc32c"] else f"{name} has other bytes than were written"
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:  # a name may be none that the system takes
        return f"{name} cannot be read: {error}"


def _files_of(content: bytes) -> dict[str, dict[str, Any]] | None:
    """What a manifest lists; None if it is not, byte for byte, one that was written here."""
    try:
        files = json.loads(content)["files"]
        return files if _rendered(files) == content else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _rendered(files: dict[str, dict[str, Any]]) -> bytes:
    listed = {name: {"bytes": noted["bytes"], "crc32c": noted["crc32c"]} for name, noted in files.items()}
    check = _hexadecimal(google_crc32c.value(json.dumps(listed).encode()))
    return json.dumps({"format": FORMAT, "files": listed, "crc32c_of_files": check}, indent=1).encode() + b"\n"


def _checksum(path: pathlib.Path) -> str:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
    return _hexadecimal(checksum)


def _hexadecimal(checksum: int) -> str:
    return f"{checksum:08x}"


def _threads() -> ThreadPoolExecutor:
    """For checksums: files are read outside of Python's lock."""
    return ThreadPoolExecutor(os.cpu_count())
