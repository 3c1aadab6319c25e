"""Whole models in files of Keras: `model.save("m.keras")`, and `load_model`, of what Keras wrote, too."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_dist._unstable import jax_internals
from keras_dist.checkpoint.folder import Draft
from keras_dist.checkpoint.snapshot import is_count
from keras_dist.distribution.jobs.job import is_chief
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    DistributionError,
    FileMissingError,
    KerasDistError,
    LayoutError,
    MissingExtraError,
    ModelError,
    cause,
    shorten,
)
from keras_dist.interop.h5_files import H5Reader, H5Writer
from keras_dist.interop.keras_archives import (
    KERAS_SUFFIX,
    OWN,
    WEIGHTS,
    KerasArchive,
    KerasFolder,
    texts_of,
    write_archive,
)
from keras_dist.interop.keras_configs import compile_to_keras, from_keras, to_keras
from keras_dist.mixed_precision import under_policy
from keras_dist.models.config import check_described
from keras_dist.models.initialization import weights_checked
from keras_dist.models.keras_weights import (
    contents_of,
    own_arrays,
    set_contents,
    set_optimizer,
    set_own,
    stored_optimizer,
    write_arrays,
)
from keras_dist.models.saving import OVERWRITE, check_file_path, check_free, written_compile, written_model
from keras_dist.saving import custom_object_scope, deserialize_keras_object
from keras_dist.saving.buckets import folder_path, in_bucket
from keras_dist.saving.drafts import draft_of, writing_to

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods


_FEW_BYTES, _MOST_WIDENED = 2**28, 8
"""What may be created of weights that a file does not hold, and how many times as wide as there they may be."""


def archive_path(filepath: str | os.PathLike[str]) -> pathlib.Path | None:
    """The path of a file of Keras that holds a whole model; None for others, and for a folder of that name."""
    if not isinstance(filepath, str | os.PathLike) or not str(os.fspath(filepath)).endswith(KERAS_SUFFIX):
        return None
    path = folder_path(os.fspath(filepath))
    return None if in_bucket(path) else path


def save_keras(model: SavingMethods, path: pathlib.Path, overwrite: bool, zipped: bool = True) -> None:
    """Write a model to a file that Keras reads, or to a folder of what is in such a file; see `Model.save`."""
    job = Rendezvous("a save")
    if zipped:
        check_file_path("save", path, overwrite, CheckpointError)
    elif not overwrite:
        job.first(lambda: check_free("save", path, CheckpointError, OVERWRITE))
    check_described(model)
    session = model._with_weights()
    written, compiled = written_model(model), written_compile(model)
    own = {"config": written, "compile": compiled, "policy": model.dtype_policy.identifier}
    own |= {"seed": session.seed, "fits": session.fits}
    config = _config_of_keras(written, compiled)
    contents = contents_of(model, session)
    slots = [*contents.written(), *stored_optimizer(session)]
    with writing_to(path), session.cell.lock, contextlib.ExitStack() as opened:
        drafts: list[pathlib.Path] = []

        def write() -> None:
            with contextlib.ExitStack() as file:
                writer = None
                if is_chief():
                    drafts.append(opened.enter_context(draft_of(path)))
                    writer = file.enter_context(H5Writer("save", drafts[0] / "arrays", path))
                write_arrays("save", session, slots, own_arrays(session, contents, slots), writer)

        def arrange(folder: pathlib.Path) -> None:
            assets = folder / "assets"
            for name, layer in contents.with_assets.items():
                if hasattr(layer, "save_assets"):
                    (assets / name).mkdir(parents=True, exist_ok=True)
                    layer.save_assets(str(assets / name))
            if not zipped:
                os.replace(drafts[0] / "arrays", folder / WEIGHTS)
                for name, text in texts_of(config, own).items():
                    (folder / name).write_text(text, "utf-8")
                return
            write_archive(folder / "archive", config, own, folder / "arrays", assets)
            os.replace(folder / "archive", path)

        job.each(write)
        if zipped:
            job.first(lambda: arrange(drafts[0]))
            return
        draft = Draft(path, job)
        opened.callback(draft.abandon)
        job.first(lambda: arrange(draft.folder))
        draft.commit()


def load_keras(
    path: pathlib.Path,
    custom_objects: Mapping[str, Any] | None,
    compile: bool,
    model_class: type,
) -> Any:
    """Make the model in a file of Keras, on the current distribution; see `load_model`."""
    with _opened(path) as archive, custom_object_scope(custom_objects):
        own, reader = archive.own, archive.arrays()
        is_own = isinstance(own.get("config"), dict) and isinstance(own.get("compile"), dict)
        config = own["config"] if is_own else archive.config
        compiled = own["compile"] if is_own else config.get("compile_config") if isinstance(config, dict) else None
        with reading(path):
            if is_own:
                _check_one_config(path, own, archive.config)
            config, compiled = from_keras(config), from_keras(compiled)
        policy = own["policy"] if isinstance(own.get("policy"), str | dict) else None
        with reading(path), under_policy(policy), weights_checked(functools.partial(check_bytes, reader)):
            model = made_of(config, model_class)
            session = model._with_weights()
            if compile and compiled:
                model.compile_from_config(compiled)
        with session.cell.lock:
            contents = contents_of(model, session, reader.shapes)
            set_contents(model.name, session, contents, reader, strict=True)
            for name, layer in contents.with_assets.items():
                with tempfile.TemporaryDirectory() as folder:
                    if hasattr(layer, "load_assets") and archive.extract_assets(name, pathlib.Path(folder)):
                        layer.load_assets(folder)
            optimizer = stored_optimizer(session)
            if optimizer:
                set_optimizer(session, optimizer, reader)
            set_own(session, own_arrays(session, contents, [*contents.slots, *optimizer]), reader)
        if is_count(own.get("seed")) and is_count(own.get("fits")):
            session.use_seed(own["seed"])
            session.fits = own["fits"]
    return model


def _opened(path: pathlib.Path) -> KerasArchive:
    try:
        return (KerasFolder if path.is_dir() else KerasArchive)("load_model", path)
    except FileNotFoundError as error:
        summary = f"load_model: {str(path)!r} is not there"
        raise FileMissingError(summary, given=f"filepath={str(path)!r}", fix="correct the path") from error


def _config_of_keras(written: dict[str, Any], compiled: dict[str, Any]) -> dict[str, Any]:
    return {**to_keras(written), "compile_config": compile_to_keras(compiled)}


def _check_one_config(path: pathlib.Path, own: Mapping[str, Any], config: Any) -> None:
    """Check that the config that Keras does not read describes the model that Keras reads."""
    different = next(_differences(_config_of_keras(own["config"], own["compile"]), config, ""), None)
    if different is not None:
        fix = f"save it again with model.save; or take {OWN!r} out of metadata.json, to load what Keras loads"
        raise ConfigError(f"load_model: {str(path)!r} holds two configs of different models", given=different, fix=fix)


def _differences(own: Any, of_keras: Any, place: str) -> Iterator[str]:
    """Where two configs differ, and how."""
    if isinstance(own, dict) and isinstance(of_keras, dict) and own.keys() == of_keras.keys():
        for name, value in own.items():
            yield from _differences(value, of_keras[name], f"{place}[{name!r}]")
    elif isinstance(own, list) and isinstance(of_keras, list) and len(own) == len(of_keras):
        for number, (one, other) in enumerate(zip(own, of_keras, strict=True)):
            yield from _differences(one, other, f"{place}[{number}]")
    elif json.dumps(own) != json.dumps(of_keras):  # NaN is not equal to itself
        yield f"config.json{place} is {shorten(of_keras)}, by metadata.json {shorten(own)}"


def check_bytes(reader: H5Reader, specs: Sequence[VariableSpec]) -> None:
    """Check that a model is about as large as what a file holds, before any of it is created."""
    wanted = sum(math.prod(spec.shape) * jax_internals.itemsize(spec.dtype) for spec in specs)
    if wanted > _FEW_BYTES + _MOST_WIDENED * reader.most_bytes():
        given = f"{wanted} bytes of weights, of which the file holds at most {reader.most_bytes()}"
        fix = "write it again with model.save; or make the model in code, and then model.load_weights(path)"
        raise ConfigError("the config describes a model that is larger than what is in the file", given=given, fix=fix)


def made_of(config: Any, model_class: type) -> Any:
    """The model of a config."""
    model = deserialize_keras_object(config, {"Functional": model_class})
    if not isinstance(model, model_class):
        raise TypeError(f"the config of {shorten(model)} of type {type(model).__name__}")
    return model


def reading(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Make what a constructor or `compile` says of odd values in a config the error of this file."""
    fix = "check that all was copied whole; make the model in code, and then model.load_weights(path)"
    summary = f"load_model: the config in {str(path)!r} cannot be read"
    return config_read(f"in {str(path)!r}", lambda given: ModelError(summary, given=given, fix=fix))


@contextlib.contextmanager
def config_read(place: str, unreadable: Callable[[str], KerasDistError]) -> Iterator[None]:
    """Raise `unreadable(description)` for errors of constructors or `compile` over values in a config."""
    try:
        yield
    except (CheckpointError, DeviceError, DistributionError, LayoutError, MissingExtraError):
        raise  # of other things than the file
    except ConfigError as error:
        error.add_note(place)
        raise
    except Exception as error:  # constructors, and XLA, raise whatever they like about odd values
        raise unreadable(cause(error)) from error
