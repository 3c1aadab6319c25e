"""Drafts: temporary folders whose files are moved to their place once they are complete.

Each writer holds a `flock` of the folder of its draft, which the system releases however the process ends. Where
folders have no locks, drafts of others stay. Flushed (`fsync`), files survive a power failure.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import re
import shutil
from collections.abc import Generator

from keras_dist._support.located_warnings import warn
from keras_dist.errors import CheckpointWarning, KerasDistError, WriteDeniedError, WriteError, WriteFolderError, shorten
from keras_dist.files.locks import lock_folder, unlock_folder

_DRAFT = re.compile(r"\.(?P<name>.+)\.(?:draft|replaced)-\d+(?:-\d+)?")

_MOST_DRAFTS = 1000  # drafts of one place by one process at a time

_SYSTEM = re.compile(r"\b(?:os[ _]error(?:_code)?|errno)[ =']*(?P<number>\d+)", re.IGNORECASE)
"""The number of a system error in messages of safetensors, tensorstore and HDF5."""


@contextlib.contextmanager
def writing_to(place: str | os.PathLike[str]) -> Generator[None]:
    """Enter a context in which system errors, such as a full disk, become `WriteError`s that name the path."""
    try:
        yield
    except KerasDistError:
        raise
    except Exception as error:
        number = _number_of(error)
        if number is None and not isinstance(error, OSError):
            raise
        # what an error says itself of a file names that file
        text = error.strerror if isinstance(error, OSError) and error.filename is not None else None
        text = text or (str(error) if number is None else os.strerror(number))
        kind, fix = _kind_of(number)
        raised = kind(
            f"{os.fspath(place)!r} was not written: {text}",
            given=f"{type(error).__name__}: {shorten(str(error))}",
            fix=fix,
        )
        raised.errno, raised.strerror, raised.filename = number, text, os.fspath(place)
        raise raised from error


def write_file(place: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file; if that fails, an earlier one stays as it was. System errors name the path."""
    with replacing(place) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(place: str | os.PathLike[str]) -> Generator[pathlib.Path]:
    """Yield the path of a new file that replaces `place` once it is complete; system errors name `place`."""
    with writing_to(place):
        if os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place):
            yield pathlib.Path(place)  # a device or a pipe
            return
        target = pathlib.Path(os.path.realpath(place))
        if target.is_file() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
        with draft_of(target) as folder:
            draft = folder / target.name
            yield draft
            if target.is_file():
                shutil.copymode(target, draft)
            sync(draft)  # some file systems report a full disk only here
            os.replace(draft, target)


_WAYS_OUT: dict[int | None, str] = {
    errno.EEXIST: "choose another path, or move away what is there",
    errno.ENOTEMPTY: "choose another path, or move away what is there",
    errno.EISDIR: "choose another path, or move the folder away",
    errno.ENOTDIR: "choose another path, or move away the file that is in the place of a folder",
    errno.ENAMETOOLONG: "choose a shorter path",
}
"""By numbers of the system."""


def _kind_of(number: int | None) -> tuple[type[WriteError], str]:
    """The class of the error for this number of the system, and the way out."""
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return WriteDeniedError, "choose a folder that you may write to, or change its permissions"
    if number == errno.ENOENT:
        return WriteFolderError, "make the folder, or choose another path"
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return WriteError, "free space, or choose another place; what was there before is untouched"
    return WriteError, _WAYS_OUT.get(number, "choose another path")


def _number_of(error: Exception) -> int | None:
    """The system's number for an error, of whatever library; None for others."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = _SYSTEM.search(str(error))
    return None if match is None else int(match["number"])


@contextlib.contextmanager
def draft_of(place: pathlib.Path) -> Generator[pathlib.Path]:
    """Create a private temporary folder beside a path, and remove it at exit.

    Drafts of killed writers of this path are removed first, except on systems without locks of folders.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as locks:
        for path in left_drafts(place, locks):
            if ".replaced-" not in path.name:
                remove_left(path)
    number, lock = new_draft(place, 0o700)
    folder = draft_path(place, number)
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            unlock_folder(lock)


def new_draft(place: pathlib.Path, mode: int = 0o777) -> tuple[str, int | None]:
    """Create a folder beside `place`; return its number and its lock, None where folders have no locks."""
    for count in range(_MOST_DRAFTS):
        number = f"{os.getpid()}-{count}" if count else f"{os.getpid()}"
        folder = draft_path(place, number)
        try:
            folder.mkdir(mode)
        except FileExistsError:
            continue  # another draft of this process
        except (FileNotFoundError, NotADirectoryError) as error:
            file = next((path for path in place.parents if path.is_file()), None)
            missing = f"there is no folder {str(place.parent)!r}"
            why = missing if file is None else f"{str(file)!r} is a file, not a folder"
            raise type(error)(error.errno, why, str(place)) from None
        try:
            lock = lock_folder(folder)
        except (FileNotFoundError, BlockingIOError):
            continue  # it was taken for one that was left
        except OSError:
            if not folder.is_dir():
                raise
            return number, None
        if folder.is_dir() and os.path.samestat(os.fstat(lock), folder.stat()):
            return number, lock
        unlock_folder(lock)
    raise FileExistsError(f"{place}: there are {_MOST_DRAFTS} drafts of it already")


def left_drafts(place: pathlib.Path, locks: contextlib.ExitStack, is_only_writer: bool = False) -> list[pathlib.Path]:
    """Lock and return the drafts of a place without a running writer; with `is_only_writer` return all drafts."""
    left: list[pathlib.Path] = []
    for path in sorted(path for path in place.parent.iterdir() if place_of(path) == place and path.is_dir()):
        try:
            locks.callback(unlock_folder, lock_folder(path))
        except OSError:
            if not is_only_writer:
                continue
        left.append(path)
    return left


def remove_left(path: pathlib.Path, is_only_writer: bool = False) -> None:
    """Remove an abandoned draft, with a warning; if that is not permitted, only its only writer raises."""
    try:
        shutil.rmtree(path)
    except OSError:  # of another user, perhaps: no reason to save nothing
        if is_only_writer:
            raise
    else:
        warn(f"{path}: left by a process that was killed; removed", CheckpointWarning)


def draft_path(place: pathlib.Path, number: str) -> pathlib.Path:
    """Return the path of a draft."""
    return place.with_name(f".{place.name}.draft-{number}")


def place_of(path: pathlib.Path) -> pathlib.Path | None:
    """Return the final place of a draft, or of the content a draft replaced; None for other paths."""
    match = _DRAFT.fullmatch(path.name)
    return None if match is None else path.with_name(match["name"])


def is_draft(path: pathlib.Path) -> bool:
    """Whether a path is in a draft, or in the content a draft replaced."""
    return place_of(path) is not None


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
