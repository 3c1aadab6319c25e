"""Reading of files from untrusted folders: only regular files of bounded size.

A link to `/dev/zero` has no end, and a config of one line can ask for any memory. In a bucket all files are regular.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
import time
from collections.abc import Callable, Generator
from io import FileIO
from typing import Any, TypeVar, cast

from keras_dist.errors import FileMissingError, KerasDistError, OverwrittenError
from keras_dist.files.buckets import in_bucket, size_of

T = TypeVar("T")

WAITS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # successive waits of a reader for a writer that replaces its folder [s]
MOST_BYTES = 2**28  # the largest file that is read at once


def open_regular(path: pathlib.Path, follow_links: bool = False) -> FileIO:
    """Open a regular file for reading; raise an `OSError` for devices and pipes, which may block or never end."""
    if in_bucket(path):
        return cast(Any, path.open("rb"))
    if not stat.S_ISREG(os.stat(path, follow_symlinks=follow_links).st_mode):
        raise OSError(errno.EINVAL, "it is a link, a folder, a pipe or a device, not a regular file", str(path))
    wanted = ["O_BINARY", "O_NONBLOCK"] + ["O_NOFOLLOW"] * (not follow_links)  # should it be another one now
    descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in wanted))  # Windows lacks some
    return os.fdopen(descriptor, "rb", buffering=0)


@contextlib.contextmanager
def explaining_missing(caller: str, filepath: object) -> Generator[None]:
    """Enter a context in which the error for a missing file names `caller` and `filepath`."""
    try:
        yield
    except FileNotFoundError as error:
        if isinstance(error, KerasDistError):
            raise
        missing = str(error).rpartition("directory: ")[2].strip("'")  # safetensors sets no `filename`
        summary, given = f"{caller}: {missing!r} does not exist", f"filepath={str(filepath)!r}"
        raise FileMissingError(summary, given=given, fix="correct the path") from error


def read_regular(path: pathlib.Path, follow_links: bool = False) -> bytes:
    """Return the content of a regular file of at most `MOST_BYTES`; see `open_regular`."""
    with open_regular(path, follow_links) as file:
        size = size_of(path) if in_bucket(path) else os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {MOST_BYTES}", str(path))
        return file.read(size) if size else b""


def identity_of(path: pathlib.Path) -> tuple[int, ...] | None:
    """Return device, inode and time of change of a path, to detect its replacement; None in buckets or if missing."""
    try:
        found = None if in_bucket(path) else os.stat(path)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns)


def overwritten(caller: str, path: pathlib.Path) -> OverwrittenError:
    """Return the error for files that another process has replaced while they were read."""
    given = "files that another process replaces while they are read"
    fix = "read them again when the save has ended; or save to a path that nobody reads, and rename that"
    return OverwrittenError(f"{caller}{str(path)!r} is being overwritten", given=given, fix=fix)


def retried(read: Callable[[], T]) -> T:
    """Return `read()`; call it again after a wait while another process replaces the files."""
    for wait in WAITS:
        try:
            return read()
        except OverwrittenError:
            time.sleep(wait)
    return read()
