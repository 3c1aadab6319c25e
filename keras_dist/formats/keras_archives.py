"""The zip archive in which Keras saves a model: configs as JSON, and arrays in an uncompressed HDF5 file.

What `.keras` files have no place for (layouts, policies, seeds) is in `metadata.json`: Keras ignores it there, and
unpacks the archive beside a fourth file.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, cast

from keras_dist.checkpoint.manifest import NAME as MANIFEST
from keras_dist.checkpoint.manifest import damage_of, is_manifest_in
from keras_dist.errors import KerasDistError, ModelError, cause
from keras_dist.files.regular_files import identity_of, open_regular, overwritten, read_regular
from keras_dist.formats.h5_files import H5Reader

KERAS_SUFFIX = ".keras"
CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
OWN = "keras_dist"  # the metadata entry for additions of keras_dist, which Keras ignores

_KERAS_VERSION = "3.15.1"
_MOST_JSON_BYTES, _MOST_ASSET_BYTES, _CHUNK_BYTES = 2**28, 2**30, 2**20
_ASSETS = "assets/"
_HEADER = struct.Struct("<4s5H3I2H")
"""The header of each member of a zip; the last two fields are the sizes of its name and of extra fields."""


class KerasArchive:
    """Reader of a `.keras` archive. A context manager.

    `config` includes the arguments of `compile`; `own` is the metadata of keras_dist, empty in files that Keras wrote.
    """

    def __init__(self, caller: str, path: pathlib.Path) -> None:
        self.path, self._caller = path, caller
        self._open = contextlib.ExitStack()
        try:
            self._begin()
            self.config = self._json(CONFIG)
            metadata = self._json(METADATA) if self._has(METADATA) else {}
        except (FileNotFoundError, KerasDistError):
            self._open.close()
            raise
        except Exception as error:  # of zip, and of what decompresses
            self._open.close()
            raise self._damaged(cause(error)) from error
        recorded = metadata.get(OWN) if isinstance(metadata, dict) else None
        self.own: dict[str, Any] = recorded if isinstance(recorded, dict) else {}

    def __enter__(self) -> KerasArchive:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def arrays(self) -> H5Reader:
        """Open the arrays; only accessed parts are read from disk."""
        info = self._member(WEIGHTS)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise self._damaged(f"{WEIGHTS} is compressed or encrypted: Keras writes it as it is")
        file = self._file  # another one may be at the path by now
        file.seek(info.header_offset)
        header = file.read(_HEADER.size)
        if len(header) != _HEADER.size or header[:4] != b"PK\x03\x04":
            raise self._damaged(f"{WEIGHTS} is not where the directory of the file says")
        *_, name_size, extra_size = _HEADER.unpack(header)
        begin = info.header_offset + _HEADER.size + name_size + extra_size
        if begin + info.file_size > os.fstat(file.fileno()).st_size:
            raise self._damaged(f"{WEIGHTS} ends after the end of the file")
        window = _Window(file, begin, info.file_size)
        is_whole = _crc_of(window) == info.CRC
        try:
            reader = self._open.enter_context(H5Reader(self._caller, self.path, window, is_whole))
            reader.check()  # names the array that is damaged
        except OSError as error:
            raise self._damaged(f"{WEIGHTS}: {error}") from error
        if not is_whole:
            raise self._damaged(f"{WEIGHTS} has other bytes than were written: its CRC-32 is not {info.CRC:08x}")
        return reader

    def extract_assets(self, name: str, folder: pathlib.Path) -> bool:
        """Extract the files of a layer to an empty folder; return whether there are any."""
        left, is_any = _MOST_ASSET_BYTES, False
        try:
            for path, opened in self._assets(name):
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                with opened as member, place.open("xb") as file:
                    while chunk := member.read(min(_CHUNK_BYTES, left + 1)):  # whatever is said of its size
                        left -= len(chunk)
                        if left < 0:
                            raise self._damaged(f"assets of more than {_MOST_ASSET_BYTES} bytes")
                        file.write(chunk)
                is_any = True
        except zipfile.BadZipFile as error:
            raise self._damaged(str(error)) from error
        return is_any

    def _assets(self, name: str) -> Iterator[tuple[str, IO[bytes]]]:
        """Yield the paths of the files of a layer, and the files."""
        prefix = f"{_ASSETS}{name}/"
        for info in self._zip.infolist():
            if info.filename.startswith(prefix) and not info.is_dir():
                path = info.filename.removeprefix(prefix)
                if any(part in ("", ".", "..") or set(part) & set("\\:\0") for part in path.split("/")):
                    raise self._damaged(f"a member {info.filename!r}")
                yield path, self._zip.open(info)

    def _begin(self) -> None:
        self._file = self._open.enter_context(open_regular(self.path, follow_links=True))
        self._zip = self._open.enter_context(zipfile.ZipFile(self._file))

    def _has(self, name: str) -> bool:
        return name in self._zip.namelist()

    def _text(self, name: str) -> bytes:
        info = self._member(name)
        if info.file_size > _MOST_JSON_BYTES:
            raise self._damaged(f"{name} has {info.file_size} bytes, more than {_MOST_JSON_BYTES}")
        with self._zip.open(info) as file:
            text = file.read(_MOST_JSON_BYTES + 1)  # whatever the directory says of its size
        if len(text) > _MOST_JSON_BYTES:
            raise self._damaged(f"{name} has more than {_MOST_JSON_BYTES} bytes")
        return text

    def _json(self, name: str) -> Any:
        text = self._text(name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"{name}: {error}") from error

    def _member(self, name: str) -> zipfile.ZipInfo:
        found = [info for info in self._zip.infolist() if info.filename == name]
        if len(found) != 1:
            raise self._damaged(f"{len(found)} members {name!r}")
        return found[0]

    def _damaged(self, given: str) -> ModelError:
        return ModelError(
            f"{self._caller}: {str(self.path)!r} cannot be read as a model of Keras",
            given=given,
            expected=f"a zip with {CONFIG}, {METADATA} and {WEIGHTS}, as model.save writes it",
            fix="check that the file was copied completely, or save the model again with Keras 3",
        )


def write_archive(
    path: pathlib.Path, config: Any, own: Mapping[str, Any], arrays: pathlib.Path, assets: pathlib.Path
) -> None:
    """Write a `.keras` archive: Keras's config, metadata of keras_dist, weights in HDF5, and layer assets."""
    with zipfile.ZipFile(path, "x") as archive:
        for name, text in texts_of(config, own).items():
            archive.writestr(name, text)
        archive.write(arrays, WEIGHTS)
        for file in sorted(assets.rglob("*")):
            if file.is_file():
                archive.write(file, f"{_ASSETS}{file.relative_to(assets).as_posix()}")


def texts_of(config: Any, own: Mapping[str, Any]) -> dict[str, str]:
    """Return the JSON members of an archive, by name; see `write_archive`."""
    date = datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S")
    metadata = {"keras_version": _KERAS_VERSION, "date_saved": date, OWN: own}
    return {METADATA: json.dumps(metadata), CONFIG: json.dumps(config)}


class KerasFolder(KerasArchive):
    """Reader of a folder with the members of a `.keras` archive, with the interface of `KerasArchive`."""

    def arrays(self) -> H5Reader:
        """Open the arrays, after comparing all files with the manifest if keras_dist wrote it."""
        is_listed = (self.path / MANIFEST).is_file() and (bool(self.own) or is_manifest_in(self.path))
        problems = damage_of(self.path, follow_links=True) if is_listed else []
        is_checked = is_listed and not problems
        reader = self._open.enter_context(H5Reader(self._caller, self.path / WEIGHTS, is_checked=is_checked))
        if identity_of(self.path) != self._identity:
            raise overwritten(f"{self._caller}: ", self.path)
        reader.check()  # names the array that is damaged
        if problems:
            raise self._damaged("; ".join(problems))
        return reader

    def _assets(self, name: str) -> Iterator[tuple[str, IO[bytes]]]:
        source = self.path / _ASSETS / name
        if source.exists() and source.resolve() != self.path.resolve() / _ASSETS / name:
            raise self._damaged(f"{str(source)!r} is behind a link")
        for file in sorted(file for file in source.rglob("*") if not file.is_dir()):
            yield str(file.relative_to(source)), cast("IO[bytes]", open_regular(file))

    def _begin(self) -> None:
        """Note which folder it is: files are opened one by one."""
        self._identity = identity_of(self.path)

    def _has(self, name: str) -> bool:
        return (self.path / name).exists()

    def _text(self, name: str) -> bytes:
        return read_regular(self.path / name, follow_links=True)  # of which caches of models consist


def is_keras_folder(path: pathlib.Path) -> bool:
    """Whether a folder contains the members of a `.keras` archive."""
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()


def _crc_of(file: io.RawIOBase) -> int:
    """Return the CRC-32 of a file as zips note it, read a part at a time."""
    checksum = 0
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


class _Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: Any, begin: int, size: int) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = max(min(len(view), self._size - self._at), 0)
        self._file.seek(self._begin + self._at)
        found = self._file.readinto(view[:wanted]) if wanted else 0
        self._at += found
        return found
