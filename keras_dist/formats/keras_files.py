"""Whole models in files of Keras: `model.save("m.keras")` and `load_model`, also for files that Keras wrote."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_dist._unstable import jax_internals
from keras_dist.checkpoint.folder import Draft
from keras_dist.checkpoint.snapshot import is_count
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    DistributionError,
    KerasDistError,
    LayoutError,
    MissingExtraError,
    ModelError,
    cause,
    shorten,
)
from keras_dist.files.regular_files import explaining_missing
from keras_dist.formats.h5_files import H5Reader
from keras_dist.formats.keras_archives import OWN, WEIGHTS, KerasArchive, KerasFolder, texts_of, write_archive
from keras_dist.formats.keras_configs import compile_to_keras, from_keras, to_keras
from keras_dist.formats.keras_weights import (
    contents_of,
    drafted,
    fetches,
    own_arrays,
    set_contents,
    set_optimizer,
    set_own,
    stored_optimizer,
)
from keras_dist.formats.save_formats import check_file_path, check_free
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.training.built_model import BuiltModel

_FEW_BYTES, _MOST_WIDENED = 2**28, 8
"""Weights that a file does not hold may take so many bytes, and be so many times as wide as in the file."""


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of a saved model, without its arrays."""

    config: Any  # the model, as `serialize_keras_object` writes it
    compiled: dict[str, Any]  # the arguments of `compile`; empty for a model that is not compiled
    policy: str | dict[str, Any] | None  # the dtype policy under which its code creates layers


Check = Callable[[Sequence[VariableSpec]], None]  # is called with the weights of a model before they are created

MakeModel = Callable[[Description, Check], tuple[Any, BuiltModel]]
"""Returns the described model with new weights, and what was built for it."""


def save_keras(
    model: Any, built: BuiltModel, description: Description, path: pathlib.Path, overwrite: bool, zipped: bool
) -> None:
    """Save a model as a `.keras` archive, or as a folder with the members of one; see `Model.save`."""
    job = Rendezvous("a save")
    if zipped:
        check_file_path("save", path, overwrite, CheckpointError)
    elif not overwrite:
        job.first(lambda: check_free("save", path, CheckpointError))
    own = {"config": description.config, "compile": description.compiled, "policy": description.policy}
    own |= {"seed": built.seed, "fits": built.fits}
    config = _config_of_keras(description.config, description.compiled)
    contents = contents_of(model, built)
    slots = [*contents.written(), *stored_optimizer(built)]

    def arrange(folder: pathlib.Path) -> None:
        assets = folder / "assets"
        for name, layer in contents.with_assets.items():
            if hasattr(layer, "save_assets"):
                (assets / name).mkdir(parents=True, exist_ok=True)
                layer.save_assets(str(assets / name))
        if zipped:
            write_archive(folder / "archive", config, own, drafts[0], assets)
            os.replace(folder / "archive", path)
            return
        os.replace(drafts[0], folder / WEIGHTS)
        for name, text in texts_of(config, own).items():
            (folder / name).write_text(text, "utf-8")

    arrays = functools.partial(fetches, built, slots, own_arrays(built, contents, slots))
    with drafted("save", path, built, [arrays]) as drafts:
        if zipped:
            job.first(lambda: arrange(drafts[0].parent))
            return
        with contextlib.ExitStack() as stack:
            draft = Draft(path, job)
            stack.callback(draft.abandon)
            job.first(lambda: arrange(draft.folder))
            draft.commit()


def load_keras(path: pathlib.Path, make: MakeModel, compile: bool) -> Any:
    """Load a model from a `.keras` archive, on the current distribution; see `load_model`."""
    with _opened(path) as archive:
        own, reader = archive.own, archive.arrays()
        is_own = isinstance(own.get("config"), dict) and isinstance(own.get("compile"), dict)
        config = own["config"] if is_own else archive.config
        compiled = own["compile"] if is_own else config.get("compile_config") if isinstance(config, dict) else None
        policy = own["policy"] if isinstance(own.get("policy"), str | dict) else None
        with reading(path):
            if is_own:
                _check_one_config(path, own, archive.config)
            written = from_keras(compiled) if compile and compiled else {}
            description = Description(from_keras(config), written, policy)
            model, built = make(description, functools.partial(check_bytes, reader))
        with built.cell.lock:
            contents = contents_of(model, built, reader.shapes)
            set_contents(model.name, built, contents, reader, strict=True)
            for name, layer in contents.with_assets.items():
                with tempfile.TemporaryDirectory() as folder:
                    if hasattr(layer, "load_assets") and archive.extract_assets(name, pathlib.Path(folder)):
                        layer.load_assets(folder)
            optimizer = stored_optimizer(built)
            if optimizer:
                set_optimizer(built, optimizer, reader)
            set_own(built, own_arrays(built, contents, [*contents.slots, *optimizer]), reader)
        if is_count(own.get("seed")) and is_count(own.get("fits")):
            built.use_seed(own["seed"])
            built.fits = own["fits"]
    return model


def _opened(path: pathlib.Path) -> KerasArchive:
    with explaining_missing("load_model", path):
        return (KerasFolder if path.is_dir() else KerasArchive)("load_model", path)


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
    """Check, before creating weights, that the described model is not much larger than the arrays in the file."""
    wanted = sum(math.prod(spec.shape) * jax_internals.itemsize(spec.dtype) for spec in specs)
    if wanted > _FEW_BYTES + _MOST_WIDENED * reader.most_bytes():
        given = f"{wanted} bytes of weights, of which the file holds at most {reader.most_bytes()}"
        fix = "write it again with model.save; or make the model in code, and then model.load_weights(path)"
        raise ConfigError("the config describes a model that is larger than what is in the file", given=given, fix=fix)


OF_CONFIG = (
    "check get_config and from_config of your own classes; or make the model in code, and then model.load_weights(path)"
)
"""The fix for a config from which a class cannot be created."""


def reading(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Enter a context in which errors of constructors and `compile` over values in a config name this file."""
    summary = f"load_model: the config in {str(path)!r} cannot be read"
    return config_read(f"in {str(path)!r}", lambda given: ModelError(summary, given=given, fix=OF_CONFIG))


@contextlib.contextmanager
def config_read(place: str, unreadable: Callable[[str], KerasDistError]) -> Iterator[None]:
    """Enter a context in which errors of constructors and `compile` become `unreadable(description)`."""
    try:
        yield
    except (CheckpointError, DeviceError, DistributionError, LayoutError, MissingExtraError):
        raise  # of other things than the file
    except ConfigError as error:
        error.add_note(place)
        raise
    except Exception as error:  # constructors, and XLA, raise whatever they like about odd values
        raise unreadable(cause(error)) from error
