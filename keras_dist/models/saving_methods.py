"""`SavingMethods`: configs, files, exported programs and copies of a model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, SupportsIndex

from keras_dist._support.arguments import check_flag, names_unknown_keywords
from keras_dist._support.types import PyTree
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.errors import ModelError
from keras_dist.files.regular_files import explaining_missing
from keras_dist.formats.array_store import retried
from keras_dist.formats.keras_files import save_keras
from keras_dist.formats.keras_weights import load_h5_weights, save_h5_weights
from keras_dist.formats.load_report import LoadReport
from keras_dist.formats.lora_weights import merged_weights
from keras_dist.formats.model_state import restore, save_folder, snapshot
from keras_dist.formats.save_formats import check_fits_form, checked_size, format_of_model, path_of_keras
from keras_dist.formats.weight_map import WeightMap
from keras_dist.formats.weights_files import check_no_map, load_weights, save_weights
from keras_dist.models import describing
from keras_dist.models.config import check_described, graph_config, is_of_graph, with_graph, written_argument
from keras_dist.models.exporting import FORMAT, export
from keras_dist.models.trainer import Trainer
from keras_dist.serialization import custom_object_scope, deserialize_keras_object, serialize_keras_object
from keras_dist.serialization.shared_objects import one_config_read, one_config_written


class SavingMethods(Trainer):
    """The methods of `Model` that save, load, export and copy."""

    def get_state_tree(self, value_format: str = "backend_tensor") -> dict[str, Any]:
        """Return the values of all variables, as nested dicts by the names in their paths.

        Args:
            value_format: `"backend_tensor"` for arrays of JAX, `"numpy_array"` for arrays on the host.

        Returns:
            A dict with `"trainable_variables"`, `"non_trainable_variables"`, `"optimizer_variables"` and
            `"metrics_variables"`.

        Raises:
            ModelError: two variables of a kind have the same path, or `value_format` is none of these.
        """
        return describing.state_tree_of(self, value_format)

    def set_state_tree(self, state_tree: Mapping[str, Any]) -> None:
        """Set the variables whose paths are in nested dicts, such as `get_state_tree` returns.

        Args:
            state_tree: values by kind of variable, then by path. Variables without a value stay unchanged; paths that
                the model does not have are ignored.

        Raises:
            ModelError: `state_tree` contains another kind.
        """
        describing.set_state_tree_of(self, state_tree)

    @names_unknown_keywords
    def save_weights(
        self,
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
        path, session = path_of_keras("save_weights", filepath), self._with_weights()
        check_fits_form(path, filepath, objects_to_skip)
        if path is None:
            merged = merged_weights(self, session)
            form = (weight_map, dtype, config)
            save_weights(session, self.weights, filepath, overwrite, max_shard_size, merged, *form)
        else:
            check_no_map("save_weights", path, weight_map, dtype=dtype, config=config)
            save_h5_weights(self, session, path, overwrite, checked_size(max_shard_size), objects_to_skip or ())

    @names_unknown_keywords
    def load_weights(
        self,
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
        path, session = path_of_keras("load_weights", filepath), self._with_weights()
        check_fits_form(path, filepath, objects_to_skip)
        if path is None:
            options = (strict, weight_map, merged_weights(self, session))
            with explaining_missing("load_weights", filepath):
                return retried(lambda: load_weights(self.name, session, self.weights, filepath, *options))
        check_no_map("load_weights", path, weight_map)
        with explaining_missing("load_weights", filepath):
            return load_h5_weights(self, session, path, strict, objects_to_skip or ())

    def get_config(self) -> dict[str, Any]:
        """Return the model without its weights as plain values that JSON can represent.

        The config of a functional model contains its layers and calls, as in Keras; for other models it contains the
        arguments of the constructor. Explicit layouts are lists of axes. `from_config` finds registered subclasses. A
        subclass whose constructor takes more than plain values overrides `get_config` and `from_config`.

        Raises:
            ConfigError: a layer or an argument cannot be serialized.

        Example:
            >>> import keras_dist as kd
            >>> from keras_dist import layers
            >>> inputs = kd.Input((8,), name="x")
            >>> model = kd.Model(inputs, layers.Dense(3, name="d1")(inputs))
            >>> again = kd.Model.from_config(model.get_config())
            >>> [weight.path for weight in again.weights]
            ['d1/kernel', 'd1/bias']
        """
        if not is_of_graph(self):
            check_described(self)
            with one_config_written():
                return super().get_config()
        return graph_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Create a model from the result of `get_config`, with new weights on the current distribution.

        Args:
            config: plain values.
            custom_objects: classes and functions by name, in addition to registered ones.

        Raises:
            ConfigError: the config is damaged, or names a class or function that is not registered.
        """
        with custom_object_scope(custom_objects), one_config_read():
            return super().from_config(with_graph(cls, config))

    def to_json(self, **kwargs: Any) -> str:
        """Return the model without its weights as JSON, which `models.model_from_json` reads.

        Args:
            **kwargs: arguments of `json.dumps`.

        Raises:
            ConfigError: a layer or an argument cannot be serialized.
        """
        with one_config_written():
            return json.dumps(serialize_keras_object(self), **kwargs)

    def get_build_config(self) -> dict[str, Any] | None:
        """Return the argument of `build_from_config`; None without weights, or if none is needed."""
        return describing.written_build(self)

    def build_from_config(self, config: Mapping[str, Any]) -> None:
        """Create the weights for the inputs that `get_build_config` described."""
        describing.build_as(self, config)

    def get_compile_config(self) -> dict[str, Any]:
        """Return the arguments of `compile` as plain values; an empty dict if the model is not compiled.

        Raises:
            ConfigError: one of them is neither a name, an object of keras_dist, nor registered.

        Differs from Keras: what cannot be read again is an error here, and not only when it is read.
        """
        arguments = {} if self._compile_config is None else self._compile_config.arguments
        return {name: written_argument(name, value) for name, value in arguments.items()}

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compile the model with the result of `get_compile_config`.

        Raises:
            ConfigError: the config names a class or function that is not registered.
        """
        if config:
            self.compile(**deserialize_keras_object(config))

    def save(
        self,
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
        if form != "folder" and self._record.adapters is not None:
            fix = "merge_lora() first; or save to a folder; or save_adapter, which saves the adapters alone"
            raise ModelError("save: files of Keras cannot hold adapters", given=f"{str(path)!r}", fix=fix)
        if form == "folder":
            session = self._with_weights()
            save_folder(session, describing.documents_of(self), path, overwrite)
            return
        description, session = describing.described(self), self._with_weights()
        save_keras(self, session, description, path, overwrite, form == "keras")

    def snapshot(self, *, with_config: bool = False) -> Snapshot:
        """Return the whole training state: weights, statistics, optimizer slots and random streams.

        During `fit` the snapshot also contains its position: the batch, and the states of loss, metrics and callbacks.
        A `CheckpointManager` writes it. The next step deletes its arrays.

        Args:
            with_config: whether to include the config, so that `load_model` can create the model.

        Raises:
            ModelError: the weights do not exist yet; or `fit` runs in another thread, and its position is known only
                in its callbacks.
        """
        session = self._with_weights()
        documents = describing.documents_of(self) if check_flag("with_config", with_config) else {}
        return snapshot(session, session.trainer.progress, documents)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Context manager in which steps of other threads wait, so that none consumes the arrays of a `snapshot`.

        Raises:
            ModelError: the weights do not exist yet.
        """
        with self._with_weights().cell.lock:
            yield

    def restore(self, stored: Stored, continue_training: bool = False) -> None:
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
        restore(self.name, self._with_weights(), stored, continue_training)

    def export(
        self,
        filepath: str | os.PathLike[str],
        format: str = FORMAT,
        verbose: bool | None = None,
        input_signature: PyTree = None,
        *,
        batch_size: int | None = None,
        platforms: str | Sequence[str] | None = None,
    ) -> None:
        """Export the computation of `predict` as a program that runs without the model code, and its weights.

        The program runs on one device; weights are gathered on the host. In a job all processes must call it; the
        first one writes, and all raise its error. Batches and other dims of unknown size may have any size. See
        `kd.export` for the folder, and `kd.export.load` to load it.

        Args:
            filepath: path of a new folder, whose parent folder must exist.
            format: `"jax_export"`, a program of StableHLO.
            verbose: whether to print the path.
            input_signature: shapes and dtypes of the inputs, None for dims of any size: an `InputSpec`, or any object
                with `shape` and `dtype`, in the structure of the inputs; a list of one is unwrapped. By default the
                inputs for which the model was built; required for models of `from_nnx`.
            batch_size: the size of all batches; None for any size.
            platforms: some of `"cpu"`, `"cuda"`, `"rocm"` and `"tpu"`. By default `cpu`, `cuda` and `tpu`; if that
                fails, the current platform, with a warning.

        Raises:
            ModelError: the path exists, the weights do not exist yet, the inputs are unknown, an argument is invalid,
                or the model cannot be lowered; for batches of any size, the error asks for `batch_size`.
            OSError: a file cannot be written.

        Differs from Keras: the format; existing folders are not replaced.

        Source: `keras.Model.export`; `jax.export`.
        """
        export(self, filepath, format, verbose, input_signature, batch_size, platforms)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Return the arguments with which `pickle` and `copy` recreate the model, on the then current distribution.

        Raises:
            ConfigError: the model cannot be serialized.
            ModelError: the job has several processes.

        Source: `keras.src.saving.keras_saveable.KerasSaveable.__reduce__`.
        """
        return describing.reduced(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the model on the same distribution."""
        return describing.copied(self)

    def __copy__(self) -> Self:
        return describing.copied(self)
