"""The weights of a model in `.safetensors` files, or in a folder of orbax, and back."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.arguments import check_number
from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import dtype_named, is_key_dtype
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.checkpoint.snapshot import MANIFEST, RECORD, newest_in
from keras_dist.distribution import lint
from keras_dist.distribution.jobs.job import is_chief
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.distribution.layout import TensorLayout
from keras_dist.errors import FileMissingError, ModelError, shorten
from keras_dist.interop.keras_archives import is_keras_folder
from keras_dist.models.built_model import BuiltModel
from keras_dist.models.lora_weights import MergedWeight, factor_paths
from keras_dist.models.saving import OVERWRITE, check_file_path, check_free
from keras_dist.models.weight_names import NameMap, Origin, Parts, Transforms, origins_of
from keras_dist.saving.buckets import absolute, folder_path, in_bucket, refreshed
from keras_dist.saving.drafts import writing_to
from keras_dist.saving.tensor_files import (
    INDEX_SUFFIX,
    SUFFIX,
    TensorReader,
    TensorWriter,
    fetched,
    grouped,
    index_path,
)
from keras_dist.training.state_cell import StateCell

FOLDER_SUFFIX, _PREFIX = ".orbax", "variables/"
_BYTES_PER_GB = 1024**3  # what Keras calls a GB
_MOST_GB = 2**20
_LISTED = 5
_HUGGING_FACE, _PICKLES = "model", (".bin", ".pt", ".pth", ".ckpt")
_PROBLEMS = ("missing in the file", "not in the model", "of another shape, or complex", "rules that match no weight")
"""What may be wrong with a file, in the order of the fields of a `LoadReport`."""


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What `load_weights` did. Printed, it tells how many weights are of each kind, and the first names.

    Attributes:
        loaded: the paths of the weights that were set.
        missing: those that are not in the file.
        extra: names in the file that are none of the model's.
        misshaped: those that have another shape in the file, or are complex only there.
        unused: rules of `name_map` and `transform` that match no weight.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    misshaped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def __str__(self) -> str:
        listed = (getattr(self, field.name) for field in dataclasses.fields(self))
        kinds = zip(("loaded", *_PROBLEMS), listed, strict=True)
        return "; ".join(f"{len(names)} {kind}: {_listed(names)}" for kind, names in kinds if names) or "empty"


def save_weights(
    session: BuiltModel,
    weights: Sequence[Any],
    filepath: str | os.PathLike[str],
    overwrite: bool,
    max_shard_size: float | None,
    merged: Mapping[str, MergedWeight],
) -> None:
    """Write weights to files, or to a folder; see `Model.save_weights`."""
    path = weights_path("save_weights", filepath, (SUFFIX, FOLDER_SUFFIX))
    max_bytes = checked_size(max_shard_size)
    is_folder = path.suffix == FOLDER_SUFFIX
    job = Rendezvous("a save of weights")
    for file in () if is_folder else (path, index_path(path)):
        check_file_path("save_weights", file, overwrite, ModelError)
    if is_folder:
        if not overwrite:
            job.first(functools.partial(check_free, "save_weights", path, ModelError, OVERWRITE))
        _write_folder(path, [session.path_of(weight) for weight in weights], session)
        return
    factors = factor_paths(session, merged)
    by_path = {session.path_of(weight): weight for weight in weights}
    handles = {path: merged.get(path, weight) for path, weight in by_path.items() if path not in factors}
    sizes = {name: math.prod(weight.shape) * jax_internals.itemsize(weight.dtype) for name, weight in handles.items()}
    groups = grouped(sizes, max_bytes)
    # all are of one step, whoever trains
    with writing_to(path), session.cell.lock, TensorWriter("save_weights", path, sizes, groups) as writer:

        def write(number: int) -> None:
            if is_chief():
                writer.write(number, fetched(groups[number], lambda name: handles[name].numpy()))
            else:
                for name in groups[number]:
                    handles[name].numpy()  # of which this process may hold parts

        for number in range(len(groups)):
            job.each(functools.partial(write, number))
        job.first(writer.commit)


def load_weights(
    model: str,
    session: BuiltModel,
    weights: Sequence[Any],
    filepath: str | os.PathLike[str],
    strict: bool,
    name_map: NameMap | None,
    transform: Transforms | None,
    merged: Mapping[str, MergedWeight],
) -> LoadReport:
    """Set the weights of a model of this name to those in files, or in a folder; see `Model.load_weights`."""
    reader = _reader(filepath, session)
    factors = factor_paths(session, merged)
    by_path = {session.path_of(weight): weight for weight in weights}
    handles = {path: weight for path, weight in by_path.items() if path not in factors or path in reader.shapes}
    origins, unused = origins_of(handles, name_map, transform)
    if not isinstance(reader, TensorReader):
        check_no_rules(reader.path, name_map, transform)
    report = _compared(model, handles, origins, unused, reader, strict)
    if isinstance(reader, TensorReader):
        _read(session.cell, reader, {path: origins[path] for path in report.loaded})
    else:
        values = reader.read(report.loaded)
        for name in report.loaded:
            _check_cast(reader, name, values[name], handles[name].dtype)
        for name in report.loaded:
            handles[name].assign(values.pop(name))
    for path in report.loaded:
        if path in merged and session.path_of(merged[path].factors[1]) not in handles:
            merged[path].forget()
    warn_of_parts(str(reader.path), report)
    if isinstance(reader, TensorReader) and reader.lacks_checksums(_names_in(origins, report.loaded)):
        warn_unchecked("load_weights", reader.path)
    return report


_told_unchecked: list[pathlib.Path] = []


def warn_unchecked(caller: str, path: pathlib.Path) -> None:
    """Warn, once in a process, that damage in files of other writers is not noticed."""
    if _told_unchecked:
        return
    _told_unchecked.append(path)
    warnings.warn(
        f"{caller}: {str(path)!r} has no checksums, so that damaged bytes would not be noticed: keras_dist did not "
        "write it; model.save_weights does it with them",
        stacklevel=lint.frames_inside(),
    )


def _read(cell: StateCell, reader: TensorReader, origins: Mapping[str, Origin]) -> None:
    """Set weights, each device of this process its part; if an error is raised, none is set."""

    def check() -> None:
        reader.check(_names_in(origins, origins))
        for path, origin in origins.items():
            for name in origin.names:
                check_narrowed(reader, name, cell.row(path).dtype)

    Rendezvous("a load of weights").each(check)
    for path, origin in origins.items():
        row = cell.row(path)
        parts, found = origin.of(reader, path, row.shape), {}

        def part(index: Any, parts: Parts = parts, row: Any = row, found: Any = found) -> np.ndarray:
            key = str(index)  # devices that hold the same share it
            if key not in found:
                found[key] = narrowed(parts[index], row.dtype, reader, row.path)
            return found[key]

        sharding = TensorLayout(row.axes, cell.mesh).backend_layout
        cell.write(cell.index(path), jax.make_array_from_callback(row.shape, sharding, part))


def check_narrowed(reader: Any, name: str, dtype: Any) -> None:
    """Check that an array keeps its values in another element type, a small part at a time."""
    if _is_narrower(dtype, reader.dtype(name)):
        for part in reader.parts(name):
            narrowed(part, dtype, reader, name)


def narrowed(array: np.ndarray, dtype: Any, reader: Any, name: str) -> np.ndarray:
    """Return a copy of an array of a file in another element type, if all its finite numbers stay finite."""
    if np.iscomplexobj(array) and not jnp.issubdtype(dtype, jnp.complexfloating):
        summary = f"{reader.caller}: {name!r} in {str(reader.path)!r} is complex"
        given = f"an array of {array.dtype.name} for one of {jnp.dtype(dtype).name}"
        raise ModelError(summary, given=given, fix="build the model with a complex dtype, or correct the file")
    with np.errstate(all="ignore"):
        found = np.array(array, dtype)
    if not _is_narrower(dtype, array.dtype):
        return found
    is_integer = jnp.issubdtype(found.dtype, jnp.integer)
    whole = array if jnp.issubdtype(array.dtype, jnp.integer) else np.trunc(array)
    lost = whole != found if is_integer else np.isfinite(array) & ~np.isfinite(found)
    if lost.any():
        summary = (
            f"{reader.caller}: {name!r} in {str(reader.path)!r} holds a number that {found.dtype.name} cannot hold"
        )
        given = f"{np.asarray(array)[lost][0]}, of {array.dtype.name}"
        raise ModelError(summary, given=given, fix="build the model with a wider dtype, or correct the file")
    return found


def _is_narrower(dtype: Any, stored: Any) -> bool:
    """Whether an element type may not hold all numbers of another one."""
    return not is_key_dtype(dtype) and jnp.issubdtype(dtype, jnp.number) and not np.can_cast(stored, dtype, "safe")


def _reader(filepath: str | os.PathLike[str], session: BuiltModel) -> TensorReader | _Folder:
    """What reads the weights at this path."""
    folder = folder_path(os.fspath(filepath)) if isinstance(filepath, str | os.PathLike) else None
    if folder is not None and refreshed(folder).is_dir():
        file = None if in_bucket(folder) else _file_in(folder)
        return _Folder(folder, session) if file is None else TensorReader("load_weights", file)
    is_folder = str(filepath).endswith("/") or (folder is not None and folder.suffix in ("", FOLDER_SUFFIX))
    if folder is not None and folder.name and is_folder and not folder.exists():
        given = f"filepath={shorten(filepath)}, which is {str(absolute(folder))!r}"
        fix = f"correct the path: of a folder, or of a file that ends in '{SUFFIX}', '.weights.h5' or '.keras'"
        raise FileMissingError(f"load_weights: there is no folder {str(filepath)!r}", given=given, fix=fix)
    return TensorReader("load_weights", weights_path("load_weights", filepath, (SUFFIX, INDEX_SUFFIX, FOLDER_SUFFIX)))


def _file_in(folder: pathlib.Path) -> pathlib.Path | None:
    """The file of weights, or their index, in a folder of Hugging Face; None for a folder of orbax.

    They may be links to regular files, which is what snapshots in its cache consist of.
    """
    for suffix in (SUFFIX, INDEX_SUFFIX):
        if os.path.lexists(folder / f"{_HUGGING_FACE}{suffix}"):
            return folder / f"{_HUGGING_FACE}{suffix}"
    others = files_of_others(folder)
    if not others:
        return None
    named = [name for name in others if name.endswith(SUFFIX)]
    summary = f"load_weights: {str(folder)!r} has no {_HUGGING_FACE}{SUFFIX} and no {_HUGGING_FACE}{INDEX_SUFFIX}"
    fix = "convert it to safetensors: other files of PyTorch are pickles, whose code would run"
    if named:
        fix = f"for example load_weights({str(folder / named[0])!r})"
    raise ModelError(summary, given=f"a folder with {_listed(others)}", fix=fix)


def files_of_others(folder: pathlib.Path) -> list[str]:
    """The names of files of weights in a folder as Hugging Face has it; none of a checkpoint."""
    if (folder / MANIFEST).is_file() or newest_in(folder) is not None:
        return []
    return sorted(path.name for path in folder.iterdir() if path.suffix in (SUFFIX, *_PICKLES))


def _compared(
    model: str,
    handles: Mapping[str, Any],
    origins: Mapping[str, Origin],
    unused: tuple[str, ...],
    reader: TensorReader | _Folder,
    strict: bool,
) -> LoadReport:
    """What can be loaded."""
    used = set(_names_in(origins, origins))
    extra = tuple(name for name in reader.shapes if name not in used)
    missing: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for path, weight in handles.items():
        origin = origins[path]
        lacking = [name for name in origin.names if name not in reader.shapes]
        if lacking:
            missing[path] = path if lacking == [path] else f"{path}, there {_listed(lacking)}"
            continue
        if isinstance(reader, TensorReader):
            parts = origin.of(reader, path, weight.shape)
            shape, is_complex = parts.shape, parts.is_complex
        else:
            shape, is_complex = reader.shapes[path], reader.is_complex(path)
        loses_part = is_complex and not jnp.issubdtype(weight.dtype, jnp.complexfloating)
        if shape != weight.shape or loses_part:
            unfit[path] = f"{path} {'complex ' if is_complex else ''}{shape} for {weight.shape}"
    if strict and (missing or extra or unfit or unused):
        raise misfit(model, str(reader.path), (missing.values(), extra, unfit.values(), unused))
    loaded = tuple(path for path in handles if path not in missing and path not in unfit)
    return LoadReport(loaded, tuple(missing), extra, tuple(unfit), unused)


def misfit(model: str, path: str, problems: Sequence[Iterable[str]], caller: str = "load_weights") -> ModelError:
    """Return the error for a file that does not fit a model; `problems` are in the order of `_PROBLEMS`."""
    fix = (
        "load it into a model made like the one it was saved from, or pass strict=False to load what fits; "
        "model.layout_plan lists the names; for other names and shapes see `name_map` and `transform`"
    )
    if caller == "load_model":
        fix = (
            "classes of yours must be those that were saved, with the same class and attribute names; or make the "
            "model in code, and then model.load_weights(path, strict=False) for what fits"
        )
    listed = zip(_PROBLEMS, map(tuple, problems), strict=True)
    given = "; ".join(f"{kind}: {_listed(names)}" for kind, names in listed if names)
    return ModelError(f"{caller}: {path!r} does not fit model {model!r}", given=given, fix=fix)


def check_no_rules(path: pathlib.Path, name_map: NameMap | None, transform: Transforms | None) -> None:
    """Check that weights in other formats than safetensors keep their names and shapes."""
    if name_map or transform:
        summary = "load_weights: `name_map` and `transform` are for files of safetensors"
        given = f"the {'folder' if path.is_dir() else 'file'} {str(path)!r}"
        raise ModelError(summary, given=given, fix="leave them out, or load a file that ends in '.safetensors'")


def warn_of_parts(path: str, report: LoadReport) -> None:
    """Warn of what was left out."""
    if report.missing or report.extra or report.misshaped or report.unused:
        warnings.warn(f"load_weights: {path!r} fits in part: {report}", stacklevel=lint.frames_inside())


def _names_in(origins: Mapping[str, Origin], paths: Iterable[str]) -> list[str]:
    """The arrays in a file that weights are made of, each once."""
    return list(dict.fromkeys(name for path in paths for name in origins[path].names))


def weights_path(caller: str, filepath: str | os.PathLike[str], suffixes: Sequence[str]) -> pathlib.Path:
    """The path of weights, whose suffix tells in which form they are."""
    if isinstance(filepath, str | os.PathLike) and str(os.fspath(filepath)).endswith(tuple(suffixes)):
        path = folder_path(os.fspath(filepath))
        if not in_bucket(path) or path.suffix == FOLDER_SUFFIX:
            return path
        summary = f"{caller}: {str(path)!r} would be a file of weights in a bucket"
        fix = f"for example '{path.with_suffix(FOLDER_SUFFIX)}'"
        raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)
    summary = f"{caller}: the path of a file of weights ends in {' or '.join(map(repr, suffixes))}"
    fix = f"for example 'model.weights{SUFFIX}'; files of Keras end in {' or '.join(map(repr, OF_KERAS[caller]))}"
    raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)


OF_KERAS = {
    "save_weights": (".weights.h5", ".weights.json"),
    "load_weights": (".weights.h5", ".weights.json", ".keras", ".h5", ".hdf5"),
}
"""The ends of the names of files of weights that Keras writes, and reads."""


def path_of_keras(caller: str, filepath: str | os.PathLike[str]) -> pathlib.Path | None:
    """The path of a file of Keras, or of a folder with what is in one; None for others.

    A folder with the name of such a file is not read as one.
    """
    if not isinstance(filepath, str | os.PathLike):
        return None
    path = folder_path(os.fspath(filepath))
    if caller == "load_weights" and not in_bucket(path) and is_keras_folder(path):
        return path
    if not str(os.fspath(filepath)).endswith(OF_KERAS[caller]):
        return None
    if in_bucket(path):
        summary = f"{caller}: {str(path)!r} would be a file of Keras in a bucket"
        raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix="copy the file, or choose a folder")
    return None if caller == "load_weights" and path.is_dir() else path


def check_fits_form(path: pathlib.Path | None, filepath: object, by_name: bool, objects_to_skip: object) -> None:
    """Check that `by_name` and `objects_to_skip` are given for the formats that support them."""
    is_weights = path is not None and path.name.endswith(OF_KERAS["save_weights"])
    is_legacy = path is not None and not is_weights and path.suffix in (".h5", ".hdf5")
    for name, is_given, fits, ends in (
        ("by_name", by_name, is_legacy, "'.h5' or '.hdf5', as Keras 2 wrote it"),
        ("objects_to_skip", objects_to_skip is not None, is_weights, "'.weights.h5' or '.weights.json'"),
    ):
        if is_given and not fits:
            summary = f"`{name}` needs a file that ends in {ends}"
            fix = "leave it out; strict=False loads what fits"
            raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)


def checked_size(max_shard_size: float | None) -> float | None:
    """The size in bytes, from one in GB."""
    if max_shard_size is None:
        return None
    wrong, example = "is no size of a file in GB", 0.5
    check_number("max_shard_size", max_shard_size, above=0, below=_MOST_GB, wrong=wrong, example=example)
    return max_shard_size * _BYTES_PER_GB


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many others there are."""
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _check_cast(reader: _Folder, name: str, value: Any, dtype: Any) -> None:
    """Check that a weight of a folder keeps its values in another element type."""
    if not value.size or not _is_narrower(dtype, value.dtype):
        return
    if isinstance(value, jax.Array):
        parts = jnp.stack([value.real, value.imag]) if jnp.iscomplexobj(value) else value
        kept = parts if jnp.issubdtype(dtype, jnp.integer) else jnp.where(jnp.isfinite(parts), parts, 0)
        value = np.asarray(jnp.stack([jnp.min(kept), jnp.max(kept)]))
    narrowed(value, dtype, reader, name)


class _Folder:
    """The weights in a folder: of `save_weights`, of a model, or of a training state."""

    caller = "load_weights"

    def __init__(self, path: pathlib.Path, session: BuiltModel) -> None:
        self.path = path
        self._session = session
        self._stored = Stored.of_job(path)
        noted = self._stored.record["arrays"]
        streams = {row.path for row in session.cell.plan.rows if row.role == "rng"}
        self._dtypes = {
            name.removeprefix(_PREFIX): one["dtype"]
            for name, one in noted.items()
            if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in streams
        }
        self.shapes = {name: tuple(noted[f"{_PREFIX}{name}"]["shape"]) for name in self._dtypes}

    def is_complex(self, name: str) -> bool:
        """Whether the elements of a weight have an imaginary part."""
        return jnp.issubdtype(dtype_named(self._dtypes[name]), jnp.complexfloating)

    def read(self, names: Sequence[str]) -> dict[str, Any]:
        """Weights by their paths, where those of the model are; on the host those whose elements have 64 bits.

        Without `jax_enable_x64` arrays on devices have 32: numbers that are too large would be infinite.
        """
        for name in names:
            if is_key_dtype(dtype_named(self._dtypes[name])):
                raise self._stored.unreadable(RECORD, f"the weight {name!r} of type {self._dtypes[name]}")
        plan = self._session.cell.plan
        places = {row.path: sharding for row, sharding in zip(plan.rows, jax.tree.leaves(plan.shardings), strict=True)}
        wanted = {
            f"{_PREFIX}{name}": jax.ShapeDtypeStruct(
                self.shapes[name],
                dtype := jnp.dtype(self._dtypes[name]),
                sharding=places[plan.row(name).path] if jax.dtypes.canonicalize_dtype(dtype) == dtype else None,
            )
            for name in names
        }
        found: dict[str, Any] = {}
        Rendezvous("a load").each(lambda: found.update(self._stored.arrays(wanted)))
        return {name.removeprefix(_PREFIX): array for name, array in found.items()}


def _write_folder(path: pathlib.Path, names: Sequence[str], session: BuiltModel) -> None:
    """Write weights to a folder, which is there whole or not at all."""
    cell = session.cell
    with cell.lock:
        arrays = {f"{_PREFIX}{name}": cell.read(name) for name in names}
        finish = Snapshot(int(cell.state.step), arrays, cell.plan).begin(path)
    finish()
