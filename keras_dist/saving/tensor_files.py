"""Arrays by name in `.safetensors` files: in one, or in several beside an index that names them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_dist.errors import ModelError, shorten
from keras_dist.saving.drafts import alone_in, draft_of
from keras_dist.saving.regular_files import open_regular, read_regular

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_SAVE = "keras_dist_save"
"""Under this name index and files say which save they are of."""

Groups = Sequence[Sequence[str]]
"""The names of the arrays of each file."""


def grouped(sizes: Mapping[str, int], max_bytes: float | None) -> list[list[str]]:
    """The names in their order, in groups of at most `max_bytes`; what is larger than that is a group of its own.

    Args:
        sizes: bytes of each array.
        max_bytes: None for one group.
    """
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if max_bytes is not None and groups[-1] and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


class TensorReader:
    """The arrays in a file, or in those that an index names. Making it checks all files, and reads no array.

    Args:
        caller: how errors call what reads.
        path: a file, or an index; of a file that is not there the index beside it.

    Attributes:
        path: what is read: the file or the index.
        shapes: the shape of each array.

    Raises:
        ModelError: a file is damaged, is missing, lacks what the index says, or is of another save than the index.
        FileNotFoundError: there is neither file nor index.
    """

    def __init__(self, caller: str, path: pathlib.Path) -> None:
        index = path if path.name.endswith(INDEX_SUFFIX) else index_path(path)
        is_index = path == index or (not path.exists() and index.exists())
        self.path = index if is_index else path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._caller = caller
        self._complex: set[str] = set()
        self._files = self._indexed() if is_index else self._listed(path)

    def is_complex(self, name: str) -> bool:
        """Whether the elements of an array have an imaginary part."""
        return name in self._complex

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The arrays of these names."""
        values: dict[str, np.ndarray] = {}
        for file in {self._files[name]: None for name in names}:
            with self._opened(file) as opened:
                values |= {name: opened.get_tensor(name) for name in names if self._files[name] == file}
        return values

    def _listed(self, file: pathlib.Path) -> dict[str, pathlib.Path]:
        with self._opened(file) as opened:
            return dict.fromkeys(self._noted(opened, opened.keys()), file)

    def _indexed(self) -> dict[str, pathlib.Path]:
        index = self._read_index()
        folder, save = self.path.parent, _mapping(index.get("metadata")).get(_SAVE)
        files: dict[str, pathlib.Path] = {}
        by_file: dict[str, list[str]] = {}
        for name, file in index["weight_map"].items():
            by_file.setdefault(file, []).append(name)
        for file, names in by_file.items():
            try:
                with self._opened(folder / file) as opened:
                    self._check_file(file, names, opened, save)
                    files |= dict.fromkeys(self._noted(opened, names), folder / file)
            except FileNotFoundError as error:
                raise self._damaged(f"{file!r} is missing") from error
        return files

    def _read_index(self) -> dict[str, Any]:
        """What the index says.

        Raises:
            ModelError: it is no index, or names files elsewhere.
        """
        try:
            index = json.loads(read_regular(self.path, follow_links=True))
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error
        weight_map = _mapping(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise self._damaged("no 'weight_map' from names of weights to names of files")
        elsewhere = sorted({file for file in weight_map.values() if not _is_plain_name(file)})
        if elsewhere:
            raise self._damaged(f"files that are not in its folder: {shorten(elsewhere)}")
        return index

    def _check_file(self, file: str, names: Sequence[str], opened: Any, save: Any) -> None:
        lacking = sorted(set(names) - set(opened.keys()))
        if lacking:
            raise self._damaged(f"{file!r} lacks {shorten(lacking)}")
        found = (opened.metadata() or {}).get(_SAVE)
        if save is not None and found != save:
            raise self._damaged(f"{file!r} is of another save")

    def _noted(self, opened: Any, names: Sequence[str]) -> list[str]:
        for name in names:
            view = opened.get_slice(name)
            self.shapes[name] = tuple(view.get_shape())
            if view.get_dtype().startswith("C"):
                self._complex.add(name)
        return list(names)

    @contextlib.contextmanager
    def _opened(self, file: pathlib.Path) -> Iterator[Any]:
        open_regular(file, follow_links=True).close()  # Hugging Face's cache has links; pipes have no end
        try:
            with safe_open(file, framework="np") as opened:
                yield opened
        except (SafetensorError, AttributeError, TypeError) as error:  # the latter for elements that numpy lacks
            raise self._damaged(f"{file.name!r}: {error}") from error

    def _damaged(self, given: str) -> ModelError:
        return ModelError(
            f"{self._caller}: {str(self.path)!r} cannot be read",
            given=given,
            expected="a file that model.save_weights, or safetensors, wrote"
            if self.path.name.endswith(SUFFIX)
            else "an index in Hugging Face's form, and beside it the files that it names",
            fix="check that all was copied whole",
        )


class TensorWriter:
    """Writes arrays to a file, or to several and an index, whichever number of groups there is.

    What is at the path stays whole until `commit`, and goes then: an index is put in its place last. Use it in a `with`
    statement, which removes what was not committed.

    Args:
        caller: how errors call what writes.
        path: ends in `.safetensors`.
        sizes: bytes of each array.
        groups: the names of the arrays of each file.
    """

    def __init__(self, caller: str, path: pathlib.Path, sizes: Mapping[str, int], groups: Groups) -> None:
        self._caller, self._path, self._sizes, self._groups = caller, path, sizes, groups
        self._save = uuid.uuid4().hex
        self._open = contextlib.ExitStack()
        self._folder: pathlib.Path | None = None

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def write(self, number: int, arrays: dict[str, np.ndarray]) -> None:
        """Write the arrays of one group beside the place.

        Raises:
            ModelError: an array has an element type that the format does not know.
            OSError: the file cannot be written.
        """
        metadata = {_SAVE: self._save} if len(self._groups) > 1 else None
        write_file(self._caller, self._draft() / str(number), arrays, self._path, metadata)

    def commit(self) -> None:
        """Put all files, which are written, in their places, and remove those of the save before.

        Others who write to the same place wait for it: the names of files are taken by one after the other.

        Raises:
            OSError: that cannot be done; what was there before still is.
        """
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
            for file in outdated:
                file.unlink(missing_ok=True)

    def _draft(self) -> pathlib.Path:
        """The folder where the files are until then; processes that write none make none."""
        if self._folder is None:
            self._folder = self._open.enter_context(draft_of(self._path))
        return self._folder

    def _index_of(self, files: Sequence[pathlib.Path]) -> str:
        """The content of the index of these files."""
        weight_map = {name: file.name for file, names in zip(files, self._groups, strict=True) for name in names}
        metadata = {"total_size": sum(self._sizes.values()), _SAVE: self._save}
        return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2) + "\n"


def write_file(
    caller: str,
    file: pathlib.Path,
    arrays: dict[str, np.ndarray],
    place: pathlib.Path,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write arrays to one file.

    Args:
        caller: how errors call what writes.
        file: where nothing is yet.
        arrays: by name, with their elements in C order.
        place: how errors call the file.
        metadata: what else is noted in it.

    Raises:
        ModelError: an array has an element type that the format does not know.
        OSError: the file cannot be written.
    """
    file.touch()  # where that cannot be written, Python's error says why
    mode = file.stat().st_mode
    try:
        save_file(arrays, file, metadata)
    except SafetensorError as error:
        raise ModelError(
            f"{caller}: {str(place)!r} cannot be written",
            given=str(error),
            expected="element types that safetensors knows, and room on the disk",
            fix="build the model with another dtype, or free space",
        ) from error
    file.chmod(mode)  # safetensors leaves a file that only its owner may read


def fetched(names: Sequence[str], fetch: Callable[[str], Any]) -> dict[str, np.ndarray]:
    """The arrays with their elements in C order: the format wants them so, and takes others without a word."""
    return {name: np.asarray(fetch(name), order="C") for name in names}


def _move(drafts: Sequence[pathlib.Path], places: Sequence[pathlib.Path]) -> None:
    """Move files to their places, only the last of which may be taken. Where something fails, none is there."""
    try:
        for draft, place in zip(drafts, places, strict=True):
            os.replace(draft, place)
    finally:
        if drafts[-1].exists():  # Ctrl-C may come after the last move, too
            for place in places[:-1]:
                place.unlink(missing_ok=True)


def index_path(path: pathlib.Path) -> pathlib.Path:
    """The index that belongs to the path of a file."""
    return path.with_name(path.name.removesuffix(SUFFIX) + INDEX_SUFFIX)


def _files_of(path: pathlib.Path) -> list[pathlib.Path]:
    """The files that the index of a path names, as far as a `TensorWriter` named them."""
    index = index_path(path)
    try:
        named = _mapping(_mapping(json.loads(read_regular(index, follow_links=True))).get("weight_map")).values()
    except (OSError, ValueError, RecursionError):
        return []
    pattern = re.compile(re.escape(_stem(path)) + r"(\.\d+)?-\d{5,}-of-\d{5,}" + re.escape(SUFFIX))
    return sorted({path.with_name(name) for name in named if isinstance(name, str) and pattern.fullmatch(name)})


def _free_files(path: pathlib.Path, count: int) -> list[pathlib.Path]:
    """Names for so many files, none of which is there: those of an earlier save stay until the new one is whole."""
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
