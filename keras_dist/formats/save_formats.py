"""File formats of models and weights, chosen by path; checks of paths for writing."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp

from keras_dist._support.arguments import check_names, check_number
from keras_dist._support.located_warnings import warn
from keras_dist.errors import ArgumentTypeError, KerasDistError, ModelError, shorten, unknown_name_error
from keras_dist.files.buckets import folder_path, in_bucket, refreshed
from keras_dist.files.drafts import writing_to
from keras_dist.files.tensor_format import SUFFIX
from keras_dist.formats.keras_archives import KERAS_SUFFIX, is_keras_folder
from keras_dist.jobs.rendezvous import Rendezvous

FOLDER_SUFFIX = ".orbax"
OVERWRITE = "choose another path, or pass overwrite=True"
LEGACY_SUFFIXES = (".h5", ".hdf5")
H5_WEIGHTS = (".weights.h5", ".weights.json")
KERAS_WEIGHTS = {"save_weights": H5_WEIGHTS, "load_weights": (*H5_WEIGHTS, KERAS_SUFFIX)}
"""Suffixes of the weights files of Keras that are written, and read."""

_IN_KERAS = (
    "write it anew in Keras 3: keras.models.load_model('m.h5').save('m.keras'), or for weights "
    "keras_model.load_weights('m.h5') and keras_model.save_weights('m.weights.h5')"
)

Format = Literal["keras", "unzipped", "folder"]

_BYTES_PER_GB = 1024**3  # what Keras calls a GB
_MOST_GB = 2**20
_SUFFIX = re.compile(r"\.[A-Za-z]+\d?")
"""Suffixes of files; names of folders such as `run.2` or `lr-.01` end in numbers."""


def archive_path(filepath: str | os.PathLike[str]) -> pathlib.Path | None:
    """Return the path of a `.keras` file, or None for other paths."""
    text = check_names("filepath", os.fspath(filepath)) if isinstance(filepath, str | os.PathLike) else ""
    if not text.endswith(KERAS_SUFFIX):
        return None
    path = folder_path(text)
    return None if in_bucket(path) else path


def refuse_legacy(caller: str, filepath: Any) -> None:
    """Raise for a file in the format of Keras 2."""
    text = os.fspath(filepath) if isinstance(filepath, str | os.PathLike) else ""
    if isinstance(text, str) and text.endswith(LEGACY_SUFFIXES) and not text.endswith(H5_WEIGHTS):
        raise legacy_error(caller, text, _IN_KERAS if caller.startswith("load") else "a path that ends in '.keras'")


def legacy_error(caller: str, path: str, fix: str = _IN_KERAS) -> ModelError:
    """Return the error for a file in the format of Keras 2."""
    return ModelError(f"{caller}: the format of Keras 2 is not supported", given=f"filepath={path!r}", fix=fix)


def model_folder(caller: str, filepath: str | os.PathLike[str]) -> pathlib.Path:
    """Check and return the path of a model folder."""
    is_path = isinstance(filepath, str | os.PathLike) and str(filepath) and "\0" not in str(filepath)
    if not is_path or str(filepath).endswith((SUFFIX, *LEGACY_SUFFIXES)):
        summary = f"{caller}: `filepath` must be the path of a folder"
        fix = 'for example "digits"; model.save_weights writes a file of weights'
        raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)
    return folder_path(os.fspath(filepath))


def format_of_model(
    filepath: str | os.PathLike[str], zipped: bool | None, save_format: str | None, unknown: Mapping[str, Any]
) -> tuple[Format, pathlib.Path]:
    """Return the format in which `Model.save` writes a path, and the path."""
    if unknown:
        given = ", ".join(f"{name}={shorten(value)}" for name, value in unknown.items())
        summary, known = "`save` has no argument", ("filepath", "overwrite", "zipped")
        raise unknown_name_error(summary, next(iter(unknown)), known, given=given, error=ArgumentTypeError)
    refuse_legacy("save", filepath)
    archive = archive_path(filepath)
    if save_format:
        if archive is None:
            summary = "the path determines the format, and not `save_format`"
            raise _misnamed(summary, f"save_format={save_format!r}", "m.keras")
        text = f"save: `save_format={save_format!r}` is ignored; the format follows from the path {str(filepath)!r}"
        warn(text)
    if zipped is not None and not zipped:
        return "unzipped", _unzipped_path(filepath, archive is not None)
    if archive is not None:
        return "keras", archive
    if zipped:
        raise _misnamed("`zipped` does not match the path", f"zipped=True, filepath={shorten(filepath)}", "m.keras")
    path = model_folder("save", filepath)
    suffix = pathlib.PurePath(filepath).suffix
    if _SUFFIX.fullmatch(suffix) and not os.path.isdir(filepath):
        given = f"filepath={shorten(filepath)}"
        raise _misnamed(f"models are not saved in files that end in {suffix!r}", given, "m.keras")
    return "folder", path


def _unzipped_path(filepath: str | os.PathLike[str], is_archive: bool) -> pathlib.Path:
    given = f"zipped=False, filepath={shorten(filepath)}"
    if not is_archive:
        model_folder("save", filepath)
    path = pathlib.Path(filepath)
    if not path.name:
        raise _misnamed("a folder of files must have a name", given, "m")
    if path.suffix == KERAS_SUFFIX:
        raise _misnamed("a folder of files must not have the name of a file", given, "m")
    return path


def _misnamed(summary: str, given: str, example: str) -> ModelError:
    expected = "a path that ends in '.keras'; or one without a suffix, for a folder"
    fix = f"for example model.save({example!r})" if "." in example else "leave `.keras`, or `zipped`, out"
    return ModelError(f"save: {summary}", given=given, expected=expected, fix=fix)


def check_free(caller: str, path: pathlib.Path, error: type[KerasDistError], fix: str = OVERWRITE) -> None:
    """Check that nothing exists at a path."""
    if refreshed(path).exists() if in_bucket(path) else os.path.lexists(path):
        raise error(f"{caller}: {str(path)!r} exists", given="a folder" if path.is_dir() else "a file", fix=fix)


def check_file_path(caller: str, path: pathlib.Path, overwrite: bool, error: type[KerasDistError]) -> None:
    """Check, in the first process of a job, that a file can be written at a path; all processes must call."""

    def check() -> None:
        is_folder = path.is_dir()
        if is_folder or "\0" in str(path):
            given = "a folder is there" if is_folder else "a path with a null character"
            fix = "choose another path" + (", or move the folder away" if is_folder else "")
            raise error(f"{caller}: no file can be written at {str(path)!r}", given=given, fix=fix)
        if not overwrite:
            check_free(caller, path, error)

    Rendezvous(f"a check of {caller}").first(check)


def weights_path(caller: str, filepath: str | os.PathLike[str], suffixes: Sequence[str]) -> pathlib.Path:
    """Check and return a path of weights with one of these suffixes."""
    if isinstance(filepath, str | os.PathLike) and os.fspath(filepath).endswith(tuple(suffixes)):
        path = folder_path(os.fspath(filepath))
        if not in_bucket(path) or path.suffix == FOLDER_SUFFIX:
            return path
        summary = f"{caller}: {str(path)!r} would be a file of weights in a bucket"
        fix = f"for example '{path.with_suffix(FOLDER_SUFFIX)}'"
        raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)
    summary = f"{caller}: the path of a file of weights ends in {' or '.join(map(repr, suffixes))}"
    fix = f"for example 'model.weights{SUFFIX}'; files of Keras end in {' or '.join(map(repr, KERAS_WEIGHTS[caller]))}"
    raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)


def path_of_keras(caller: str, filepath: str | os.PathLike[str]) -> pathlib.Path | None:
    """Return the path of a weights file of Keras, or of an unzipped `.keras` folder; None for others."""
    if not isinstance(filepath, str | os.PathLike):
        return None
    refuse_legacy(caller, filepath)
    text = os.fspath(filepath)
    path = folder_path(text)
    if caller == "load_weights" and not in_bucket(path) and is_keras_folder(path):
        return path
    if not text.endswith(KERAS_WEIGHTS[caller]):
        return None
    if in_bucket(path):
        summary = f"{caller}: {str(path)!r} would be a file of Keras in a bucket"
        raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix="copy the file, or choose a folder")
    return None if caller == "load_weights" and path.is_dir() else path


def check_fits_form(path: pathlib.Path | None, filepath: object, objects_to_skip: object) -> None:
    """Check that `objects_to_skip` is given for the formats that support it."""
    if objects_to_skip is not None and not (path is not None and path.name.endswith(H5_WEIGHTS)):
        summary = "`objects_to_skip` needs a file that ends in '.weights.h5' or '.weights.json'"
        fix = "leave it out; strict=False loads what fits"
        raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)


def checked_size(max_shard_size: float | None) -> float | None:
    """Return `max_shard_size` [GB] in bytes."""
    if max_shard_size is None:
        return None
    check_number("max_shard_size", max_shard_size, above=0, below=_MOST_GB, unit="GB", example=0.5)
    return max_shard_size * _BYTES_PER_GB


def is_plain_folder(filepath: object) -> bool:
    """Whether weights at this path are files of Hugging Face in a folder: there is one, or the path has no suffix."""
    if not isinstance(filepath, str | os.PathLike) or not os.fspath(filepath) or "\0" in os.fspath(filepath):
        return False
    path = folder_path(os.fspath(filepath))
    if in_bucket(path) or path.suffix == FOLDER_SUFFIX or not path.name:
        return False
    return not path.name.endswith((SUFFIX, *H5_WEIGHTS)) and (path.is_dir() or not _SUFFIX.fullmatch(path.suffix))


def make_folder(folder: pathlib.Path) -> None:
    """Make a folder for files of weights in a folder that exists."""
    with writing_to(folder):
        folder.mkdir(exist_ok=True)


def checked_dtype(dtype: Any) -> Any:
    """Check and return the element type of saved floating-point numbers; None for the types in the model."""
    try:
        found = None if dtype is None else jnp.dtype(dtype)
    except Exception:  # numpy raises several
        found = jnp.dtype("int32")
    if found is not None and not jnp.issubdtype(found, jnp.floating):
        summary = "save_weights: `dtype` must be a floating-point type"
        raise ModelError(summary, given=f"dtype={shorten(dtype)}", fix='for example dtype="bfloat16"')
    return found


def checked_config(config: Any) -> str:
    """Check a config that is saved beside weights; return it as JSON."""
    try:
        if isinstance(config, Mapping):
            return json.dumps(dict(config), indent=2) + "\n"
        problem = "not a dict"
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error)
    summary = "save_weights: `config` must be a dict of plain values"
    raise ModelError(summary, given=f"{shorten(config)}: {problem}", fix='for example config={"model_type": "llama"}')
