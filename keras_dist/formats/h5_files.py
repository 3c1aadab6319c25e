"""Arrays in HDF5 files in the format of Keras, read in chunks and written one by one."""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import jax.numpy as jnp
import numpy as np

from keras_dist._support.extras import import_extra
from keras_dist.errors import KerasDistError, ModelError, cause, shorten
from keras_dist.files.regular_files import open_regular, read_regular
from keras_dist.files.tensor_format import CHECKSUMS, checksum_begun, checksum_of

H5_SUFFIX, WEIGHTS_SUFFIX, INDEX_SUFFIX = ".h5", ".weights.h5", ".weights.json"

_MOST_OBJECTS, _DEEPEST = 2**20, 64
"""The largest number of arrays in a file, and the largest depth of groups."""

_FILTERS = frozenset({1, 2, 3, 4})
"""Filters that HDF5 itself has: deflate, shuffle, checksum, szip. For others it would load code from the system."""

_MOST_CHUNK_BYTES = 2**30

_MOST_DEFLATED = 1032  # the largest ratio of deflate

_BFLOAT16 = "bfloat16"

_PART_BYTES = 2**22  # largest part of an array held in memory while its checksum is compared [bytes]


class H5Reader:
    """Reader of the arrays in an HDF5 file, or in the shards of a Keras index. A context manager.

    The constructor reads names, such as `layers/dense/vars/0`, shapes and dtypes of all arrays. It rejects links out of
    the file. `path` is a file, an index that ends in `.weights.json`, or the archive whose member is `opened`.
    """

    def __init__(self, caller: str, path: pathlib.Path, opened: Any = None, is_checked: bool = False) -> None:
        self.caller, self.path, self._is_checked = caller, path, is_checked
        self._h5py = import_extra("h5py", "h5", "reading a file of HDF5")
        self._files: list[Any] = []
        self._arrays: dict[str, Any] = {}
        self._seen: set[tuple[int, int]] = set()
        try:
            if opened is not None:
                self._add(self._h5py.File(opened, "r"))
            elif path.name.endswith(".json"):
                for name in _files_in(self, path):
                    self._add(self._opened(path.with_name(name)))
            else:
                self._add(self._opened(path))
        except (FileNotFoundError, KerasDistError):
            self.close()
            raise
        except Exception as error:  # h5py raises many kinds of errors for damaged files
            self.close()
            raise self.damaged(cause(error)) from error
        self.shapes = {name: tuple(array.shape) for name, array in self._arrays.items()}

    def __enter__(self) -> H5Reader:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def lacks_checksums(self, names: Iterable[str]) -> bool:
        """Whether damage would go undetected, because another program wrote the file."""
        del names  # a file has checksums of all arrays or of none
        try:
            return not self._is_checked and not any(CHECKSUMS in array.attrs for array in self._arrays.values())
        except Exception as error:  # h5py raises many kinds of errors for damaged files
            raise self.damaged(cause(error)) from error

    def check(self, names: Iterable[str] = ()) -> None:
        """Compare all arrays with their checksums, in small chunks; `names` is ignored."""
        if self._is_checked or self.lacks_checksums(names):
            return
        for name, array in self._arrays.items():
            self._check_held(name, array)
            try:
                recorded, found = array.attrs.get(CHECKSUMS), self._checksum(array)
            except Exception as error:  # h5py raises many kinds of errors for damaged files
                raise self.damaged(f"{name!r}: {type(error).__name__}: {error}") from error
            if recorded is None:
                raise self._rewritten(name)
            if recorded != found.encode():
                raise self.damaged(f"the array {name!r} has the checksum {found}, not {shorten(recorded)}")
        self._is_checked = True

    def _checksum(self, array: Any) -> str:
        checksum = checksum_begun(_dtype(array), array.shape)
        for index in _parts(array.shape, array.dtype.itemsize):
            part = np.asarray(array[index], order="C")
            checksum = google_crc32c.extend(checksum, part.reshape(-1).view(np.uint8))
        return f"{checksum:08x}"

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of an array."""
        return _dtype(self._arrays[name])

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements of an array in small chunks."""
        array = self._arrays[name]
        self._check_held(name, array)
        yield from (self.read(name, index) for index in _parts(array.shape, array.dtype.itemsize))

    def read(self, name: str, index: Any = ()) -> np.ndarray:
        """Read the slice `index` of the array `name`."""
        array = self._arrays[name]
        if index == ():
            self._check_held(name, array)
        try:
            found = np.asarray(array[index])
        except Exception as error:  # h5py raises many kinds of errors for damaged files
            raise self.damaged(f"{name!r}: {type(error).__name__}: {error}") from error
        return found.view(jnp.bfloat16) if _is_bfloat16(array) else found

    def most_bytes(self) -> int:
        """Return an upper bound of the bytes of all arrays in the file; compressed or empty arrays store fewer."""
        return sum(map(self._most_bytes_of, self._arrays.values()))

    def attribute(self, group: str, name: str) -> Any:
        """Return an attribute of a group, or None; join the numbered attributes into which Keras splits long lists."""
        attributes = self._files[0][group].attrs if group in self._files[0] else {}
        try:
            if name in attributes:
                return attributes[name]
            found: list[Any] = []
            while f"{name}{len(found)}" in attributes:
                found.append(attributes[f"{name}{len(found)}"])
            return np.concatenate(found) if found else None
        except Exception as error:  # h5py raises many kinds of errors for damaged files
            raise self.damaged(f"{name!r} of {group!r}: {type(error).__name__}: {error}") from error

    def damaged(self, given: str) -> ModelError:
        """Return the error for an unusable file."""
        fix = (
            "copy the file again, or write it again; after a change on purpose delete the attribute "
            f"{CHECKSUMS!r} of each array: a file without checksums is loaded unchecked"
        )
        return ModelError(f"{self.caller}: {str(self.path)!r} cannot be read", given=given, fix=fix)

    def _rewritten(self, name: str) -> ModelError:
        return ModelError(
            f"{self.caller}: the array {name!r} in {str(self.path)!r} has no checksum, unlike others in the file",
            given="an array that another program has put there since keras_dist wrote the file",
            fix=f"write the file again with model.save_weights; or, if the array is right, delete {CHECKSUMS!r} of the "
            "others: a file without checksums is loaded unchecked",
        )

    def _check_held(self, name: str, array: Any) -> None:
        held = self._most_bytes_of(array)
        if held < array.nbytes:
            raise self.damaged(f"{name!r} has {array.nbytes} bytes, of which the file holds {held} at most")

    def _most_bytes_of(self, array: Any) -> int:
        return min(array.nbytes, array.id.get_storage_size() * _MOST_DEFLATED)

    def _opened(self, path: pathlib.Path) -> Any:
        try:
            open_regular(path, follow_links=True).close()  # a pipe would be waited for
            return self._h5py.File(path, "r", locking="best-effort")
        except FileNotFoundError:
            if path == self.path:
                raise
            raise self.damaged(f"{path.name!r} is missing") from None
        except OSError as error:
            raise self.damaged(f"{path.name!r}: {error}") from error

    def _add(self, file: Any) -> None:
        self._files.append(file)
        for count, (name, array) in enumerate(self._walk(file, "", 0)):
            if count > _MOST_OBJECTS:
                raise self.damaged(f"more than {_MOST_OBJECTS} arrays")
            if name in self._arrays:
                raise self.damaged(f"{name!r} is in two files")
            self._arrays[name] = array

    def _walk(self, group: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
        if depth > _DEEPEST:
            raise self.damaged(f"{prefix!r}: groups more than {_DEEPEST} deep")
        if len(group) > _MOST_OBJECTS:
            raise self.damaged(f"{prefix!r}: {len(group)} members")
        for key in group:
            name = f"{prefix}/{key}" if prefix else key
            link = group.get(key, getlink=True)
            if not isinstance(link, self._h5py.HardLink):
                raise self.damaged(f"{name!r} is a {type(link).__name__}: it may lead out of the file")
            member = group[key]
            info = self._h5py.h5o.get_info(member.id)
            if (info.fileno, info.addr) in self._seen:  # groups may lead back to themselves, or twice to each next one
                raise self.damaged(f"{name!r} has another name, too")
            self._seen.add((info.fileno, info.addr))
            if isinstance(member, self._h5py.Group):
                yield from self._walk(member, name, depth + 1)
            elif isinstance(member, self._h5py.Dataset):
                self._check(name, member)
                yield name, member
            else:
                raise self.damaged(f"{name!r} is neither a group nor an array")

    def _check(self, name: str, array: Any) -> None:
        """Refuse what is elsewhere, no numbers, or more in memory than it could be in the file."""
        if array.shape is None or not (array.dtype.kind in "biufc" or _is_bfloat16(array)):
            raise self.damaged(f"{name!r} has elements of {array.dtype}, not numbers")
        if array.external or array.is_virtual:
            raise self.damaged(f"{name!r} is in another file")
        layout = array.id.get_create_plist()
        filters = {layout.get_filter(number)[0] for number in range(layout.get_nfilters())}
        if not filters <= _FILTERS:
            raise self.damaged(f"{name!r} goes through the filters {sorted(filters)}, which HDF5 itself has not")
        if math.prod(array.chunks or ()) * array.dtype.itemsize > _MOST_CHUNK_BYTES:
            raise self.damaged(f"{name!r} is in chunks of {array.chunks}")


class H5Writer:
    """Writer of arrays to a new HDF5 file; errors name `caller` and the final `place`. A context manager."""

    def __init__(self, caller: str, path: pathlib.Path, place: pathlib.Path) -> None:
        self._caller, self._place = caller, place
        self._file = import_extra("h5py", "h5", "writing a file of HDF5").File(path, "x")

    def __enter__(self) -> H5Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def write(self, name: str, value: np.ndarray) -> None:
        """Write an array under a name such as `layers/dense/vars/0`."""
        if value.dtype.kind not in "biufc" and value.dtype.name != _BFLOAT16:
            given = f"{name!r} of {value.dtype}, which HDF5 does not know"
            fix = "build the model with another dtype, or save it in a folder"
            raise ModelError(f"{self._caller}: {str(self._place)!r} cannot be written", given=given, fix=fix)
        array = self._file.create_dataset(name, data=value)
        array.attrs[CHECKSUMS] = np.bytes_(checksum_of(np.asarray(value, order="C")))
        if value.dtype.name == _BFLOAT16:
            array.attrs["dtype"] = _BFLOAT16


def _parts(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[Any, ...]]:
    """Return what takes an array apart in the order of its elements, into parts of at most `_PART_BYTES`."""
    row_bytes = math.prod(shape[1:]) * itemsize
    if not shape or shape[0] * row_bytes <= _PART_BYTES:
        yield ()
    elif row_bytes <= _PART_BYTES:
        rows = _PART_BYTES // row_bytes
        yield from ((slice(begin, begin + rows),) for begin in range(0, shape[0], rows))
    else:
        yield from ((row, *part) for row in range(shape[0]) for part in _parts(shape[1:], itemsize))


def _dtype(array: Any) -> np.dtype[Any]:
    return np.dtype(jnp.bfloat16) if _is_bfloat16(array) else array.dtype


def _is_bfloat16(array: Any) -> bool:
    return array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.attrs.get("dtype") == _BFLOAT16


def _files_in(reader: H5Reader, path: pathlib.Path) -> list[str]:
    """Return the names of the files that an index of Keras names, which are beside it."""
    try:
        index = json.loads(read_regular(path, follow_links=True))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise reader.damaged(cause(error)) from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise reader.damaged("no 'weight_map' from names of groups to names of files")
    listed = [file if isinstance(file, list) else [file] for file in weight_map.values()]
    names = list(dict.fromkeys(name for files in listed for name in files if isinstance(name, str)))
    wrong = [name for name in names if not re.fullmatch(r"[^/\\:\0]+\.h5", name)]
    if wrong or any(not isinstance(name, str) for files in listed for name in files):
        raise reader.damaged(f"files that are not beside it: {shorten(wrong)}")
    return names


def shard_name(path: pathlib.Path, number: int) -> str:
    """Return the file name that Keras expects for a shard of an index."""
    return f"{path.name.removesuffix(INDEX_SUFFIX)}_{number:05}{WEIGHTS_SUFFIX}"


def old_shards(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the files beside an index that are named like its shards."""
    pattern = re.compile(re.escape(path.name.removesuffix(INDEX_SUFFIX)) + r"_\d{5}" + re.escape(WEIGHTS_SUFFIX))
    return [file for file in path.parent.iterdir() if pattern.fullmatch(file.name)]


def index_of(path: pathlib.Path, groups: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> str:
    """Return the content of a Keras index: the arrays of each shard, with sizes [bytes]."""
    weight_map: dict[str, list[str]] = {}
    for number, names in enumerate(groups):
        for name in names:
            files = weight_map.setdefault(f"/{name.rpartition('/')[0]}", [])
            if shard_name(path, number) not in files:
                files.append(shard_name(path, number))
    return json.dumps({"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}, indent=4)
