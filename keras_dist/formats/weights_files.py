"""The weights of a model in `.safetensors` files, or in a folder of orbax, and back."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._unstable.jax_internals import dtype_named, is_key_dtype
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.checkpoint.snapshot import MANIFEST, RECORD, newest_in
from keras_dist.errors import FileMissingError, ModelError, shorten
from keras_dist.files.buckets import absolute, folder_path, in_bucket, refreshed
from keras_dist.files.drafts import writing_to
from keras_dist.files.tensor_format import INDEX_SUFFIX, SUFFIX, index_path, nbytes
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.files.tensor_writer import TensorWriter, grouped
from keras_dist.formats.array_store import (
    check_narrowed,
    is_narrower,
    narrowed,
    release_after,
    set_array,
    warn_unchecked,
)
from keras_dist.formats.load_report import LoadReport, listed, misfit
from keras_dist.formats.mapped_files import MappedFile, MappedWeights
from keras_dist.formats.quantized_files import DequantizedFile
from keras_dist.formats.save_formats import (
    FOLDER_SUFFIX,
    check_file_path,
    check_free,
    checked_config,
    checked_dtype,
    checked_size,
    is_plain_folder,
    make_folder,
    weights_path,
)
from keras_dist.formats.weight_map import WeightMap
from keras_dist.jobs.job import is_chief
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.lora_weights import MergedWeight, factor_paths
from keras_dist.training.quantized_weights import QuantizedWeight, quantized_weights
from keras_dist.training.state_cell import StateCell

_PREFIX = "variables/"
_HUGGING_FACE, _PICKLES = "model", (".bin", ".pt", ".pth", ".ckpt")
_CONFIG = "config.json"
_PYTORCH = {"format": "pt"}  # the metadata that transformers asks for: arrays are in the forms of PyTorch


def save_weights(
    built: BuiltModel,
    weights: Sequence[Any],
    filepath: str | os.PathLike[str],
    overwrite: bool,
    max_shard_size: float | None,
    merged: Mapping[str, MergedWeight],
    weight_map: WeightMap | None = None,
    dtype: Any = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write weights to files, or to a folder; see `Model.save_weights`."""
    path = _saved_path(filepath)
    max_bytes = checked_size(max_shard_size)
    is_folder = path.suffix == FOLDER_SUFFIX
    job = Rendezvous("a save of weights")
    for file in () if is_folder else (path, index_path(path)):
        check_file_path("save_weights", file, overwrite, ModelError)
    if is_folder:
        check_no_map("save_weights", path, weight_map, dtype=dtype, config=config)
        if not overwrite:
            job.first(functools.partial(check_free, "save_weights", path, ModelError))
        _write_folder(path, [*_lasting(built, weights)], built)
        return
    factors = factor_paths(built, merged)
    by_path = _lasting(built, weights)
    written = {path: merged.get(path, weight) for path, weight in by_path.items() if path not in factors}
    stored = () if weight_map is not None else [path for path in by_path if path not in merged]
    written = _dequantized(built, written, stored)
    source = MappedWeights(path, built.cell, written, weight_map or WeightMap(), checked_dtype(dtype))
    groups = grouped({name: nbytes(array) for name, array in source.arrays.items()}, max_bytes)
    metadata = {} if weight_map is None else _PYTORCH
    documents = {} if config is None else {_CONFIG: checked_config(config)}
    # all are of one step, whoever trains
    with (
        writing_to(path),
        built.cell.lock,
        TensorWriter("save_weights", path, source.arrays, groups, metadata, documents) as writer,
    ):

        def write(number: int) -> None:
            left = list(groups[number])

            def parts(name: str) -> Iterator[np.ndarray]:
                left.remove(name)
                yield from source.parts(name)

            try:
                if is_chief():
                    writer.write(number, parts)
            finally:
                for name in left if job.processes > 1 else ():  # all gather together, also if the first has failed
                    source.fetch(name)

        job.each(source.check_tied)
        for number in range(len(groups)):
            job.each(functools.partial(write, number))
        job.first(writer.commit)


def _lasting(built: BuiltModel, weights: Sequence[Any]) -> dict[str, Any]:
    """Return weights by path, without those that every call changes, such as states of RNNs."""
    return {path: weight for weight in weights if built.cell.row(path := built.path_of(weight)).role != "state"}


def _saved_path(filepath: str | os.PathLike[str]) -> pathlib.Path:
    """Return the path of a file, or of a folder of orbax; in other folders it is the file of Hugging Face."""
    if is_plain_folder(filepath):
        folder = folder_path(os.fspath(filepath))
        Rendezvous("a folder of weights").first(lambda: make_folder(folder))
        return folder / f"{_HUGGING_FACE}{SUFFIX}"
    return weights_path("save_weights", filepath, (SUFFIX, FOLDER_SUFFIX))


def load_weights(
    model: str,
    built: BuiltModel,
    weights: Sequence[Any],
    filepath: str | os.PathLike[str],
    strict: bool,
    weight_map: WeightMap | None,
    merged: Mapping[str, MergedWeight],
) -> LoadReport:
    """Set the weights of a model of this name to those in files, or in a folder; see `Model.load_weights`."""
    reader = _reader(filepath, built, TensorReader if weight_map is None else DequantizedFile)
    factors = factor_paths(built, merged)
    by_path = _lasting(built, weights)
    wanted = {path: weight for path, weight in by_path.items() if path not in factors or path in reader.shapes}
    if isinstance(reader, _Folder):
        check_no_map("load_weights", reader.path, weight_map)
    if not isinstance(reader, _Folder):
        quantized = {} if weight_map is not None else quantized_weights(built)
        stored = [path for path, one in quantized.items() if one.scale_path in reader.shapes]
        wanted = _dequantized(built, wanted, stored)
        _check_modes(reader, {path: wanted[path] for path in stored if path in wanted and path in reader.shapes})
    shapes = {path: weight.shape for path, weight in wanted.items()}
    source = MappedFile(reader.shapes, weight_map or WeightMap(), shapes)
    report = _compared(model, wanted, source, reader, strict)
    if isinstance(reader, _Folder):
        reader.assign({path: wanted[path] for path in report.loaded})
    else:
        _set(built.cell, reader, source, {path: wanted[path] for path in report.loaded})
    for path in report.loaded:
        if path in merged and built.path_of(merged[path].factors[-1]) not in wanted:
            merged[path].forget(built.cell)
    report.warn_of_rest(str(reader.path))
    if not isinstance(reader, _Folder) and weight_map is None:  # files of other programs have no checksums
        warn_unchecked(reader, source.names_of(report.loaded))
    return report


def _check_modes(reader: TensorReader, stored: Mapping[str, Any]) -> None:
    """Check that stored values in a file are of the mode in which the model is quantized."""
    wrong = [f"{path}: {reader.dtype(path)}, here {one.dtype}" for path, one in stored.items()]
    wrong = [text for text, (path, one) in zip(wrong, stored.items(), strict=True) if reader.dtype(path) != one.dtype]
    if wrong:
        summary = f"load_weights: {str(reader.path)!r} has weights that are quantized in another mode"
        raise ModelError(summary, given=listed(wrong), fix="quantize the model in the mode of the file")


def _dequantized(built: BuiltModel, weights: Mapping[str, Any], stored: Iterable[str]) -> dict[str, Any]:
    """Return weights with quantized ones in floating point and without scales, except those `stored` as they are."""
    quantized = {path: one for path, one in quantized_weights(built).items() if path not in {*stored}}
    scales = {one.scale_path for one in quantized.values()}
    kept = {path: weight for path, weight in weights.items() if path not in scales}
    return kept | {path: one for path, one in quantized.items() if kept.get(path) is one.values}


def _set(cell: StateCell, reader: TensorReader, source: MappedFile, weights: Mapping[str, Any]) -> None:
    """Set weights by path; if an error is raised, none is set."""

    def check() -> None:
        source.check_tied(reader)
        reader.check(source.names_of(weights))
        for path, weight in weights.items():
            for name in source.names_of([path]):
                check_narrowed(reader, name, weight.dtype)

    Rendezvous("a load of weights").each(check)
    for path, weight in weights.items():
        parts = source.open(reader, path, weight.shape)
        if isinstance(weight, QuantizedWeight):
            weight.set(cell, parts.__getitem__)
            release_after(cell.row(path).nbytes)
        else:
            set_array(cell, cell.place(path), parts.__getitem__, reader, path)


def _reader(filepath: str | os.PathLike[str], built: BuiltModel, kind: type[TensorReader]) -> TensorReader | _Folder:
    """Return what reads the weights at this path: of files of safetensors a reader of this kind."""
    folder = folder_path(os.fspath(filepath)) if isinstance(filepath, str | os.PathLike) else None
    if folder is not None and refreshed(folder).is_dir():
        file = None if in_bucket(folder) else _file_in(folder)
        return _Folder(folder, built) if file is None else kind("load_weights", file)
    is_folder = str(filepath).endswith("/") or (folder is not None and folder.suffix in ("", FOLDER_SUFFIX))
    if folder is not None and folder.name and is_folder and not folder.exists():
        given = f"filepath={shorten(filepath)}, which is {str(absolute(folder))!r}"
        fix = f"correct the path: of a folder, or of a file that ends in '{SUFFIX}', '.weights.h5' or '.keras'"
        raise FileMissingError(f"load_weights: the folder {str(filepath)!r} does not exist", given=given, fix=fix)
    return kind("load_weights", weights_path("load_weights", filepath, (SUFFIX, INDEX_SUFFIX, FOLDER_SUFFIX)))


def _file_in(folder: pathlib.Path) -> pathlib.Path | None:
    """Return the file of weights, or their index, in a folder of Hugging Face; None for a folder of orbax.

    They may be links to regular files: snapshots in its cache consist of these.
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
    raise ModelError(summary, given=f"a folder with {listed(others)}", fix=fix)


def files_of_others(folder: pathlib.Path) -> list[str]:
    """Return the names of weights files in a folder of Hugging Face; none for a checkpoint."""
    if (folder / MANIFEST).is_file() or newest_in(folder) is not None:
        return []
    return sorted(path.name for path in folder.iterdir() if path.suffix in (SUFFIX, *_PICKLES))


def _compared(
    model: str, weights: Mapping[str, Any], source: MappedFile, reader: TensorReader | _Folder, strict: bool
) -> LoadReport:
    """Compare weights with a file; return what can be loaded."""
    extra = source.extra()
    missing: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for path, weight in weights.items():
        lacking = [name for name in source.names_of([path]) if name not in reader.shapes]
        if lacking:
            missing[path] = path if lacking == [path] else f"{path}, there {listed(lacking)}"
            continue
        shape, wanted = weight.shape, weight.shape
        if isinstance(reader, TensorReader):
            parts = source.open(reader, path, shape)
            shape, wanted, is_complex = parts.shape, parts.wanted, parts.is_complex
        else:
            shape, is_complex = reader.shapes[path], jnp.issubdtype(reader.dtype(path), jnp.complexfloating)
        loses_part = is_complex and not jnp.issubdtype(weight.dtype, jnp.complexfloating)
        if shape != wanted or loses_part:
            unfit[path] = f"{path} {'complex ' if is_complex else ''}{shape} for {wanted}"
    if strict and (missing or extra or unfit or source.unused):
        raise misfit(model, str(reader.path), (missing.values(), extra, unfit.values(), source.unused))
    loaded = tuple(path for path in weights if path not in missing and path not in unfit)
    return LoadReport(loaded, tuple(missing), extra, tuple(unfit), source.unused)


def check_no_map(caller: str, path: pathlib.Path, weight_map: WeightMap | None, **others: Any) -> None:
    """Check that weights in other formats than safetensors keep their names and forms."""
    given = [name for name, value in {"weight_map": weight_map, **others}.items() if value is not None]
    if given:
        summary = f"{caller}: {', '.join(f'`{name}`' for name in given)} need files of safetensors"
        kind = "folder" if path.is_dir() else "file"
        raise ModelError(summary, given=f"the {kind} {str(path)!r}", fix="leave them out, or use '.safetensors'")


class _Folder:
    """The weights in a folder of orbax, which reads all arrays at once, each device its part."""

    caller = "load_weights"

    def __init__(self, path: pathlib.Path, built: BuiltModel) -> None:
        self.path = path
        self._plan = built.cell.plan
        self._stored = Stored.of_job(path)
        noted = self._stored.record["arrays"]
        streams = {row.path for row in self._plan.rows if row.role == "rng"}
        names = (name.removeprefix(_PREFIX) for name in noted if name.startswith(_PREFIX))
        self._noted = {name: noted[f"{_PREFIX}{name}"] for name in names if name not in streams}
        self.shapes = {name: tuple(one["shape"]) for name, one in self._noted.items()}

    def dtype(self, name: str) -> Any:
        """Return the element type of a weight."""
        return dtype_named(self._noted[name]["dtype"])

    def assign(self, weights: Mapping[str, Any]) -> None:
        """Set weights by path; if an error is raised, none is set."""
        values = self._read(list(weights))
        for name, weight in weights.items():
            self._check_cast(name, values[name], weight.dtype)
        for name, weight in weights.items():
            weight.assign(values.pop(name))

    def _read(self, names: Iterable[str]) -> dict[str, Any]:
        """Return weights in the layouts of the model; on the host where elements have 64 bits.

        Without `jax_enable_x64` arrays on devices have 32: numbers that are too large would be infinite.
        """
        for name in names:
            if is_key_dtype(self.dtype(name)):
                raise self._stored.unreadable(RECORD, f"the weight {name!r} of type {self.dtype(name)}")
        shardings = jax.tree.leaves(self._plan.shardings)
        places = {row.path: sharding for row, sharding in zip(self._plan.rows, shardings, strict=True)}
        wanted = {
            f"{_PREFIX}{name}": jax.ShapeDtypeStruct(
                self.shapes[name],
                dtype := self.dtype(name),
                sharding=places[self._plan.row(name).path] if jax.dtypes.canonicalize_dtype(dtype) == dtype else None,
            )
            for name in names
        }
        found: dict[str, Any] = {}
        Rendezvous("a load").each(lambda: found.update(self._stored.arrays(wanted)))
        return {name.removeprefix(_PREFIX): array for name, array in found.items()}

    def _check_cast(self, name: str, value: Any, dtype: Any) -> None:
        """Check that a weight keeps its values in another element type."""
        if not value.size or not is_narrower(dtype, value.dtype):
            return
        if isinstance(value, jax.Array):
            parts = jnp.stack([value.real, value.imag]) if jnp.iscomplexobj(value) else value
            kept = parts if jnp.issubdtype(dtype, jnp.integer) else jnp.where(jnp.isfinite(parts), parts, 0)
            value = np.asarray(jnp.stack([jnp.min(kept), jnp.max(kept)]))
        narrowed(value, dtype, self, name)


def _write_folder(path: pathlib.Path, names: Sequence[str], built: BuiltModel) -> None:
    """Write weights to a folder, which is complete or does not exist."""
    cell = built.cell
    with cell.lock:
        arrays = {f"{_PREFIX}{name}": cell.read(name) for name in names}
        finish = Snapshot(cell.steps_taken, arrays, cell.plan).begin(path)
    finish()
