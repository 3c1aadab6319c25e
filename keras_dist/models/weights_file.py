"""`WeightsFile`: the weights of a model in `.safetensors` files, or in a folder of orbax, and back."""

from __future__ import annotations

import dataclasses
import errno
import functools
import math
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from keras_dist import _jax
from keras_dist.callbacks.first_process import is_first_process
from keras_dist.distribution.rendezvous import Rendezvous
from keras_dist.errors import ModelError, shorten
from keras_dist.models.session import Session
from keras_dist.models.weights_folder import SUFFIX as FOLDER_SUFFIX
from keras_dist.models.weights_folder import StoredWeights, write_weights
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
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    misshaped: tuple[str, ...] = ()

    def __str__(self) -> str:
        kinds = {
            "loaded": self.loaded,
            "missing in the file": self.missing,
            "not in the model": self.extra,
            "of another shape": self.misshaped,
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
        the optimizer are in it.

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
        with self._born().cell.lock, TensorWriter("save_weights", path, sizes, groups) as writer:

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
        self, filepath: str | os.PathLike[str], skip_mismatch: bool = False, *, strict: bool = True
    ) -> LoadReport:
        """Set the weights to those that `save_weights` wrote, from the next step on.

        Layouts and element types stay those of the model; so the file may come from another mesh.

        Args:
            filepath: a file that ends in `.safetensors`, or an index that ends in `.safetensors.index.json`. Where
                there is no such file the index beside it is read. Or a folder of orbax, also one of `model.save` or of
                a `CheckpointManager`, whose weights alone are taken then; each device reads its part.
            skip_mismatch: Keras's word for `strict=False`.
            strict: whether names and shapes must be those of the model. Else what fits is set, and a warning tells what
                was left out.

        Returns:
            What was set, and what was not.

        Raises:
            ModelError: the file is none of safetensors, or its names or shapes are not those of the model; of an index,
                a file is missing, damaged, elsewhere, of another save, or lacks a weight. No weight is set then.
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

        Source: `keras.Model.load_weights`.
        """
        strict = strict and not skip_mismatch
        reader = self._reader(filepath)
        handles = {weight.path: weight for weight in self.weights}
        report = self._compared(handles, reader, strict)
        values = reader.read(report.loaded)
        for name in report.loaded:
            handles[name].assign(values.pop(name))
        if not strict and (report.missing or report.extra or report.misshaped):
            warnings.warn(f"load_weights: {str(reader.path)!r} fits in part: {report}", stacklevel=2)
        return report

    def _reader(self, filepath: Any) -> TensorReader | StoredWeights:
        """What reads the weights at this path."""
        if isinstance(filepath, str | os.PathLike) and pathlib.Path(filepath).is_dir():
            return StoredWeights(pathlib.Path(filepath), self._born())
        path = weights_path("load_weights", filepath, (SUFFIX, INDEX_SUFFIX, FOLDER_SUFFIX))
        if path.suffix == FOLDER_SUFFIX:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return TensorReader("load_weights", path)

    def _compared(self, handles: dict[str, Any], reader: TensorReader | StoredWeights, strict: bool) -> LoadReport:
        """What can be loaded.

        Raises:
            ModelError: not all, and `strict`; all that is wrong is told.
        """
        shapes, extra = reader.shapes, tuple(name for name in reader.shapes if name not in handles)
        missing = tuple(name for name in handles if name not in shapes)
        unfit = {
            name: f"{name} {_told(shapes[name], reader.is_complex(name))} for {weight.shape}"
            for name, weight in handles.items()
            if name in shapes and (shapes[name] != weight.shape or _loses_part(reader.is_complex(name), weight))
        }
        if strict and (missing or extra or unfit):
            problems = {
                "missing in the file": missing,
                "not in the model": extra,
                "of another shape": tuple(unfit.values()),
            }
            raise ModelError(
                f"load_weights: {str(reader.path)!r} does not fit model {self.name!r}",
                given="; ".join(f"{kind}: {_listed(names)}" for kind, names in problems.items() if names),
                expected=f"the names and shapes of its {len(handles)} weights",
                fix="load it into a model made like the one it was saved from, or pass strict=False to load what fits; "
                "model.layout_plan lists the names",
            )
        loaded = tuple(name for name in handles if name in shapes and name not in unfit)
        return LoadReport(loaded, missing, extra, tuple(unfit))


def weights_path(caller: str, filepath: Any, suffixes: Sequence[str]) -> pathlib.Path:
    """The path of weights, whose suffix tells in which form they are.

    Raises:
        ModelError: it ends in none of the suffixes.
    """
    if isinstance(filepath, str | os.PathLike) and str(os.fspath(filepath)).endswith(tuple(suffixes)):
        return pathlib.Path(filepath)
    raise ModelError(
        f"{caller}: the path of a file of weights ends in {' or '.join(map(repr, suffixes))}",
        given=f"filepath={shorten(filepath)}",
        expected=f"a path that ends in {' or '.join(map(repr, suffixes))}; Keras's '.weights.h5' and '.keras' are "
        "neither written nor read",
        fix=f"for example 'model.weights{SUFFIX}'",
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
    is_number = isinstance(max_shard_size, int | float) and not isinstance(max_shard_size, bool)
    if not is_number or not 0 < max_shard_size < _MOST_GB:
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
