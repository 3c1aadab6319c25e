"""What files have while they are written: `draft_of`, a folder beside their place; `writing_to`, for their errors."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator

from keras_dist.errors import CheckpointWarning, KerasDistError, WriteError, shorten

_SYSTEM = re.compile(r"\bos[ _]error(?:_code)?[ =']*(?P<number>\d+)", re.IGNORECASE)
"""How safetensors and tensorstore write down the number of an error of the system."""


@contextlib.contextmanager
def writing_to(place: str | os.PathLike[str]) -> Iterator[None]:
    """Let errors of the system that name no file, as of a full disk, name the place that is written.

    Args:
        place: what the user has asked for.

    Raises:
        WriteError: instead of such an error, or of one that a library has made of it.
    """
    try:
        yield
    except KerasDistError:
        raise
    except Exception as error:
        number = _number_of(error)
        if number is None:
            raise
        told = WriteError(
            f"{os.fspath(place)!r} was not written: {os.strerror(number)}",
            given=f"{type(error).__name__}: {shorten(str(error))}",
            expected="room on the disk, and leave to write there",
            fix="free space, or choose another place; what was there before is untouched",
        )
        told.errno, told.strerror, told.filename = number, os.strerror(number), os.fspath(place)
        raise told from error


def _number_of(error: Exception) -> int | None:
    """The system's number for an error that does not say which file it is about; None for others."""
    if isinstance(error, OSError):
        return None if error.filename is not None else error.errno
    match = _SYSTEM.search(str(error))
    return None if match is None else int(match["number"])


try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None


@contextlib.contextmanager
def draft_of(place: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder of its own for each writer of a place, who alone can read it; in the end it is removed.

    Whoever is killed leaves it, and the next writer of the place removes it. Those that are still being written are
    told by a lock that the system drops with its process. Where the system has no locks of folders, they are left.

    Args:
        place: of a file or a folder; on the same disk as the draft.

    Raises:
        OSError: the folder around the place is not there, or may not be written.
    """
    _remove_left(place)
    folder, lock = _new_folder(place)
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            unlock_folder(lock)


@contextlib.contextmanager
def alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Wait until nobody else is in here for the folder, as far as the system has locks of folders."""
    with contextlib.ExitStack() as locks:
        with contextlib.suppress(OSError):
            locks.callback(unlock_folder, lock_folder(folder, waits=True))
        yield


def _new_folder(place: pathlib.Path) -> tuple[pathlib.Path, int | None]:
    """A draft, and what holds its lock; None where there are no locks."""
    while True:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{place.name}.saving-", dir=place.parent))
        try:
            lock = lock_folder(folder)
        except (FileNotFoundError, BlockingIOError):
            continue  # it has just been taken for one that was left
        except OSError:
            return folder, None
        if os.fstat(lock).st_nlink and folder.exists():
            return folder, lock
        unlock_folder(lock)


def _remove_left(place: pathlib.Path) -> None:
    """Remove the drafts of a place that nobody is writing."""
    pattern = re.compile(re.escape(f".{place.name}.saving-") + "[a-z0-9_]{8}")
    with contextlib.suppress(OSError):  # whether one may write there is found out when the draft is made
        for folder in sorted(path for path in place.parent.iterdir() if pattern.fullmatch(path.name)):
            with contextlib.suppress(OSError):  # it is being written, or gone
                lock = lock_folder(folder)
                try:
                    shutil.rmtree(folder)
                    warnings.warn(f"{folder}: left by a process that was killed; removed", CheckpointWarning, 4)
                finally:
                    unlock_folder(lock)


def lock_folder(folder: pathlib.Path, waits: bool = False) -> int:
    """The system's lock of a folder, as the descriptor that holds it.

    Args:
        folder: which.
        waits: whether to wait until nobody else has it.

    Raises:
        BlockingIOError: another one has it.
        OSError: there is no such folder, it may not be read, or it cannot be locked, as on Windows.
    """
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
    """Give back a lock, if there is one."""
    if descriptor is not None and fcntl is not None:
        with contextlib.suppress(OSError):  # closing alone would leave it to processes that were forked meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
