"""Arrays by name in `.safetensors` files: in one file or in shards with an index.

safetensors has no checksums. So each array has one, in the metadata, compared as a stream before any weight is set. A
file is written array by array: the header has its final length from the beginning, and its checksums at the end.
An index is moved to its place last, and files of a new save take free names: replacing files under an old index would
leave a mixture that loads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from keras_dist.errors import ModelError, cause, shorten
from keras_dist.saving.drafts import draft_of, writing_to
from keras_dist.saving.locks import alone_in
from keras_dist.saving.regular_files import identity_of, overwritten, read_regular

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_SAVE = "keras_dist_save"
"""Under this name index and files say which save they are of."""

CHECKSUMS = "keras_dist_crc32c"
"""Under this name index and files have a checksum of each array by its name: eight digits of the CRC-32C of a line such
as `float32 (3, 2)` and the bytes of its elements. In files it is a string of JSON, since metadata are strings there."""

_SIZE_BYTES = 8
"""In so many bytes a file says how long its header is."""

_CHUNK_BYTES = 2**20

_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
"""The element types of safetensors by numpy's names."""

_TYPE_NAMES = {name: type_name for type_name, name in _TYPES.items()}
_ALIGNMENT = 8  # [bytes]

_CHECKSUM_DIGITS = 8

Fetch = Callable[[str], Iterable[np.ndarray]]
"""Returns the array of a name, in parts along its first dim."""

Arrays = Mapping[str, Any]
"""Arrays by name, or whatever else has their `shape` and `dtype`."""

Groups = Sequence[Sequence[str]]
"""The names of the arrays of each file."""


def grouped(sizes: Mapping[str, int], max_bytes: float | None) -> list[list[str]]:
    """Split names into consecutive groups of at most `max_bytes`; a larger array is a group by itself."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if max_bytes is not None and groups[-1] and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


@dataclasses.dataclass(frozen=True)
class _Entry:
    """The entry of an array in the header of a file.

    Attributes:
        file: the file that contains the array.
        offset: the byte at which the elements begin.
        shape: shape of the array.
        type_name: dtype in the terms of safetensors.
        checksums: checksums in the file and in the index; empty if another program wrote them.
        identity: identity of the file, to detect its replacement.
    """

    file: pathlib.Path
    offset: int
    shape: tuple[int, ...]
    type_name: str
    checksums: frozenset[str] = frozenset()
    identity: tuple[int, ...] | None = None


class TensorReader:
    """Reader of the arrays in a file, or in the shards of an index. The constructor checks the headers.

    Args:
        caller: name of the caller in error messages.
        path: a file or an index; if the file does not exist, the index beside it is used.

    Attributes:
        caller: name of the caller in error messages.
        path: path of the file or index that is read.
        shapes: the shape of each array.
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
        dtype = self.dtype(name)
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
        dtype = self.dtype(name)
        checksum, left = checksum_begun(dtype, entry.shape), math.prod(entry.shape) * dtype.itemsize
        with entry.file.open("rb") as file:
            file.seek(entry.offset)
            while chunk := file.read(min(left, _CHUNK_BYTES)):
                checksum, left = google_crc32c.extend(checksum, chunk), left - len(chunk)
        return _digits(checksum)

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements of an array in small chunks."""
        elements = self.view(name).reshape(-1)
        for begin in range(0, elements.size, _CHUNK_BYTES):
            yield elements[begin : begin + _CHUNK_BYTES]

    def are_equal(self, name: str, other: str) -> bool:
        """Whether two arrays have the same shape, element type and bytes, compared a small part at a time."""
        if self.shapes[name] != self.shapes[other] or self.dtype(name) != self.dtype(other):
            return False
        both = zip(self.parts(name), self.parts(other), strict=True)
        return all(np.array_equal(one.view(np.uint8), two.view(np.uint8)) for one, two in both)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array."""
        entry = self._entries[name]
        if entry.type_name not in _TYPES:
            raise self._damaged(f"{name!r} in {entry.file.name!r} has elements {entry.type_name!r}, which numpy lacks")
        return jnp.dtype(_TYPES[entry.type_name])

    def _indexed(self) -> dict[str, _Entry]:
        index = self._read_index()
        recorded = _mapping(index.get("metadata"))
        save, checksums = recorded.get(_SAVE), _mapping(recorded.get(CHECKSUMS))
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
            if save is not None and metadata.get(_SAVE) != save:
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
        weight_map = _mapping(index).get("weight_map")
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
                size = int.from_bytes(opened.read(_SIZE_BYTES), "little")
                header = json.loads(opened.read(size))
            metadata = header.pop("__metadata__", None) or {}
            checksums = json.loads(metadata[CHECKSUMS]) if CHECKSUMS in metadata else None
            entries = {
                name: _Entry(
                    file,
                    _SIZE_BYTES + size + recorded["data_offsets"][0],
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


class TensorWriter:
    """Writer of arrays to one file, or to one shard per group of names with an index.

    Existing files at the path stay until `commit` replaces them, the index last. The context manager removes what was
    not committed.

    Args:
        caller: name of the caller in error messages.
        path: of the file, or of the files with an index beside it.
        arrays: shapes and dtypes.
        groups: names of the arrays of each file.
        metadata: further entries of the header.
        documents: texts by the names of files beside the path, which replace such files.
    """

    def __init__(
        self,
        caller: str,
        path: pathlib.Path,
        arrays: Arrays,
        groups: Groups,
        metadata: Mapping[str, str] | None = None,
        documents: Mapping[str, str] | None = None,
    ) -> None:
        self._caller, self._path, self._arrays, self._groups = caller, path, arrays, groups
        self._metadata, self._documents = dict(metadata or {}), dict(documents or {})
        self._save = uuid.uuid4().hex
        self._open = contextlib.ExitStack()
        self._folder: pathlib.Path | None = None
        self._checksums: dict[str, str] = {}

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def write(self, number: int, fetch: Fetch) -> None:
        """Write the arrays of one group beside the place; `fetch` is called for one after the other."""
        metadata = self._metadata | ({_SAVE: self._save} if len(self._groups) > 1 else {})
        arrays = {name: self._arrays[name] for name in self._groups[number]}
        draft = self._draft() / str(number)
        self._checksums |= write_file(self._caller, draft, arrays, fetch, self._path, metadata)

    def commit(self) -> None:
        """Move the drafts to their final paths, and remove the files of an earlier save. Other writers wait."""
        index = index_path(self._path)
        drafts = [self._draft() / str(number) for number in range(len(self._groups))]
        with alone_in(self._path.parent):
            outdated = [file for file in _files_of(self._path) if file.exists()]
            if len(self._groups) == 1:
                places, outdated = [self._path], [index, *outdated]
            else:
                files = _free_files(self._path, len(self._groups))
                drafts.append(self._draft() / "index")
                drafts[-1].write_text(self._index_of(files))
                places, outdated = [*files, index], [self._path, *outdated]
            _move(drafts, places)
            for name, text in self._documents.items():
                draft = self._draft() / "document"
                draft.write_text(text, encoding="utf-8")
                os.replace(draft, self._path.with_name(name))
            for file in outdated:
                file.unlink(missing_ok=True)

    def _draft(self) -> pathlib.Path:
        """The folder where the files are until `commit`, made when it is first needed."""
        if self._folder is None:
            self._folder = self._open.enter_context(draft_of(self._path))
        return self._folder

    def _index_of(self, files: Sequence[pathlib.Path]) -> str:
        """Return the content of the index of these files."""
        weight_map = {name: file.name for file, names in zip(files, self._groups, strict=True) for name in names}
        total = sum(map(nbytes, self._arrays.values()))
        metadata = {"total_size": total, _SAVE: self._save, CHECKSUMS: self._checksums}
        return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2) + "\n"


def write_file(
    caller: str,
    file: pathlib.Path,
    arrays: Arrays,
    fetch: Fetch,
    place: pathlib.Path,
    metadata: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write arrays, one after the other, to a new file with their checksums; errors name the final `place`."""
    unsupported = [f"{name} of {array.dtype}" for name, array in arrays.items() if array.dtype.name not in _TYPE_NAMES]
    if unsupported:
        summary = f"{caller}: {str(place)!r} cannot be written: safetensors lacks the element type"
        raise ModelError(summary, given=shorten(unsupported), fix="build the model with another dtype")
    checksums = dict.fromkeys(arrays, "0" * _CHECKSUM_DIGITS)
    header, offsets = _header_of(arrays, metadata, checksums)
    with writing_to(place), file.open("wb") as opened:
        for name in arrays:
            checksum, written = checksum_begun(arrays[name].dtype, arrays[name].shape), 0
            opened.seek(len(header) + offsets[name])
            for part in fetch(name):
                elements = np.asarray(part, arrays[name].dtype, order="C").reshape(-1).view(np.uint8)
                checksum, written = google_crc32c.extend(checksum, elements), written + opened.write(elements.data)
            if written != nbytes(arrays[name]):
                raise ValueError(f"{name!r} has {written} bytes, not {nbytes(arrays[name])}")
            checksums[name] = _digits(checksum)
        opened.seek(0)
        opened.write(_header_of(arrays, metadata, checksums)[0])
        opened.truncate(len(header) + sum(map(nbytes, arrays.values())))
    return checksums


def _header_of(
    arrays: Arrays, metadata: Mapping[str, str] | None, checksums: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the beginning of a file, and after how many bytes behind it each array begins.

    Large element types are first, so that all are aligned.
    """
    noted: dict[str, Any] = {"__metadata__": {**(metadata or {}), CHECKSUMS: json.dumps(checksums)}}
    offsets: dict[str, int] = {}
    end = 0
    for name in sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize):
        array, begin = arrays[name], end
        end += nbytes(array)
        offsets[name] = begin
        type_name = _TYPE_NAMES[array.dtype.name]
        noted[name] = {"dtype": type_name, "shape": [*array.shape], "data_offsets": [begin, end]}
    header = json.dumps(noted, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(_SIZE_BYTES, "little") + header, offsets


def nbytes(array: Any) -> int:
    """Return the size of an array in bytes."""
    return math.prod(array.shape) * array.dtype.itemsize


def in_parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield small parts of an array along its first dim."""
    if array.ndim:
        rows = max(1, _CHUNK_BYTES // max(1, math.prod(array.shape[1:])))
        yield from (array[begin : begin + rows] for begin in range(0, len(array), rows))
    else:
        yield array


def in_memory_order(array: np.ndarray) -> tuple[int, ...]:
    """Return the dims of an array, those with the longest strides first."""
    return tuple(sorted(range(array.ndim), key=lambda dim: (array.shape[dim] > 1, -array.strides[dim])))


def fetched(names: Sequence[str], fetch: Callable[[str], Any]) -> dict[str, np.ndarray]:
    """Copy arrays to the host in C order, which the format requires and does not check."""
    return {name: np.asarray(fetch(name), order="C") for name in names}


def checksum_of(array: np.ndarray) -> str:
    """Return the checksum of an array in C order."""
    begun = checksum_begun(array.dtype, array.shape)
    return _digits(google_crc32c.extend(begun, array.reshape(-1).view(np.uint8)))


def _digits(checksum: int) -> str:
    return f"{checksum:0{_CHECKSUM_DIGITS}x}"


def checksum_begun(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the checksum of dtype and shape, to be continued with the elements."""
    return google_crc32c.value(f"{dtype.name} {shape}".encode())


def _move(drafts: Sequence[pathlib.Path], places: Sequence[pathlib.Path]) -> None:
    """Move files to their places, only the last of which may be taken; move none if one fails."""
    try:
        for draft, place in zip(drafts, places, strict=True):
            os.replace(draft, place)
    finally:
        if drafts[-1].exists():  # Ctrl-C may come after the last move, too
            for place in places[:-1]:
                place.unlink(missing_ok=True)


def index_path(path: pathlib.Path) -> pathlib.Path:
    """Return the path of the index of sharded files, given the path of the file."""
    return path.with_name(path.name.removesuffix(SUFFIX) + INDEX_SUFFIX)


def _files_of(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the files that the index of a path names, without those that a `TensorWriter` did not name."""
    index = index_path(path)
    try:
        named = _mapping(_mapping(json.loads(read_regular(index, follow_links=True))).get("weight_map")).values()
    except (OSError, ValueError, RecursionError):
        return []
    pattern = re.compile(re.escape(_stem(path)) + r"(\.\d+)?-\d{5,}-of-\d{5,}" + re.escape(SUFFIX))
    return sorted({path.with_name(name) for name in named if isinstance(name, str) and pattern.fullmatch(name)})


def _free_files(path: pathlib.Path, count: int) -> list[pathlib.Path]:
    """Return paths for `count` new files: the last save stays until the new one is complete."""
    stems = (_stem(path) + (f".{version}" if version > 1 else "") for version in itertools.count(1))
    named = ([f"{stem}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1)] for stem in stems)
    candidates = ([path.with_name(name) for name in names] for names in named)
    return next(files for files in candidates if not any(map(os.path.lexists, files)))


def _stem(path: pathlib.Path) -> str:
    return path.name.removesuffix(SUFFIX)


def _is_plain_name(file: str) -> bool:
    """Whether this is the name of a file, and leads to no other folder."""
    return file not in ("", ".", "..") and not set(file) & set("/\\:\0")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
