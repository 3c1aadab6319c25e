"""`get_file`: the path of an existing file. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import os
import pathlib

from keras_dist._support.arguments import check_option
from keras_dist.errors import DataError


def get_file(
    fname: str | os.PathLike[str] | None = None,
    origin: str | None = None,
    untar: bool = False,
    md5_hash: str | None = None,
    file_hash: str | None = None,
    cache_subdir: str = "datasets",
    hash_algorithm: str = "auto",
    extract: bool = False,
    archive_format: str | None = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
) -> str:
    """Return the path of a file in the folder of Keras, `~/.keras/datasets`. Nothing is downloaded or unpacked.

    Args:
        fname: name of the file, or an absolute path. By default the last part of `origin`.
        origin: address of the file; used in errors only.
        untar: alias of `extract`.
        md5_hash: MD5 of the file, in hex.
        file_hash: SHA-256 or MD5 of the file, in hex.
        cache_subdir: folder in `cache_dir`.
        hash_algorithm: `"sha256"`, `"md5"`, or `"auto"` to choose by the length of `file_hash`.
        extract: whether to return the folder of the unpacked archive: the name without suffix, or with `_extracted`
            appended, as in Keras.
        archive_format: unused.
        cache_dir: folder of Keras. By default `KERAS_HOME` or `~/.keras`.
        force_download: unused.

    Raises:
        DataError: the file does not exist, or has another hash.

    Source: `keras.utils.get_file`.
    """
    del archive_format, force_download
    name = os.fspath(fname) if fname is not None else (origin or "").rpartition("/")[2]
    home = cache_dir or os.environ.get("KERAS_HOME") or "~/.keras"
    path = pathlib.Path(os.path.expanduser(home)) / cache_subdir / name
    unpacked = [path.with_name(f"{path.name}_extracted"), path.with_suffix("").with_suffix("")]
    found = [one for one in (unpacked if extract or untar else [path]) if one != path.parent and one.exists()]
    if not name or not found:
        place = f"{unpacked[0]}, unpacked," if extract or untar else str(path)
        given = f"origin={origin!r}" if origin else f"fname={fname!r}"
        fix = f"download it to {place} or open the path of the file without get_file"
        raise DataError(f"the file {name!r} does not exist, and get_file downloads nothing", given=given, fix=fix)
    wanted = file_hash or md5_hash
    if wanted and found[0].is_file():
        _check_hash(found[0], wanted, "md5" if file_hash is None else hash_algorithm)
    return str(found[0])


def _check_hash(path: pathlib.Path, wanted: str, algorithm: str) -> None:
    algorithm = check_option("hash_algorithm", algorithm, ("auto", "md5", "sha256"))
    if algorithm == "auto":
        algorithm = "sha256" if len(wanted) == 64 else "md5"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    if digest.hexdigest() != wanted.lower():
        given = f"{path} with the {algorithm} {digest.hexdigest()}, not {wanted}"
        fix = "download it again, or leave the hash out"
        raise DataError(f"the file {path.name!r} has another hash", given=given, fix=fix)
