"""`TensorReader`: arrays by name from `.safetensors` files of any program."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from keras_dist.errors import ModelError, cause, shorten
from keras_dist.files.regular_files import identity_of, overwritten, read_regular
from keras_dist.files.tensor_format import (
    CHECKSUMS,
    CHUNK_BYTES,
    INDEX_SUFFIX,
    SAVE,
    SIZE_BYTES,
    TYPES,
    checksum_begun,
    digits,
    index_path,
    mapping,
)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """The entry of an array in the header of a file."""

    file: pathlib.Path  # the file that contains the array
    offset: int  # the byte at which the elements begin
    shape: tuple[int, ...]  # shape of the array
    type_name: str  # dtype in the terms of safetensors
    # checksums in the file and in the index; empty if another program wrote them
    checksums: frozenset[str] = frozenset()
    identity: tuple[int, ...] | None = None  # identity of the file, to detect its replacement


class TensorReader:
    """Reader of the arrays in a file, or in the shards of an index. The constructor checks the headers.

    If the file does not exist, the index beside it is read.
    """

    def __init__(self, caller: str, path: pathlib.Path) -> None:
        index = path if path.name.endswith(INDEX_SUFFIX) else index_path(path)
        is_index = path == index or (not path.exists() and index.exists())
        self.path = index if is_index else path
        self.caller = caller
        identity = identity_of(self.path)
        try:
            self._entries = self._indexed() if is_index else self._header(path)[0]
        except (ModelError, FileNotFoundError) as error:
            if identity_of(self.path) == identity:
                raise
            raise overwritten(f"{caller}: ", self.path) from error
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}

    def lacks_checksums(self, names: Iterable[str]) -> bool:
        """Whether any of these arrays has no checksum."""
        return any(not self._entries[name].checksums for name in names)

    def check(self, names: Iterable[str]) -> None:
        """Compare arrays with their checksums, in small chunks."""
        for name in names:
            entry = self._entries[name]
            if not entry.checksums:
                continue
            try:
                found = self._checksum(name)
            finally:
                self._check_same(entry)
            if entry.checksums != {found}:
                recorded = " and ".join(sorted(entry.checksums))
                raise self._damaged(f"{name!r} in {entry.file.name!r} has the checksum {found}, not {recorded}")

    def view(self, name: str) -> np.ndarray:
        """Return a read-only, memory-mapped array; only accessed parts are read from disk."""
        entry = self._entries[name]
        dtype = self._stored_dtype(name)
        if not math.prod(entry.shape):
            return np.empty(entry.shape, dtype)
        try:
            found = np.asarray(np.memmap(entry.file, dtype, "r", entry.offset, entry.shape))
            self._check_same(entry)
            return found
        except (ValueError, FileNotFoundError) as error:
            self._check_same(entry)
            raise self._damaged(f"{name!r} in {entry.file.name!r}: {error}") from error

    def read(self, name: str, index: Any = ()) -> np.ndarray:
        """Read the slice `index` of the array `name`, without comparing its checksum."""
        return np.array(self.view(name)[index])

    def read_checked(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Read arrays completely, and compare their checksums."""
        self.check(names)
        return {name: self.read(name) for name in names}

    def _check_same(self, entry: _Entry) -> None:
        """Check that a file is still the one whose header was read."""
        if identity_of(entry.file) != entry.identity:
            raise overwritten(f"{self.caller}: ", self.path)

    def _checksum(self, name: str) -> str:
        entry = self._entries[name]
        dtype = self._stored_dtype(name)
        checksum, left = checksum_begun(dtype, entry.shape), math.prod(entry.shape) * dtype.itemsize
        with entry.file.open("rb") as file:
            file.seek(entry.offset)
            while chunk := file.read(min(left, CHUNK_BYTES)):
                checksum, left = google_crc32c.extend(checksum, chunk), left - len(chunk)
        return digits(checksum)

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements of an array in small chunks."""
        elements = self.view(name).reshape(-1)
        for begin in range(0, elements.size, CHUNK_BYTES):
            yield elements[begin : begin + CHUNK_BYTES]

    def are_equal(self, name: str, other: str) -> bool:
        """Whether two arrays have the same shape, element type and bytes, compared a small part at a time."""
        if self.shapes[name] != self.shapes[other] or self.dtype(name) != self.dtype(other):
            return False
        both = zip(self.parts(name), self.parts(other), strict=True)
        return all(np.array_equal(one.view(np.uint8), two.view(np.uint8)) for one, two in both)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array."""
        return self._stored_dtype(name)

    def _stored_dtype(self, name: str) -> np.dtype[Any]:
        entry = self._entries[name]
        if entry.type_name not in TYPES:
            raise self._damaged(f"{name!r} in {entry.file.name!r} has elements {entry.type_name!r}, which numpy lacks")
        return jnp.dtype(TYPES[entry.type_name])

    def _indexed(self) -> dict[str, _Entry]:
        index = self._read_index()
        recorded = mapping(index.get("metadata"))
        save, checksums = recorded.get(SAVE), mapping(recorded.get(CHECKSUMS))
        entries: dict[str, _Entry] = {}
        by_file: dict[str, list[str]] = {}
        for name, file in index["weight_map"].items():
            by_file.setdefault(file, []).append(name)
        missing = [file for file in by_file if not (self.path.parent / file).exists()]
        if missing:
            raise self._damaged(f"{', '.join(map(repr, missing))} {'are' if len(missing) > 1 else 'is'} missing")
        for file, names in by_file.items():
            found, metadata = self._header(self.path.parent / file)
            lacking = sorted(set(names) - set(found))
            if lacking:
                raise self._damaged(f"{file!r} lacks {shorten(lacking)}")
            if save is not None and metadata.get(SAVE) != save:
                raise self._damaged(f"{file!r} is of another save")
            for name in names:
                both = found[name].checksums | ({str(checksums[name])} if name in checksums else set())
                entries[name] = dataclasses.replace(found[name], checksums=both)
        return entries

    def _read_index(self) -> dict[str, Any]:
        """Read the index."""
        self._check_regular(self.path)
        try:
            index = json.loads(read_regular(self.path, follow_links=True))
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(cause(error)) from error
        weight_map = mapping(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise self._damaged("no 'weight_map' from names of weights to names of files")
        elsewhere = sorted({file for file in weight_map.values() if not _is_plain_name(file)})
        if elsewhere:
            raise self._damaged(f"files that are not in its folder: {shorten(elsewhere)}")
        return index

    def _header(self, file: pathlib.Path) -> tuple[dict[str, _Entry], dict[str, str]]:
        """Return the entries of the arrays in a file, and its metadata."""
        self._check_regular(file)
        identity = identity_of(file)
        try:
            with safe_open(file, framework="np"):
                pass  # compares sizes and places of all arrays with the file
            with file.open("rb") as opened:
                size = int.from_bytes(opened.read(SIZE_BYTES), "little")
                header = json.loads(opened.read(size))
            metadata = header.pop("__metadata__", None) or {}
            checksums = json.loads(metadata[CHECKSUMS]) if CHECKSUMS in metadata else None
            entries = {
                name: _Entry(
                    file,
                    SIZE_BYTES + size + recorded["data_offsets"][0],
                    tuple(recorded["shape"]),
                    recorded["dtype"],
                    frozenset() if checksums is None else frozenset({str(checksums[name])}),
                    identity,
                )
                for name, recorded in header.items()
            }
        except KeyError as error:
            raise self._damaged(f"{file.name!r} has no checksum of {error}") from error
        except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged(f"{file.name!r}: {error}") from error
        return entries, metadata

    def _check_regular(self, file: pathlib.Path) -> None:
        """Check that the file is a regular one, or missing: a device or a pipe may be read for ever."""
        if file.exists() and not file.is_file():
            raise self._damaged(f"{file.name!r} is not a regular file")

    def _damaged(self, given: str) -> ModelError:
        fix = "check that the file was copied completely"
        return ModelError(f"{self.caller}: {str(self.path)!r} cannot be read", given=given, fix=fix)


def _is_plain_name(file: str) -> bool:
    """Whether this is the name of a file, and leads to no other folder."""
    return file not in ("", ".", "..") and not set(file) & set("/\\:\0")
