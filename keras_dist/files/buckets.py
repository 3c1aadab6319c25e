"""Paths in buckets such as `gs://bucket/folder`, through etils.

A bucket has no folders, locks or renames: a folder is the set of objects whose names share a prefix. An object is whole
or not there.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from etils import epath

from keras_dist._support.arguments import check_names
from keras_dist.errors import CheckpointError, MissingExtraError

Folder = TypeVar("Folder", bound=pathlib.PurePath)

_PREFIX = "gs://"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # of at least two letters: others are drives of Windows


def folder_path(path: str) -> pathlib.Path:
    """Return `path` as a `pathlib.Path`, or as an etils path for a bucket."""
    if path.startswith(_PREFIX):
        place = epath.Path(path)
        _file_system(place)
        return cast(pathlib.Path, place)
    if is_elsewhere(path):
        given = "a path of another kind of storage, or a URL of which pathlib.Path has made a path"
        fix = "a folder, or 'gs://bucket/folder' as a string or epath.Path; a folder of such a name is './name'"
        raise CheckpointError(f"{path!r} cannot hold checkpoints", given=given, fix=fix)
    return pathlib.Path(check_names("filepath", path))


def is_elsewhere(path: str) -> bool:
    """Whether a path names storage outside the local file system."""
    return _SCHEME.match(path) is not None


def in_bucket(path: pathlib.PurePath) -> bool:
    """Whether a path is in a bucket."""
    return str(path).startswith(_PREFIX)


def refreshed(path: Folder) -> Folder:
    """Return the path; in a bucket after clearing listings, since fsspec does not see what other processes write."""
    if in_bucket(path):
        system = _file_system(path)
        if system is not None:
            system.invalidate_cache()
    return path


def _file_system(path: Any) -> Any:
    """Return the file system of fsspec for a bucket, or None where etils uses TensorFlow's, which has no cache."""
    try:
        return path._backend.fs(str(path)) if hasattr(path._backend, "fs") else None
    except ImportError as error:
        given = f"an environment in which it cannot be imported: {error}"
        fix = "pip install gcsfs"
        raise MissingExtraError(f"{str(path)!r} needs the package gcsfs", given=given, fix=fix) from error


def files_below(folder: pathlib.Path) -> list[str]:
    """Return the names of all files below a folder, relative to it and with slashes, sorted."""
    paths = _objects_below(refreshed(folder)) if in_bucket(folder) else filter(pathlib.Path.is_file, folder.rglob("*"))
    return [path.relative_to(folder).as_posix() for path in sorted(paths)]


def _objects_below(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in folder.iterdir():  # etils' `walk` forgets the prefix
        yield from _objects_below(path) if path.is_dir() else [path]


def size_of(path: pathlib.Path) -> int:
    """Return the size of a file [bytes]; links are not followed."""
    return cast(Any, path.stat()).length if in_bucket(path) else path.lstat().st_size


def absolute(path: pathlib.Path) -> pathlib.Path:
    """Return the absolute path; paths of buckets are absolute."""
    return path if in_bucket(path) else path.absolute()


def resolved(path: pathlib.Path) -> pathlib.Path:
    """Return the absolute path with links resolved; paths in buckets have no links."""
    return path if in_bucket(path) else path.resolve()
