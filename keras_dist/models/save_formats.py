"""The format in which a model is saved: determined by its path and `zipped`."""

from __future__ import annotations

import os
import pathlib
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_dist.distribution import lint
from keras_dist.errors import ModelError, shorten
from keras_dist.interop.keras_archives import KERAS_SUFFIX
from keras_dist.models.keras_files import archive_path, save_keras
from keras_dist.models.legacy_files import legacy_path, save_legacy
from keras_dist.models.saving import model_path, save

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods

_SUFFIX = re.compile(r"\.[A-Za-z]+\d?")
"""The endings of paths that look like files; folders such as `run.2` or `lr-.01` end in numbers."""


def save_in_form(
    model: SavingMethods,
    filepath: str | os.PathLike[str],
    overwrite: bool,
    zipped: bool | None,
    include_optimizer: bool,
    save_format: str | None,
    unknown: Mapping[str, Any],
) -> None:
    """Write a model in the format that its path determines; see `Model.save`."""
    if unknown:
        given = ", ".join(f"{name}={shorten(value)}" for name, value in unknown.items())
        fix = "leave them out: save takes filepath, overwrite, zipped, include_optimizer"
        raise ModelError(f"save: there are no arguments {', '.join(map(repr, unknown))}", given=given, fix=fix)
    archive, legacy = archive_path(filepath), legacy_path(filepath)
    if save_format:
        _check_format(filepath, save_format, archive is not None or legacy is not None)
    if zipped is not None and not zipped:
        save_keras(model, _unzipped_path(filepath), overwrite, zipped=False)
    elif archive is not None:
        save_keras(model, archive, overwrite)
    elif legacy is not None:
        save_legacy(model, legacy, overwrite, include_optimizer)
    elif zipped:
        raise _error("`zipped` is not what the path says", f"zipped=True, filepath={shorten(filepath)}", "m.keras")
    else:
        model_path("save", filepath)
        _check_is_folder(filepath)
        save(model, filepath, overwrite)


def _unzipped_path(filepath: str | os.PathLike[str]) -> pathlib.Path:
    given = f"zipped=False, filepath={shorten(filepath)}"
    if archive_path(filepath) is None:
        model_path("save", filepath)
    path = pathlib.Path(filepath)
    if not path.name:
        raise _error("a folder of files has a name", given, "m")
    if path.suffix == KERAS_SUFFIX:
        raise _error("a folder of files should not be called a file", given, "m")
    return path


def _check_format(filepath: str | os.PathLike[str], save_format: str, is_file: bool) -> None:
    if not is_file:
        raise _error("the path says the form, and not `save_format`", f"save_format={save_format!r}", "m.keras")
    warnings.warn(
        f"save: `save_format={save_format!r}` says nothing: the path {str(filepath)!r} tells the form",
        stacklevel=lint.frames_inside(),
    )


def _check_is_folder(filepath: str | os.PathLike[str]) -> None:
    """Check that a path for a folder does not look like a file of another format."""
    if os.path.isdir(filepath):
        return
    suffix = pathlib.PurePath(filepath).suffix
    if _SUFFIX.fullmatch(suffix):
        raise _error(
            f"models are not saved in files that end in {suffix!r}", f"filepath={shorten(filepath)}", "m.keras"
        )


def _error(summary: str, given: str, example: str) -> ModelError:
    expected = "a path that ends in '.keras', or '.h5'; or one without an end, for a folder"
    fix = f"for example model.save({example!r})" if "." in example else "leave `.keras`, or `zipped`, out"
    return ModelError(f"save: {summary}", given=given, expected=expected, fix=fix)
