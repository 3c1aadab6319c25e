"""The form of `.safetensors` files, in one file or in shards with an index, with checksums.

safetensors has no checksums. So each array has one, in the metadata, compared as a stream before any weight is set.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
SAVE = "keras_dist_save"  # under this name index and files say which save they are of

CHECKSUMS = "keras_dist_crc32c"
"""Under this name index and files have a checksum of each array by its name: eight digits of the CRC-32C of a line such
as `float32 (3, 2)` and the bytes of its elements. In files it is a string of JSON, since metadata are strings there."""

SIZE_BYTES = 8  # in so many bytes a file says how long its header is

CHUNK_BYTES = 2**20

TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
"""The element types of safetensors by numpy's names."""

TYPE_NAMES = {name: type_name for type_name, name in TYPES.items()}
ALIGNMENT = 8  # [bytes]

CHECKSUM_DIGITS = 8


def nbytes(array: Any) -> int:
    """Return the size of an array in bytes."""
    return math.prod(array.shape) * array.dtype.itemsize


def in_parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield small parts of an array along its first dim."""
    if array.ndim:
        rows = max(1, CHUNK_BYTES // max(1, math.prod(array.shape[1:])))
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
    return digits(google_crc32c.extend(begun, array.reshape(-1).view(np.uint8)))


def digits(checksum: int) -> str:
    """Return a checksum as text."""
    return f"{checksum:0{CHECKSUM_DIGITS}x}"


def checksum_begun(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the checksum of dtype and shape, to be continued with the elements."""
    return google_crc32c.value(f"{dtype.name} {shape}".encode())


def index_path(path: pathlib.Path) -> pathlib.Path:
    """Return the path of the index of sharded files, given the path of the file."""
    return path.with_name(path.name.removesuffix(SUFFIX) + INDEX_SUFFIX)


def stem(path: pathlib.Path) -> str:
    """Return the name of a file without its suffix."""
    return path.name.removesuffix(SUFFIX)


def mapping(value: Any) -> dict[str, Any]:
    """Return a dict of JSON; of another value an empty one."""
    return value if isinstance(value, dict) else {}
