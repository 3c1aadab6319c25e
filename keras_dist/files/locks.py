"""Locks of files and folders, which the system releases when their process exits.

Locks are `flock`s with the owner in the file, so that none is stale. On Windows, on disks without locks and in buckets
nobody is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import json
import os
import pathlib
import socket
import sys
from collections.abc import Generator
from typing import TextIO

from keras_dist.errors import CheckpointError
from keras_dist.files.regular_files import read_regular

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

NAME = ".lock"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
"""Errors of `flock` on file systems without locks: NFS without its lock service, some in user space."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that holds the lock of a directory."""

    text: str  # process, machine, program and time of locking
    is_alive: bool | None  # whether the process still runs; None for one on another machine


class Lock:
    """Exclusive right to write to a directory, until `release` or the exit of the process.

    Nobody is refused on Windows, and on file systems without locks, such as NFS without its lock service: there, users
    must make sure that only one job writes to a directory.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        if directory.exists() and not directory.is_dir():
            given = "a directory for checkpoints that is none"
            fix = "choose another path, or move the file away"
            raise CheckpointError(f"{str(directory)!r} is a file", given=given, fix=fix)
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / NAME
        self._file = _locked(self._path)
        try:
            since = datetime.datetime.now(datetime.UTC).isoformat()
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "program": sys.argv[:1]}
            self._file.truncate(0)
            self._file.write(json.dumps(owner))
            self._file.flush()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock. Does nothing the second time."""
        if not self._file.closed:
            if fcntl is None:  # Windows removes no open files
                self._file.close()
                self._path.unlink(missing_ok=True)
                return
            if _is_at(self._path, self._file):
                self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what was not written, for lack of space, is not needed any more
                self._file.close()


def _locked(path: pathlib.Path) -> TextIO:
    """Return the file at a path, which is made if need be, with the system's lock on it where there are locks."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINK, 0o666), "a+", encoding="utf-8")
        if fcntl is None:
            return file
        try:
            # the system drops it when the process ends: a killed writer leaves no lock behind
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                return file
        except BlockingIOError:
            file.seek(0)
            owner = file.read()
            file.close()
            summary = f"{str(path.parent)!r} is busy: another job writes checkpoints there"
            fix = "another directory for this job, or wait until the other one has ended"
            raise CheckpointError(summary, given=_described(owner), fix=fix) from None
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _WITHOUT_LOCKS:
                return file
            file.close()
            raise
        file.close()  # its holder has released and removed it after it was opened here


def _is_at(path: pathlib.Path, file: TextIO) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def holder_of(directory: pathlib.Path) -> Holder | None:
    """Return the process that holds the lock of a directory, or was killed while holding it; else None."""
    try:
        owner = read_regular(directory / NAME).decode()
    except (OSError, ValueError):
        return None
    return Holder(_described(owner), _is_alive(owner))


def _is_alive(owner: str) -> bool | None:
    """Whether the process runs; None if that cannot be told from here."""
    if fcntl is None:  # signal 0 is Ctrl-C on Windows
        return None
    try:
        found = json.loads(owner)
        if found["host"] != socket.gethostname():
            return None
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return True


def _described(owner: str) -> str:
    """Describe who holds a lock, and for how long."""
    try:
        found = json.loads(owner)
        since = datetime.datetime.fromisoformat(found["since"])
        seconds = int((datetime.datetime.now(datetime.UTC) - since).total_seconds())
        program = " ".join(found["program"])
        return (
            f"process {found['pid']} on {found['host']} ({program}), since {since:%Y-%m-%d %H:%M:%S} UTC, {seconds} s"
        )
    except (ValueError, KeyError, TypeError):
        return "a writer that is not known"


@contextlib.contextmanager
def alone_in(folder: pathlib.Path) -> Generator[None]:
    """Hold the lock of a folder, after waiting for it. Does nothing on systems without such locks."""
    with contextlib.ExitStack() as locks:
        with contextlib.suppress(OSError):
            locks.callback(unlock_folder, lock_folder(folder, waits=True))
        yield


def lock_folder(folder: pathlib.Path, waits: bool = False) -> int:
    """Lock a folder, and return the descriptor that holds the lock; raise a `BlockingIOError` if it is held."""
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "folders have no locks on this system", str(folder))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unlock_folder(descriptor: int | None) -> None:
    """Release a lock of `lock_folder`; None for no lock."""
    if descriptor is not None and fcntl is not None:
        with contextlib.suppress(OSError):  # closing alone would leave it to processes that were forked meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
