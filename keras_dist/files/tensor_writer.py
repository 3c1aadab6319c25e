"""`TensorWriter`: arrays by name to `.safetensors` files.

A file is written array by array: the header has its final length from the beginning, and its checksums at the end. An
index is moved to its place last, and files of a new save take free names: replacing files under an old index would
leave a mixture that loads.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from keras_dist.errors import ModelError, shorten
from keras_dist.files.drafts import draft_of, writing_to
from keras_dist.files.locks import alone_in
from keras_dist.files.regular_files import read_regular
from keras_dist.files.tensor_format import (
    ALIGNMENT,
    CHECKSUM_DIGITS,
    CHECKSUMS,
    SAVE,
    SIZE_BYTES,
    SUFFIX,
    TYPE_NAMES,
    checksum_begun,
    digits,
    index_path,
    mapping,
    nbytes,
    stem,
)

Fetch = Callable[[str], Iterable[np.ndarray]]  # returns the array of a name, in parts along its first dim
Arrays = Mapping[str, Any]  # arrays by name, or whatever else has their `shape` and `dtype`
Groups = Sequence[Sequence[str]]  # the names of the arrays of each file


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


class TensorWriter:
    """Writer of arrays to one file, or to one shard per group of names with an index.

    Existing files at the path stay until `commit` replaces them, the index last. The context manager removes what was
    not committed. `documents` are texts by the names of files beside the path, which they replace.
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
        metadata = self._metadata | ({SAVE: self._save} if len(self._groups) > 1 else {})
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
                drafts[-1].write_text(self._index_of(files), "utf-8")
                places, outdated = [*files, index], [self._path, *outdated]
            documents = {self._draft() / f"document-{name}": text for name, text in self._documents.items()}
            for draft, text in documents.items():  # all is written before anything is moved: the disk may be full
                draft.write_text(text, encoding="utf-8")
            _move(drafts, places)
            for draft, name in zip(documents, self._documents, strict=True):
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
        metadata = {"total_size": total, SAVE: self._save, CHECKSUMS: self._checksums}
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
    unsupported = [f"{name} of {array.dtype}" for name, array in arrays.items() if array.dtype.name not in TYPE_NAMES]
    if unsupported:
        summary = f"{caller}: {str(place)!r} cannot be written: safetensors lacks the element type"
        raise ModelError(summary, given=shorten(unsupported), fix="build the model with another dtype")
    checksums = dict.fromkeys(arrays, "0" * CHECKSUM_DIGITS)
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
            checksums[name] = digits(checksum)
        opened.seek(0)
        opened.write(_header_of(arrays, metadata, checksums)[0])
        opened.truncate(len(header) + sum(map(nbytes, arrays.values())))
    return checksums


def _header_of(
    arrays: Arrays, metadata: Mapping[str, str] | None, checksums: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the beginning of a file, and after how many bytes behind it each array begins; large types come first."""
    noted: dict[str, Any] = {"__metadata__": {**(metadata or {}), CHECKSUMS: json.dumps(checksums)}}
    offsets: dict[str, int] = {}
    end = 0
    for name in sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize):
        array, begin = arrays[name], end
        end += nbytes(array)
        offsets[name] = begin
        type_name = TYPE_NAMES[array.dtype.name]
        noted[name] = {"dtype": type_name, "shape": [*array.shape], "data_offsets": [begin, end]}
    header = json.dumps(noted, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    return len(header).to_bytes(SIZE_BYTES, "little") + header, offsets


def _move(drafts: Sequence[pathlib.Path], places: Sequence[pathlib.Path]) -> None:
    """Move files to their places, only the last of which may be taken; move none if one fails."""
    try:
        for draft, place in zip(drafts, places, strict=True):
            os.replace(draft, place)
    finally:
        if drafts[-1].exists():  # Ctrl-C may come after the last move, too
            for place in places[:-1]:
                place.unlink(missing_ok=True)


def _files_of(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the files that the index of a path names, without those that a `TensorWriter` did not name."""
    index = index_path(path)
    try:
        named = mapping(mapping(json.loads(read_regular(index, follow_links=True))).get("weight_map")).values()
    except (OSError, ValueError, RecursionError):
        return []
    pattern = re.compile(re.escape(stem(path)) + r"(\.\d+)?-\d{5,}-of-\d{5,}" + re.escape(SUFFIX))
    return sorted({path.with_name(name) for name in named if isinstance(name, str) and pattern.fullmatch(name)})


def _free_files(path: pathlib.Path, count: int) -> list[pathlib.Path]:
    """Return paths for `count` new files: the last save stays until the new one is complete."""
    stems = (stem(path) + (f".{version}" if version > 1 else "") for version in itertools.count(1))
    named = ([f"{stem}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1)] for stem in stems)
    candidates = ([path.with_name(name) for name in names] for names in named)
    return next(files for files in candidates if not any(map(os.path.lexists, files)))
