"""Files of a model: weights, whole models, and states of a training run."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_dist._support.arguments import check_flag
from keras_dist.adapters.quantizing import modes_of
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.errors import ModelError
from keras_dist.files.regular_files import explaining_missing
from keras_dist.formats import model_state, weights_files
from keras_dist.formats.array_store import retried
from keras_dist.formats.keras_files import save_keras
from keras_dist.formats.keras_weights import load_h5_weights, save_h5_weights
from keras_dist.formats.load_report import LoadReport
from keras_dist.formats.save_formats import check_fits_form, checked_size, format_of_model, path_of_keras
from keras_dist.formats.weight_map import WeightMap
from keras_dist.models import describing
from keras_dist.models.model_base import ModelBase
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.lora_weights import merged_weights


def save_weights(
    model: ModelBase,
    filepath: str | os.PathLike[str],
    overwrite: bool = True,
    max_shard_size: float | None = None,
    objects_to_skip: Sequence[Any] | None = None,
    *,
    weight_map: WeightMap | None = None,
    dtype: Any = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Save the weights by path in a safetensors file, or in several files if they are large.

    An existing file stays whole until the new one is complete. In a job of several processes all must call: the
    first one writes, the others wait and raise the same errors. The keys of random streams and the optimizer's
    state are not saved. Each weight has a checksum in the header of its file, which `load_weights` compares; in a
    `.weights.h5` and in a `.keras` file it is an attribute of the array, which Keras ignores.

    Of a layer with LoRA the file has the sum of the frozen weight and the product, as in Keras, and no factors;
    models with and without LoRA can load it. A folder of orbax has all three.

    Args:
        filepath: a file that ends in `.safetensors`, in a folder that exists. Or a folder, or a path without a
            suffix, for `model.safetensors` in it, as Hugging Face has it. Or a path that ends in `.orbax`: a
            folder, to which each process writes what its devices hold, so that no weight is gathered. Or one that
            ends in `.weights.h5`, which Keras reads, with the state of the optimizer if Keras has such a one;
            that needs the extra `h5`.
        overwrite: whether a file that exists is replaced.
        max_shard_size: in GB of 1024**3 bytes, as in Keras. More weights than that go to several files in Hugging
            Face's form, `model-00001-of-00003.safetensors` and so on, and `model.safetensors.index.json`, which
            names them; files of a save that is replaced make others take numbered names, `model.2-00001-of-...`.
            A larger weight gets a separate file. The host holds one weight at a time, of a stack one layer.
            None for a single file; ignored for orbax. With `.weights.h5` or `.weights.json` the files are
            `model_00000.weights.h5` and so on, as in Keras, with the index `model.weights.json`. The index is
            missing while files of an earlier save are replaced, because Keras fixes their names.
        objects_to_skip: layers whose weights are left out of a `.weights.h5`.
        weight_map: names and forms of the weights in files of another program: the map with which they were loaded.
        dtype: element type of floating-point numbers in the file, for example `"bfloat16"`; by default as in the
            model.
        config: plain values, written as `config.json` beside the files.

    Raises:
        ModelError: the path ends in anything else, the file exists and is not to be replaced, a weight has an
            element type that the format does not support, `max_shard_size` is not a size, the weights do not
            exist yet, or `weight_map` cannot be inverted.
        CheckpointError: a folder must be written, and the path is a file or a folder of other things.
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

    Differs from Keras: `filepath` is the same with and without `max_shard_size`, and a weight may be larger;
    `weight_map`, `dtype` and `config`.
    """
    path, built = path_of_keras("save_weights", filepath), model._with_weights()
    check_fits_form(path, filepath, objects_to_skip)
    if path is None:
        merged = merged_weights(built)
        form = (weight_map, dtype, config)
        weights_files.save_weights(built, model.weights, filepath, overwrite, max_shard_size, merged, *form)
    else:
        weights_files.check_no_map("save_weights", path, weight_map, dtype=dtype, config=config)
        _check_not_quantized("save_weights", built, path)
        save_h5_weights(model, built, path, overwrite, checked_size(max_shard_size), objects_to_skip or ())


def load_weights(
    model: ModelBase,
    filepath: str | os.PathLike[str],
    skip_mismatch: bool = False,
    *,
    strict: bool = True,
    weight_map: WeightMap | None = None,
    objects_to_skip: Sequence[Any] | None = None,
) -> LoadReport:
    r"""Load weights that `save_weights` or another program wrote. They apply from the next step.

    The model keeps its layouts and element types, so the file may come from another mesh. Only
    the parts that devices of this process hold are copied, after checksums are compared. Files of other programs
    have no checksums, which is warned of once in a process. In a job of several processes all must call.

    Args:
        filepath: a file that ends in `.safetensors`, or an index that ends in `.safetensors.index.json`. Where
            this file is missing, the index beside it is read. Or a folder of Hugging Face, with
            `model.safetensors`, or with `model.safetensors.index.json` and the files that it names; links are
            followed to regular files, since its cache consists of links. Or a folder of orbax, also one of
            `model.save` or of a `CheckpointManager`, of which only the weights are read; each device reads its
            part. Or a file of Keras: `.weights.h5`, `.weights.json` with its files, `.keras` or a folder of what is
            in one; where the model has taken a step, its optimizer takes over the state of the file's, as in Keras.
        skip_mismatch: True is the same as `strict=False`, as in Keras.
        strict: whether names and shapes must match the model, and every rule of `weight_map` must be used.
            Otherwise what fits is set, and a warning lists the rest. Factors of LoRA may be missing in any case.
        weight_map: names and forms of the weights in files of another program, see `kd.interop.WeightMap`.
        objects_to_skip: layers that are left alone, of a `.weights.h5`.

    Returns:
        What was set, and what was not.

    Raises:
        ModelError: the file has another format, is damaged, its names or shapes do not match the model, or an
            element type of the model cannot hold a number; of an index, a file is missing, elsewhere, of another
            save, or lacks a weight; `weight_map` cannot be used. No weight is set then.
        CheckpointError: the folder is damaged, or holds no weights.
        FileNotFoundError: the file does not exist.

    Example:
        >>> import pathlib, tempfile, warnings
        >>> import keras_dist as kd
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1")]).save_weights(path)
        >>> other = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, name="d1"), kd.layers.Dense(5, name="d2")])
        >>> with warnings.catch_warnings(action="ignore"):
        ...     print(other.load_weights(path, strict=False))
        2 loaded: d1/kernel, d1/bias; 2 missing in the file: d2/kernel, d2/bias

    Differs from Keras: `weight_map`.
    """
    strict = strict and not skip_mismatch
    path, built = path_of_keras("load_weights", filepath), model._with_weights()
    check_fits_form(path, filepath, objects_to_skip)
    if path is None:
        options = (strict, weight_map, merged_weights(built))
        with explaining_missing("load_weights", filepath):
            return retried(lambda: weights_files.load_weights(model.name, built, model.weights, filepath, *options))
    weights_files.check_no_map("load_weights", path, weight_map)
    with explaining_missing("load_weights", filepath):
        return load_h5_weights(model, built, path, strict, objects_to_skip or ())


def save(
    model: ModelBase,
    filepath: str | os.PathLike[str],
    overwrite: bool = True,
    zipped: bool | None = None,
    *,
    save_format: str | None = None,
    **unknown: Any,
) -> None:
    """Save the model in a folder: config, weights, optimizer state, arguments of `compile`, layouts, versions.

    The save is atomic: an existing folder is replaced once the new one is complete. `load_model` reads it on any
    mesh. In a job all processes must call it. A model of `from_nnx` has no config: pass its factory to
    `load_model`.

    A path that ends in `.keras` creates an archive that Keras can load, with the optimizer state if Keras has the
    optimizer. Layouts, random streams and other additions of keras_dist are stored in parts that Keras ignores. The
    first process writes the archive, one array after another. This needs the extra `h5`.

    Args:
        filepath: path of a new folder, also in a bucket, `"gs://bucket/digits"`; or of a `.keras` file.
        overwrite: whether to replace an existing model. In a bucket it is deleted first, and is lost if the save
            fails.
        zipped: False for a folder with the members of a `.keras` archive, which Keras can load; the path must not
            end in `.keras`.
        save_format: ignored with a warning: the path determines the format.
        **unknown: must be empty.

    Raises:
        ConfigError: a layer or an argument of a constructor cannot be serialized.
        CheckpointError: the path exists and `overwrite` is False, or it cannot become a folder.
        ModelError: the weights do not exist yet, the path has another suffix, an argument is unknown, or a file of
            Keras would have to hold adapters of `enable_lora`.
        OSError: a file cannot be written.

    Differs from Keras: folders, with a file of arrays for each device. Arguments of `compile` that cannot be
    serialized are left out, with a warning.

    Example:
        >>> import pathlib, tempfile
        >>> import keras_dist as kd
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "digits"
        >>> model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(10, name="d1")])
        >>> model.save(path)
        >>> [weight.path for weight in kd.models.load_model(path).weights]
        ['d1/kernel', 'd1/bias']
    """
    form, path = format_of_model(filepath, zipped, save_format, unknown)
    if form != "folder":
        _check_not_quantized("save", model._with_weights(), path)
    if form != "folder" and model._record.adapters is not None:
        fix = "merge_lora() first; or save to a folder; or save_adapter, which saves the adapters alone"
        raise ModelError("save: files of Keras cannot hold adapters", given=f"{str(path)!r}", fix=fix)
    if form == "folder":
        built = model._with_weights()
        model_state.save_folder(built, describing.documents_of(model), path, overwrite)
        return
    description, built = describing.described(model), model._with_weights()
    save_keras(model, built, description, path, overwrite, form == "keras")


def _check_not_quantized(method: str, built: BuiltModel, path: pathlib.Path) -> None:
    if modes_of(built):
        fix = "save to a folder, or weights to a file that ends in '.safetensors'"
        raise ModelError(f"{method}: files of Keras cannot hold quantized weights", given=f"{str(path)!r}", fix=fix)


def snapshot(model: ModelBase, *, with_config: bool = False) -> Snapshot:
    """Return the whole training state: weights, statistics, optimizer slots and random streams.

    During `fit` the snapshot also contains its position: the batch, and the states of loss, metrics and callbacks.
    A `CheckpointManager` writes it. The next step deletes its arrays.

    Args:
        with_config: whether to include the config, so that `load_model` can create the model.

    Raises:
        ModelError: the weights do not exist yet; or `fit` runs in another thread, and its position is known only
            in its callbacks.
    """
    built = model._with_weights()
    documents = describing.documents_of(model) if check_flag("with_config", with_config) else {}
    return model_state.snapshot(built, built.step_runner.progress, documents)


@contextlib.contextmanager
def at_rest(model: ModelBase) -> Iterator[None]:
    """Context manager in which steps of other threads wait, so that none consumes the arrays of a `snapshot`.

    Raises:
        ModelError: the weights do not exist yet.
    """
    with model._with_weights().cell.lock:
        yield


def restore(model: ModelBase, stored: Stored, continue_training: bool = False) -> None:
    """Restore a state that `snapshot` returned, on the mesh of this model.

    Args:
        stored: a checkpoint, as `CheckpointManager.newest` returns it, of any mesh.
        continue_training: whether the `fit` that is about to begin resumes at the stored position; for callbacks,
            in `on_train_begin`.

    Raises:
        CheckpointError: variables or slots do not match the model; the error lists all mismatches, and the model
            is unchanged. Or arrays cannot be read although the files are intact; some arrays of a large model may
            then be deleted, and must be restored again.
        ModelError: the checkpoint has no `fit` to continue, or a `fit` with other batches, loss or metrics; the
            model is unchanged.
    """
    model_state.restore(model.name, model._with_weights(), stored, continue_training)
