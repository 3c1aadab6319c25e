"""`get_file`: a file that is there already. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import os
import pathlib

from keras_dist._support.arguments import check_option
from keras_dist.errors import DataError

_CHUNK_BYTES = 2**20


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
        fname: the name of the file, or an absolute path; by default the last part of `origin`.
        origin: where it is from, for the error.
        untar: as `extract`.
        md5_hash: its MD5, in hex.
        file_hash: its SHA-256, or its MD5, in hex.
        cache_subdir: the folder in `cache_dir`.
        hash_algorithm: `"sha256"`, `"md5"`, or `"auto"` to see it by the length of `file_hash`.
        extract: whether the path of the folder is returned in which the archive has been unpacked: without the suffix,
            or with `_extracted` after its name, as Keras calls it.
        archive_format: unused.
        cache_dir: the folder of Keras, by default `KERAS_HOME` or `~/.keras`.
        force_download: unused.

    Raises:
        DataError: there is no such file, or it has another hash; says where to put it.

    Source: `keras.utils.get_file`.
    """
    del archive_format, force_download
    name = os.fspath(fname) if fname is not None else (origin or "").rpartition("/")[2]
    home = cache_dir or os.environ.get("KERAS_HOME") or "~/.keras"
    path = pathlib.Path(home).expanduser() / cache_subdir / name
    unpacked = [path.with_name(f"{path.name}_extracted"), path.with_suffix("").with_suffix("")]
    found = [one for one in (unpacked if extract or untar else [path]) if one != path.parent and one.exists()]
    if not name or not found:
        raise DataError(
            f"the file {name!r} is not there",
            given=f"origin={origin!r}" if origin else f"fname={fname!r}",
            expected=f"{'the folder ' + str(unpacked[0]) if extract or untar else path}: nothing is downloaded",
            fix=f"put it there{', unpacked,' if extract or untar else ''} or use its own path instead of get_file",
        )
    wanted = file_hash or md5_hash
    if wanted and found[0].is_file():
        _check_hash(found[0], wanted, "md5" if file_hash is None else hash_algorithm)
    return str(found[0])


def _check_hash(path: pathlib.Path, wanted: str, algorithm: str) -> None:
    algorithm = check_option("hash_algorithm", algorithm, ("auto", "md5", "sha256"))
    if algorithm == "auto":
        algorithm = "sha256" if len(wanted) == 64 else "md5"
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != wanted.lower():
        given = f"{path} with the {algorithm} {digest.hexdigest()}, not {wanted}"
        fix = "get it anew, or leave the hash out"
        raise DataError(f"the file {path.name!r} is not the one that is asked for", given=given, fix=fix)
