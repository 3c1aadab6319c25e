"""Whole models in `.h5` files, in the form of Keras 2: `model.save("m.h5")`, and `load_model`."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_dist.distribution import lint
from keras_dist.distribution.jobs.job import is_chief
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.errors import CheckpointError, ModelError
from keras_dist.interop.h5_files import H5Reader, H5Writer
from keras_dist.interop.keras_configs import compile_to_keras, from_keras, to_keras
from keras_dist.interop.legacy_configs import legacy_compile, legacy_document, legacy_model, training_to_legacy
from keras_dist.interop.legacy_h5 import legacy_slots, note_legacy, written_optimizer, written_slots
from keras_dist.models.config import check_described
from keras_dist.models.initialization import weights_checked
from keras_dist.models.keras_files import check_bytes, made_of, reading
from keras_dist.models.keras_weights import Contents, set_contents, set_optimizer, stored_optimizer, write_arrays
from keras_dist.models.saving import check_file_path, written_compile, written_model
from keras_dist.saving import custom_object_scope
from keras_dist.saving.drafts import draft_of, writing_to

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods


def legacy_path(filepath: str | os.PathLike[str]) -> pathlib.Path | None:
    """The path of a file in the format of Keras 2, which need not exist; None for other paths."""
    is_path = isinstance(filepath, str | os.PathLike) and str(os.fspath(filepath)).endswith((".h5", ".hdf5"))
    return pathlib.Path(filepath) if is_path else None


def save_legacy(model: SavingMethods, path: pathlib.Path, overwrite: bool, include_optimizer: bool) -> None:
    """Write a model to an `.h5` file that Keras reads; see `Model.save`."""
    check_described(model)
    warnings.warn(
        f"save: {str(path)!r} is a file in the form of Keras 2, in which layouts, dtype policies and random streams "
        "have no place; 'model.keras' keeps them",
        stacklevel=lint.frames_inside(),
    )
    check_file_path("save", path, overwrite, CheckpointError)
    session = model._with_weights()
    if model._graph is None:
        summary = f"save: an `.h5` file cannot hold model {model.name!r}, whose `call` is code"
        raise ModelError(summary, given=f"a {type(model).__name__}", fix='model.save("model.keras")')
    config = to_keras(written_model(model))
    documents = {"model_config": {name: config[name] for name in ("class_name", "config")}}
    compiled = compile_to_keras(written_compile(model)) if include_optimizer else None
    if compiled is not None:
        documents["training_config"] = training_to_legacy(compiled)
    groups = written_slots(model)
    optimizer = [] if compiled is None else written_optimizer(stored_optimizer(session))
    slots = [slot for group in groups.values() for slot in group] + optimizer
    with writing_to(path), session.cell.lock, contextlib.ExitStack() as opened:
        drafts: list[pathlib.Path] = []

        def write() -> None:
            with contextlib.ExitStack() as file:
                writer = None
                if is_chief():
                    drafts.append(opened.enter_context(draft_of(path)) / "arrays")
                    writer = file.enter_context(H5Writer("save", drafts[0], path))
                    note_legacy(writer, documents, groups, optimizer)
                write_arrays("save", session, slots, {}, writer)

        job = Rendezvous("a save")
        job.each(write)
        job.first(lambda: os.replace(drafts[0], path))


def load_legacy(path: pathlib.Path, custom_objects: Mapping[str, Any] | None, compile: bool, model_class: type) -> Any:
    """Make the model in an `.h5` file, on the current distribution; see `load_model`."""
    with H5Reader("load_model", path) as reader, custom_object_scope(custom_objects):
        config = legacy_document(reader, "model_config")
        if config is None:
            summary = f"load_model: {str(path)!r} holds weights, and no model"
            fix = "make the model in code, and then model.load_weights(path)"
            raise ModelError(summary, given="a file of HDF5 without 'model_config'", fix=fix)
        training = legacy_document(reader, "training_config") if compile else None
        with reading(path), weights_checked(functools.partial(check_bytes, reader)):
            config = from_keras(legacy_model(config))
            compiled = None if training is None else from_keras(legacy_compile(training))
            model = made_of(config, model_class)
            if compiled is not None:
                model.compile_from_config(compiled)
            session = model._with_weights()
        with session.cell.lock:
            contents = Contents(legacy_slots(reader, model))
            set_contents(model.name, session, contents, reader, strict=True)
            set_optimizer(session, stored_optimizer(session), reader)
    return model
