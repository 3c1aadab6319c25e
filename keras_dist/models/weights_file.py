"""`WeightsFile`: the weights of a model in `.safetensors` files, or in a folder of orbax, and back."""

from __future__ import annotations

import dataclasses
import errno
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

from keras_dist import _jax
from keras_dist._arguments import is_number
from keras_dist.callbacks.first_process import is_first_process
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.rendezvous import Rendezvous
from keras_dist.errors import ModelError, shorten
from keras_dist.models.checkpointing import FROM_KERAS, KERAS_FILES
from keras_dist.models.session import Session
from keras_dist.models.weight_names import NameMap, Origin, Parts, Transforms, WeightNames
from keras_dist.models.weights_folder import SUFFIX as FOLDER_SUFFIX
from keras_dist.models.weights_folder import StoredWeights, write_weights
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

_BYTES_PER_GB = 1024**3  # what Keras calls a GB
_MOST_GB = 2**20
_LISTED = 5


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
        kinds = {
            "loaded": self.loaded,
            "missing in the file": self.missing,
            "not in the model": self.extra,
            "of another shape": self.misshaped,
            "rules that match no weight": self.unused,
        }
        return "; ".join(f"{len(names)} {kind}: {_listed(names)}" for kind, names in kinds.items() if names) or "empty"


class WeightsFile:
    """Weights in files. Subclasses say which weights there are, and when they are born."""

    name: str

    @property
    def weights(self) -> list[Any]:
        """Handles on the weights."""
        raise NotImplementedError

    def _born(self, x: Any = None) -> Session:
        raise NotImplementedError

    def save_weights(
        self,
        filepath: str | os.PathLike[str],
        overwrite: bool = True,
        max_shard_size: float | None = None,
    ) -> None:
        """Write the weights to a safetensors file, whole, under their paths; to several if they are large.

        What is there stays whole until the new weights are; an interrupted save leaves it as it was. Where there are
        several processes, all must call; the first one writes, and the others wait for it and raise what it does.
        Neither the keys of random streams nor the state of
        the optimizer are in it. Each weight has a checksum in the header of its file, which `load_weights` compares.

        Args:
            filepath: a file that ends in `.safetensors`, in a folder that exists. Or a path that ends in `.orbax`: a
                folder, to which each process writes what its devices hold, so that no weight is ever whole.
            overwrite: whether a file that exists is replaced.
            max_shard_size: in GB of 1024**3 bytes, as in Keras. More weights than that go to several files in Hugging
                Face's form, `model-00001-of-00003.safetensors` and so on, and `model.safetensors.index.json`, which
                names them; files of a save that is replaced make others take numbered names, `model.2-00001-of-...`.
                A weight that is larger has a file of its own. The host holds the weights of one file at a time.
                None for a single file; orbax has files of its own.

        Raises:
            ModelError: the path ends in anything else, the file exists and is not to be replaced, a weight has an
                element type that the format does not know, `max_shard_size` is no size, or the weights are not born
                yet.
            CheckpointError: the path is to be a folder, and is a file or a folder of other things.
            OSError: a file cannot be written.

        Example:
            >>> import pathlib, tempfile
            >>> import keras_dist as kd
            >>> from safetensors.numpy import load_file
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1")])
            >>> model.save_weights(folder / "model.safetensors")
            >>> {name: value.shape for name, value in sorted(load_file(folder / "model.safetensors").items())}
            {'d1/bias': (2,), 'd1/kernel': (3, 2)}
            >>> print(model.load_weights(folder / "model.safetensors"))
            2 loaded: d1/kernel, d1/bias
            >>> model.save_weights(folder / "large.safetensors", max_shard_size=20 / 1024**3)
            >>> for path in sorted(folder.glob("large*")):
            ...     print(path.name)
            large-00001-of-00002.safetensors
            large-00002-of-00002.safetensors
            large.safetensors.index.json

        Differs from Keras: `filepath` is the same with and without `max_shard_size`, and a weight may be larger.

        Source: `keras.Model.save_weights`.
        """
        path = weights_path("save_weights", filepath, (SUFFIX, FOLDER_SUFFIX))
        max_bytes = _checked_size(max_shard_size)
        is_folder = path.suffix == FOLDER_SUFFIX
        job = Rendezvous("a save of weights")
        if not overwrite:
            job.first(lambda: _check_free((path,) if is_folder else (path, index_path(path))))
        handles = {weight.path: weight for weight in self.weights}
        if is_folder:
            write_weights(path, list(handles), self._born())
            return
        sizes = {name: math.prod(weight.shape) * _jax.itemsize(weight.dtype) for name, weight in handles.items()}
        groups = grouped(sizes, max_bytes)
        # all are of one step, whoever trains
        session = self._born()
        with writing_to(path), session.cell.lock, TensorWriter("save_weights", path, sizes, groups) as writer:

            def write(number: int) -> None:
                if is_first_process():
                    writer.write(number, fetched(groups[number], lambda name: handles[name].numpy()))
                else:
                    for name in groups[number]:
                        handles[name].numpy()  # of which this process may hold parts

            for number in range(len(groups)):
                job.each(functools.partial(write, number))
            job.first(writer.commit)

    def load_weights(
        self,
        filepath: str | os.PathLike[str],
        skip_mismatch: bool = False,
        *,
        strict: bool = True,
        name_map: NameMap | None = None,
        transform: Transforms | None = None,
    ) -> LoadReport:
        r"""Set the weights to those that `save_weights`, or another program, wrote, from the next step on.

        Layouts and element types stay those of the model; so the file may come from another mesh. Of each array only
        what the devices of this process hold is copied, after its checksum was compared; files of other programs have
        none, which a warning tells. In a job of several processes all must call.

        Args:
            filepath: a file that ends in `.safetensors`, or an index that ends in `.safetensors.index.json`. Where
                there is no such file the index beside it is read. Or a folder of orbax, also one of `model.save` or of
                a `CheckpointManager`, whose weights alone are taken then; each device reads its part.
            skip_mismatch: Keras's word for `strict=False`.
            strict: whether names and shapes must be those of the model, and every rule of `name_map` and `transform` be
                used. Else what fits is set, and a warning tells what was left out.
            name_map: what weights are called in the file: a dict from regular expressions for whole paths of weights to
                names, in which `\1` stands for the first group. A list of names is joined along the dim which gives
                the weight's shape, or stacked along a new first one. Other weights go by their paths.
            transform: a dict from such regular expressions to functions, called with each array of the file that the
                weight is made of, before they are joined. What a function gives as a view of the array (transposed,
                reshaped, split, sliced) is read in part; a function that computes has the whole array on the host, is
                called twice, and one array after the other.

        Returns:
            What was set, and what was not.

        Raises:
            ModelError: the file is none of safetensors, is damaged, or its names or shapes are not those of the model;
                of an index, a file is missing, elsewhere, of another save, or lacks a weight; `name_map` or `transform`
                cannot be used. No weight is set then.
            CheckpointError: the folder is damaged, or holds no weights.
            FileNotFoundError: there is no such file.

        Example:
            >>> import pathlib, tempfile, warnings
            >>> import keras_dist as kd
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
            >>> kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1")]).save_weights(path)
            >>> other = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1"), kd.layers.Dense(5, name="d2")])
            >>> with warnings.catch_warnings(action="ignore"):
            ...     print(other.load_weights(path, strict=False))
            2 loaded: d1/kernel, d1/bias; 2 missing in the file: d2/kernel, d2/bias

            Hugging Face's names: here each kernel is the other way round, and query, key and value are one kernel.

            >>> import numpy as np
            >>> from safetensors.numpy import save_file
            >>> names = [f"layers.0.self_attn.{kind}_proj.weight" for kind in "qkv"]
            >>> save_file({name: np.ones((2, 3), np.float32) for name in names}, path)
            >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(6, use_bias=False, name="qkv_0")])
            >>> with warnings.catch_warnings(action="ignore"):  # it has no checksums
            ...     report = model.load_weights(
            ...         path,
            ...         name_map={r"qkv_(\d+)/kernel": [rf"layers.\1.self_attn.{kind}_proj.weight" for kind in "qkv"]},
            ...         transform={r".*/kernel": lambda kernel: kernel.T},
            ...     )
            >>> print(report)
            1 loaded: qkv_0/kernel

            The other way round, one array for three kernels, each takes its part:
            `transform={"q/kernel": lambda qkv: qkv[:256].T, "k/kernel": lambda qkv: qkv[256:512].T, ...}`.

        Differs from Keras: `name_map` and `transform`.

        Source: `keras.Model.load_weights`.
        """
        strict = strict and not skip_mismatch
        reader, names = self._reader(filepath), WeightNames(name_map, transform)
        handles = {weight.path: weight for weight in self.weights}
        origins, unused = names.origins(handles)
        if not isinstance(reader, TensorReader) and (name_map or transform):
            raise ModelError(
                "load_weights: `name_map` and `transform` are for files of safetensors",
                given=f"the folder {str(reader.path)!r}",
                expected="weights of orbax, which keep their names and shapes",
                fix="leave them out, or load a file that ends in '.safetensors'",
            )
        report = self._compared(handles, origins, unused, reader, strict)
        if isinstance(reader, TensorReader):
            self._read(reader, {path: origins[path] for path in report.loaded})
        else:
            values = reader.read(report.loaded)
            for name in report.loaded:
                handles[name].assign(values.pop(name))
        if not strict and (report.missing or report.extra or report.misshaped or report.unused):
            warnings.warn(f"load_weights: {str(reader.path)!r} fits in part: {report}", stacklevel=2)
        if isinstance(reader, TensorReader) and reader.lacks_checksums(_names_in(origins, report.loaded)):
            warnings.warn(
                f"load_weights: {str(reader.path)!r} has no checksums, so that damaged bytes would not be noticed: "
                "keras_dist did not write it; model.save_weights does it with them",
                stacklevel=2,
            )
        return report

    def _read(self, reader: TensorReader, origins: Mapping[str, Origin]) -> None:
        """Set weights, of which each device of this process gets its part.

        Raises:
            ModelError: an array is damaged. None is set then.
        """
        Rendezvous("a load of weights").each(lambda: reader.check(_names_in(origins, origins)))
        cell = self._born().cell
        for path, origin in origins.items():
            row = cell.row(path)
            parts, found = origin.of(reader, path, row.shape), {}

            def part(index: Any, parts: Parts = parts, dtype: Any = row.dtype, found: Any = found) -> np.ndarray:
                key = str(index)  # devices that hold the same share it
                if key not in found:
                    found[key] = np.array(parts[index], dtype)
                return found[key]

            sharding = TensorLayout(row.axes, cell.mesh).backend_layout
            cell.write(path, jax.make_array_from_callback(row.shape, sharding, part))

    def _reader(self, filepath: Any) -> TensorReader | StoredWeights:
        """What reads the weights at this path."""
        if isinstance(filepath, str | os.PathLike) and pathlib.Path(filepath).is_dir():
            return StoredWeights(pathlib.Path(filepath), self._born())
        path = weights_path("load_weights", filepath, (SUFFIX, INDEX_SUFFIX, FOLDER_SUFFIX))
        if path.suffix == FOLDER_SUFFIX:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return TensorReader("load_weights", path)

    def _compared(
        self,
        handles: Mapping[str, Any],
        origins: Mapping[str, Origin],
        unused: tuple[str, ...],
        reader: TensorReader | StoredWeights,
        strict: bool,
    ) -> LoadReport:
        """What can be loaded.

        Raises:
            ModelError: not all, and `strict`; all that is wrong is told.
        """
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
            if shape != weight.shape or _loses_part(is_complex, weight):
                unfit[path] = f"{path} {_told(shape, is_complex)} for {weight.shape}"
        if strict and (missing or extra or unfit or unused):
            problems = {
                "missing in the file": tuple(missing.values()),
                "not in the model": extra,
                "of another shape": tuple(unfit.values()),
                "rules that match no weight": unused,
            }
            raise ModelError(
                f"load_weights: {str(reader.path)!r} does not fit model {self.name!r}",
                given="; ".join(f"{kind}: {_listed(names)}" for kind, names in problems.items() if names),
                expected=f"the names and shapes of its {len(handles)} weights",
                fix="load it into a model made like the one it was saved from, or pass strict=False to load what fits; "
                "model.layout_plan lists the names; for other names and shapes see `name_map` and `transform`",
            )
        loaded = tuple(path for path in handles if path not in missing and path not in unfit)
        return LoadReport(loaded, tuple(missing), extra, tuple(unfit), unused)


def _names_in(origins: Mapping[str, Origin], paths: Iterable[str]) -> list[str]:
    """The arrays in a file that weights are made of, each once."""
    return list(dict.fromkeys(name for path in paths for name in origins[path].names))


def weights_path(caller: str, filepath: Any, suffixes: Sequence[str]) -> pathlib.Path:
    """The path of weights, whose suffix tells in which form they are.

    Raises:
        ModelError: it ends in none of the suffixes.
    """
    if isinstance(filepath, str | os.PathLike) and str(os.fspath(filepath)).endswith(tuple(suffixes)):
        return pathlib.Path(filepath)
    is_of_keras = caller == "load_weights" and str(filepath).endswith(KERAS_FILES)
    raise ModelError(
        f"{caller}: the path of a file of weights ends in {' or '.join(map(repr, suffixes))}",
        given=f"filepath={shorten(filepath)}",
        expected=f"a path that ends in {' or '.join(map(repr, suffixes))}; Keras's '.weights.h5' and '.keras' are "
        "neither written nor read",
        fix=FROM_KERAS if is_of_keras else f"for example 'model.weights{SUFFIX}'",
    )


def _check_free(files: Sequence[pathlib.Path]) -> None:
    """Nothing, if none of these files is there.

    Raises:
        ModelError: one is.
    """
    for file in files:
        if file.exists():
            raise ModelError(
                f"save_weights: {str(file)!r} exists",
                given="overwrite=False",
                expected="a path where there is no file",
                fix="choose another path, or pass overwrite=True",
            )


def _checked_size(max_shard_size: Any) -> float | None:
    """The size in bytes, from one in GB.

    Raises:
        ModelError: it is none.
    """
    if max_shard_size is None:
        return None
    if not is_number(max_shard_size) or not 0 < max_shard_size < _MOST_GB:
        raise ModelError(
            "save_weights: `max_shard_size` is no size of a file",
            given=f"max_shard_size={shorten(max_shard_size)}",
            expected=f"a number of GB of 1024**3 bytes, above 0 and below {_MOST_GB}, or None for a single file",
            fix="for example max_shard_size=0.5 for half a GB",
        )
    return max_shard_size * _BYTES_PER_GB


def _loses_part(is_complex: bool, weight: Any) -> bool:
    """Whether the elements have an imaginary part for which the weight has no place."""
    return is_complex and not jnp.issubdtype(weight.dtype, jnp.complexfloating)


def _told(shape: tuple[int, ...], is_complex: bool) -> str:
    return f"complex {shape}" if is_complex else f"{shape}"


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many others there are."""
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
