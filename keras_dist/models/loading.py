"""`load_model` and `model_from_json`: models from the files and JSON of `model.save` and `model.to_json`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from flax import nnx

from keras_dist.adapters.quantizing import quantize_unread
from keras_dist.checkpoint import Stored
from keras_dist.distribution.strategy import Distribution, check_distribution
from keras_dist.errors import CheckpointError, ConfigError, ModelError, shorten
from keras_dist.files.buckets import in_bucket
from keras_dist.formats.array_store import retried
from keras_dist.formats.keras_archives import is_keras_folder
from keras_dist.formats.keras_configs import from_keras
from keras_dist.formats.keras_files import OF_CONFIG, Check, Description, config_read, load_keras
from keras_dist.formats.load_report import LoadReport
from keras_dist.formats.model_state import (
    COMPILE,
    CONFIG,
    LORA,
    POLICY,
    QUANTIZED,
    check_shapes,
    restore,
    seed_and_fits,
)
from keras_dist.formats.save_formats import archive_path, model_folder, refuse_legacy
from keras_dist.formats.weights_files import files_of_others
from keras_dist.mixed_precision import under_policy
from keras_dist.models.model import Model
from keras_dist.serialization import custom_object_scope, deserialize_keras_object
from keras_dist.serialization.shared_objects import one_config_read
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.graph import Trainable
from keras_dist.training.step import ModuleCall


def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
    *,
    distribution: Distribution | None = None,
    factory: Callable[..., nnx.Module] | None = None,
    call: ModuleCall | None = None,
    trainable: Trainable = None,
) -> Model:
    """Load a model that `model.save` or Keras wrote, with each weight in its layout of the distribution.

    Each device reads its shard of each array in a `.keras` file. Files are checked before they are read. No code in the
    files runs.

    Args:
        filepath: path of a folder, a `.keras` archive, or an unzipped archive.
        custom_objects: classes and functions by name, in addition to registered ones.
        compile: whether to compile the model as it was saved, with the state of its optimizer.
        safe_mode: unused, since lambdas are always refused. To load a layer `Lambda`, pass its function under the name
            of the layer in `custom_objects`.
        distribution: the distribution of the model; by default the current one.
        factory: factory of the module of a `from_nnx` model, `factory(rngs=rngs)`.
        call: the `call` of a `from_nnx` model.
        trainable: the `trainable` of a `from_nnx` model.

    Raises:
        ModelError: the file is not a model; or a file of Keras is damaged, or its arrays do not match its config.
        CheckpointError: the folder is missing, damaged or not a model; `factory` is missing for a `from_nnx` model, or
            given for another model; or the variables do not match the factory or the config. No variables are created.
        ConfigError: the config contains an unregistered class or function, or a lambda; or a file of Keras describes a
            model that is far larger than its arrays.
        LayoutError: the layout rules cannot be applied to the model.
    """
    scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if distribution is not None:
        check_distribution("distribution", distribution)
        scope = distribution.scope()
    refuse_legacy("load_model", filepath)
    path = _path_of_keras(filepath)
    if path is not None and factory is not None:
        fix = "load_model(path)"
        raise ModelError(f"load_model: {str(path)!r} holds a model of layers", given="a factory", fix=fix)
    with scope, custom_object_scope(custom_objects):
        if path is not None:
            return retried(lambda: load_keras(path, _made, compile))
        _check_is_folder(filepath)
        folder = model_folder("load_model", filepath)
        _check_holds_model(folder)
        make = None if factory is None else functools.partial(Model.from_nnx, factory, call, trainable=trainable)
        return retried(lambda: _load_stored(Stored.of_job(folder), compile, make))


def _made(description: Description, check: Check) -> tuple[Model, BuiltModel]:
    """Return the model of a description, compiled as described, and what was built for it."""
    with under_policy(description.policy):
        model = _of_config(description.config)
        built = model._with_weights()
        check(built.cell.graph.specs)
        if description.compiled:
            model.compile_from_config(description.compiled)
    return model, built


def _of_config(config: Any) -> Model:
    with one_config_read():
        model = deserialize_keras_object(config, {"Functional": Model})
    if not isinstance(model, Model):
        raise TypeError(f"the config of {shorten(model)} of type {type(model).__name__}")
    return model


def _load_stored(stored: Stored, compile: bool, make: Callable[..., Model] | None = None) -> Model:
    """Make the model in a folder; with `make`, which takes its seed, one of `from_nnx`."""
    if not stored.has(COMPILE) or stored.has(CONFIG) == (make is not None):
        raise _no_model(stored)
    compiled = stored.document(COMPILE)
    if not isinstance(compiled, dict):
        raise stored.unreadable(COMPILE, shorten(compiled))
    with contextlib.ExitStack() as stack:
        with _reading(stored, POLICY):
            stack.enter_context(under_policy(_policy_of(stored)))
        if make is not None:
            model = make(seed=seed_and_fits(stored)[0])
        else:
            config = stored.document(CONFIG)
            with _reading(stored, CONFIG):
                model = _of_config(config)
                model._with_weights()
        if stored.has(QUANTIZED):
            modes = stored.document(QUANTIZED)
            with _reading(stored, QUANTIZED):
                quantize_unread(model, modes)
        if make is None:
            check_shapes(stored, model._with_weights().cell.graph.specs)
        if stored.has(LORA):
            lora = stored.document(LORA)
            with _reading(stored, LORA):
                model.enable_lora(**lora)
        is_compiled = compile and bool(compiled)
        if is_compiled:
            with _reading(stored, COMPILE):
                model.compile_from_config(compiled)
        restore(model.name, model._with_weights(), stored, with_slots=is_compiled)
    return model


def save_model(
    model: Model, filepath: str | os.PathLike[str], overwrite: bool = True, zipped: bool | None = None, **options: Any
) -> None:
    """Save a model; see `Model.save`.

    Args:
        model: the model.
        filepath: a folder, or a file that ends in `.keras`.
        overwrite: whether to replace an existing file or folder.
        zipped: False for a folder with the members of a `.keras` archive.
        **options: further arguments of `Model.save`.

    Raises:
        ModelError: `zipped` does not match the path, or an option is unknown.
    """
    model.save(filepath, overwrite, zipped, **options)


def save_weights(
    model: Model,
    filepath: str | os.PathLike[str],
    overwrite: bool = True,
    max_shard_size: float | None = None,
    **options: Any,
) -> None:
    """Save the weights of a model; see `Model.save_weights`.

    Args:
        model: the model.
        filepath: path of a file or a folder; its suffix determines the format.
        overwrite: whether to replace an existing file or folder.
        max_shard_size: largest size of a file [GB]; larger weights are split into several files.
        **options: further arguments of `Model.save_weights`.
    """
    model.save_weights(filepath, overwrite, max_shard_size, **options)


def load_weights(
    model: Model, filepath: str | os.PathLike[str], skip_mismatch: bool = False, **options: Any
) -> LoadReport:
    """Load the weights of a model, and return a report; see `Model.load_weights`.

    Args:
        model: the model.
        filepath: path of a file or a folder.
        skip_mismatch: whether to skip weights that do not match.
        **options: further arguments of `Model.load_weights`.
    """
    return model.load_weights(filepath, skip_mismatch, **options)


def model_from_json(json_string: str, custom_objects: Mapping[str, Any] | None = None) -> Model:
    """Create a model from the result of `model.to_json()`, with new weights on the current distribution.

    Args:
        json_string: JSON of keras_dist or Keras.
        custom_objects: classes and functions by name, in addition to registered ones.

    Raises:
        ConfigError: the text is not JSON, is damaged, or contains an unregistered class or function.
    """
    try:
        config = json.loads(json_string)
    except (TypeError, ValueError) as error:
        fix = "to read a file: model_from_json(pathlib.Path(name).read_text())"
        raise ConfigError("model_from_json: `json_string` must be JSON", given=shorten(json_string), fix=fix) from error
    objects = {"Functional": Model, **(custom_objects or {})}
    with one_config_read():
        model = deserialize_keras_object(from_keras(config), objects)
    if not isinstance(model, Model):
        fix = "for other objects: saving.deserialize_keras_object(json.loads(...))"
        raise ConfigError("model_from_json: `json_string` must describe a model", given=shorten(json_string), fix=fix)
    return model


def _policy_of(stored: Stored) -> str | dict[str, Any] | None:
    """The dtype policy under which a model that is stored was made; None if nothing is recorded of it."""
    policy = stored.document(POLICY) if stored.has(POLICY) else None
    if policy is not None and not isinstance(policy, str | dict):
        raise stored.unreadable(POLICY, shorten(policy))
    return policy


def _reading(stored: Stored, document: str) -> contextlib.AbstractContextManager[None]:
    """Enter a context in which errors of constructors and `compile` over values in a document name the document."""
    unreadable = functools.partial(stored.unreadable, document, fix=OF_CONFIG)
    return config_read(f"in {document}.json in {str(stored.folder)!r}", unreadable)


def _path_of_keras(filepath: str | os.PathLike[str]) -> pathlib.Path | None:
    """The path of a file of Keras that holds a whole model, or of a folder with what is in one; None for others."""
    path = archive_path(filepath)
    if path is not None and not path.is_dir():
        return path
    is_path = isinstance(filepath, str | os.PathLike) and "\0" not in os.fspath(filepath)
    folder = pathlib.Path(filepath) if is_path else None
    return folder if folder is not None and is_keras_folder(folder) else None


def _check_is_folder(filepath: str | os.PathLike[str]) -> None:
    """Check that a path does not lead to a file."""
    if not isinstance(filepath, str | os.PathLike) or not os.path.isfile(filepath):
        return
    summary = f"load_model: {str(os.fspath(filepath))!r} is a file"
    raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix="model.load_weights reads files of weights")


def _check_holds_model(folder: pathlib.Path) -> None:
    """Check that a folder is not one of Hugging Face, which holds weights and no model."""
    files = files_of_others(folder) if not in_bucket(folder) and folder.is_dir() else []
    if files:
        summary = f"load_model: {str(folder)!r} holds weights, and no model"
        fix = f"make the model in code, and then model.load_weights({str(folder)!r})"
        raise CheckpointError(summary, given=f"a folder with {shorten(files)}", fix=fix)


def _no_model(stored: Stored) -> CheckpointError:
    has_config = stored.has(CONFIG)
    if not stored.has(COMPILE):
        summary = f"load_model: {str(stored.folder)!r} holds the state of a training, and no model"
        fix = "make the model, then kd.checkpoint.CheckpointManager(model, directory).restore_or_initialize()"
        return CheckpointError(summary, given=f"a checkpoint of step {stored.step}", fix=fix)
    return CheckpointError(
        f"load_model: {str(stored.folder)!r} holds a model {'of layers' if has_config else 'of a flax.nnx module'}",
        given="a factory" if has_config else "no factory",
        fix="load_model(path)" if has_config else "load_model(path, factory=lambda rngs: MyNet(rngs=rngs))",
    )
