"""The manifest of a checkpoint: name, length and CRC-32C of every file, so that damage is detected before loading.

orbax loads a flipped byte without an error. So a CRC-32C of every file is written after all files and compared before
anything is read; the manifest itself is compared byte for byte with what its contents would be written as. A checksum
detects accidents, in a fifth of the time of a digest. Anyone who may write to the folder can forge either; so loading
runs no code that it reads, and reads only regular files, no longer than stated.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c

from keras_dist.errors import CheckpointError, shorten
from keras_dist.files.buckets import files_below, in_bucket, refreshed, size_of
from keras_dist.files.regular_files import open_regular, read_regular
from keras_dist.files.tensor_format import digits
from keras_dist.jobs.rendezvous import Rendezvous

NAME = "manifest.json"
FORMAT = 1

_CHUNK_BYTES = 2**20  # of a file that are in memory at a time


def write_manifest(folder: pathlib.Path, job: Rendezvous | None = None) -> None:
    """Write the manifest of all files below `folder`. Files that are added later are not part of the checkpoint."""
    job = job or Rendezvous()
    names = job.first(lambda: files_below(folder), list)
    mine = names[job.process :: job.processes]
    parts = job.each(lambda: _recorded(folder, mine), dict)
    files = {name: recorded for part in parts for name, recorded in part.items()}

    def write() -> None:
        if files.keys() != {*names} or not all(map(_is_recorded, files.values())):
            fix = "save again; let nobody else reach the coordinator's port"
            raise CheckpointError(f"the files of {str(folder)!r} cannot be recorded", given=shorten(files), fix=fix)
        (folder / NAME).write_bytes(_rendered({name: files[name] for name in names}))

    job.first(write)


def damage_of(folder: pathlib.Path, follow_links: bool = False) -> list[str]:
    """Return the problems of the files of a checkpoint, also of the manifest; any changed byte is detected."""
    try:
        content = read_regular(refreshed(folder) / NAME, follow_links)
    except FileNotFoundError:
        return [f"{NAME} is missing"]
    except OSError as error:
        return [f"{NAME} cannot be read: {error}"]
    files = _files_of(content)
    if files is None:
        return [f"{NAME} is damaged"]
    irregular = [] if follow_links else _irregular_below(folder)
    if irregular:
        return irregular
    with _threads() as threads:
        problems = threads.map(functools.partial(_damage, folder, follow_links), files, files.values())
        return [problem for problem in problems if problem is not None]


def listed_in(folder: pathlib.Path) -> frozenset[str]:
    """Return the names of the files of a checkpoint; other files in its folder are not part of it."""
    return frozenset(_files_of(read_regular(folder / NAME)) or ())


def is_manifest_in(folder: pathlib.Path) -> bool:
    """Whether the manifest of a folder was written by keras_dist and is unchanged."""
    return _files_of(read_regular(folder / NAME, follow_links=True)) is not None


def _irregular_below(folder: pathlib.Path) -> list[str]:
    """Return what is neither a file nor a folder; orbax may read it although it is not in the manifest."""
    if in_bucket(folder):
        return []
    paths = [pathlib.Path(place, name) for place, *names in os.walk(folder) for name in itertools.chain(*names)]
    modes = {path.relative_to(folder).as_posix(): path.lstat().st_mode for path in sorted(paths)}
    return [
        f"{name} is a link, a pipe or a device"
        for name, mode in modes.items()
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    ]


def _recorded(folder: pathlib.Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the entries of these files in the manifest."""
    with _threads() as threads:
        return dict(zip(names, threads.map(functools.partial(_note, folder), names), strict=True))


def _note(folder: pathlib.Path, name: Any) -> dict[str, Any]:
    if not isinstance(name, str) or not _is_inside(name):
        fix = "save again; let nobody else reach the coordinator's port"
        raise CheckpointError(f"a file is not inside of {str(folder)!r}", given=shorten(name), fix=fix)
    size = size_of(folder / name)
    return {"bytes": size, "crc32c": _checksum(folder, name, size)}


def _is_recorded(recorded: Any) -> bool:
    """Whether this is a result of `_note`."""
    is_size = isinstance(recorded, dict) and type(recorded.get("bytes")) is int
    return is_size and recorded.keys() == {"bytes", "crc32c"} and isinstance(recorded["crc32c"], str)


def _is_inside(name: str) -> bool:
    return not pathlib.PurePosixPath(name).is_absolute() and ".." not in pathlib.PurePosixPath(name).parts


def _damage(folder: pathlib.Path, follow_links: bool, name: str, recorded: dict[str, Any]) -> str | None:
    if not _is_inside(name):
        return f"{name} is not inside of the checkpoint"
    if follow_links:
        path = (folder / name).resolve()
        folder, name = path.parent, path.name
    try:
        size = size_of(folder / name)
        if size != recorded["bytes"]:
            return f"{name} has {size} bytes instead of {recorded['bytes']}"
        is_same = _checksum(folder, name, size) == recorded["crc32c"]
        return None if is_same else f"{name} has other bytes than were written"
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:  # a name may be invalid on this system
        return f"{name} cannot be read: {error}"


def _files_of(content: bytes) -> dict[str, dict[str, Any]] | None:
    """Return the entries of a manifest; None if it is not unchanged, byte for byte."""
    try:
        files = json.loads(content)["files"]
        return files if _rendered(files) == content else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _rendered(files: dict[str, dict[str, Any]]) -> bytes:
    listed = {name: {"bytes": recorded["bytes"], "crc32c": recorded["crc32c"]} for name, recorded in files.items()}
    check = digits(google_crc32c.value(json.dumps(listed).encode()))
    return json.dumps({"format": FORMAT, "files": listed, "crc32c_of_files": check}, indent=1).encode() + b"\n"


def _checksum(folder: pathlib.Path, name: str, size: int) -> str:
    """Return the checksum of a file of this size."""
    checksum = 0
    with open_regular(folder / name) as file:
        while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
            checksum, size = google_crc32c.extend(checksum, chunk), size - len(chunk)
    return digits(checksum)


def _threads() -> ThreadPoolExecutor:
    """Return threads for checksums: files are read without Python's lock."""
    return ThreadPoolExecutor(os.cpu_count())
