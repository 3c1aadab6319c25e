"""All of a model's state, in a folder, as a `Snapshot` and pickled, and back."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from keras_dist._support import backend_environment
from keras_dist._support.arguments import check_flag, check_kind
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import is_key_dtype, key_impl
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.checkpoint.snapshot import is_count
from keras_dist.distribution import lint
from keras_dist.distribution.jobs.job import process_index
from keras_dist.distribution.jobs.rendezvous import Rendezvous
from keras_dist.distribution.placement import host_copy, place_copy
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import (
    CheckpointError,
    CheckpointWarning,
    ClusterError,
    ConfigError,
    DataError,
    KerasDistError,
    ModelError,
    cause,
    shorten,
    with_type,
)
from keras_dist.mixed_precision import under_policy
from keras_dist.models.built_model import BuiltModel
from keras_dist.models.config import check_described, check_not_of_keras
from keras_dist.models.placing import in_place_of
from keras_dist.saving import deserialize_keras_object, regular_files, serialize_keras_object
from keras_dist.saving.buckets import folder_path, in_bucket, refreshed
from keras_dist.saving.serialization import is_lambda, lambdas_kept
from keras_dist.training.progress import Progress

if TYPE_CHECKING:
    from keras_dist.models.saving_methods import SavingMethods

T = TypeVar("T")

TRAINING, CONFIG, COMPILE, POLICY = "training", "config", "compile", "policy"
"""The documents of a snapshot: how far a training had come, what the model is, how it is trained, and its dtype policy,
under which what its code makes is made again."""

_PARTS_READ, _PART_BYTES = 8, 16 * 2**20
"""Arrays are read by eighths of their bytes, so that not all of them are there twice; what is small is read at once."""

_LISTED = 20

_FILES = (".safetensors", ".h5", ".hdf5")

OVERWRITE = "choose another path, or pass overwrite=True"


def save(model: SavingMethods, filepath: str | os.PathLike[str], overwrite: bool) -> None:
    """Write a model to a folder; see `Model.save`."""
    path = model_path("save", filepath)
    if not overwrite:
        Rendezvous("a save").first(lambda: check_free("save", path, CheckpointError, OVERWRITE))
    session = model._with_weights()
    documents = documents_of(model)
    with session.cell.lock:  # a training in another thread consumes the arrays
        taken: list[Snapshot] = []
        Rendezvous("a save").each(lambda: taken.append(snapshot(session, None, documents)))
        finish = taken[0].begin(path)
    finish()


def documents_of(model: SavingMethods) -> dict[str, Any]:
    """What a folder needs beside arrays so that `load_model` makes the model of it."""
    check_not_of_keras(model)
    documents: dict[str, Any] = {COMPILE: written_compile(model), POLICY: model.dtype_policy.identifier}
    if not model._with_weights().cell.graph.is_foreign:
        documents = {CONFIG: written_model(model), **documents}
    return documents


def written_model(model: SavingMethods) -> dict[str, Any]:
    """The config of a model; with a warning where a lambda, of which no file holds the code, is needed to load it."""
    written = serialize_keras_object(model)
    lambdas = dict(_lambdas_in(written))
    if lambdas:
        functions = ", ".join(f"{layer!r}: function" for layer in lambdas.values())
        way = f"to load it, load_model needs custom_objects={{{functions}}}"
        warnings.warn(
            f"the model is saved without the code of {', '.join(lambdas)}: "
            f"{'load_model will refuse it' if None in lambdas.values() else way}. Register a named function instead: "
            "@saving.register_keras_serializable()",
            CheckpointWarning,
            stacklevel=lint.frames_inside(),
        )
    return written


def _lambdas_in(written: Any, place: str = "", layer: str | None = None) -> Iterator[tuple[str, str | None]]:
    """The lambdas in a config, each with the name of its layer if it is the function of a `Lambda`."""
    if is_lambda(written):
        yield f"{place} ({written['config']['name']})", layer
        return
    config, kind = (written.get("config"), str(written.get("class_name"))) if isinstance(written, Mapping) else (0, "_")
    if isinstance(config, Mapping) and not kind.startswith("_"):
        owner = f"{kind} {config['name']!r}" if "name" in config else kind
        for name, value in config.items():
            is_function = (kind, name) == ("Lambda", "function")
            yield from _lambdas_in(value, f"`{name}` of {owner}", config.get("name") if is_function else None)
    elif isinstance(written, Mapping | list):
        for part in written.values() if isinstance(written, Mapping) else written:
            yield from _lambdas_in(part, place)


def written_compile(model: SavingMethods) -> dict[str, Any]:
    """What `compile` was given, as plain values; nothing, with a warning, where that cannot be."""
    try:
        return model.get_compile_config()
    except ConfigError as error:
        warnings.warn(
            f"the model is saved without what `compile` was given, so that it is loaded uncompiled: {error}",
            CheckpointWarning,
            stacklevel=lint.frames_inside(),
        )
        return {}


def restore(
    name: str, session: BuiltModel, stored: Stored, continue_training: bool = False, with_slots: bool = True
) -> None:
    """Take over the state of a model of this name; see `Model.restore`. Without slots for one that is not compiled."""
    check_kind("stored", stored, Stored, "a Stored, as CheckpointManager.newest() returns it", error=CheckpointError)
    check_flag("continue_training", continue_training)
    cell = session.cell
    wanted = _wanted(session)
    job = Rendezvous("a restore")
    looked: list[tuple[tuple[int, int], Progress | None]] = []

    def look() -> None:
        _check_fit(name, wanted, stored, with_slots)
        progress = _progress_of(stored) if continue_training else None
        if progress is not None:
            session.trainer.check_continues(progress)
        looked.append((noted_of(stored), progress))

    job.each(look)
    ((seed, fits), progress), *_ = looked
    with cell.borrowing(), cell.lock:
        arrays, places = cell.arrays, {name: index for index, name in enumerate(wanted)}
        for number, part in enumerate(_parts(wanted)):
            if number:  # what cannot be read at all shows before anything is gone
                for name in part:
                    arrays[places[name]].delete()
            found: dict[str, Any] = {}
            part_wanted = {name: wanted[name] for name in part}
            job.each(lambda found=found, part=part_wanted: found.update(stored.arrays(part)))
            for name in part:
                arrays[places[name]] = found.pop(name)
            backend_environment.release_freed_memory()
        cell.arrays = arrays
    session.fits = fits
    session.use_seed(seed)
    if progress is not None:
        session.trainer.continue_from(progress)


def check_free(caller: str, path: pathlib.Path, error: type[KerasDistError], fix: str) -> None:
    """Check that there is nothing at a path."""
    if refreshed(path).exists() if in_bucket(path) else os.path.lexists(path):
        raise error(f"{caller}: {str(path)!r} exists", given="a folder" if path.is_dir() else "a file", fix=fix)


def check_file_path(caller: str, path: pathlib.Path, overwrite: bool, error: type[KerasDistError]) -> None:
    """Check, in the first process of a job, that a file can be written at a path; all processes call."""

    def check() -> None:
        is_folder = path.is_dir()
        if is_folder or "\0" in str(path):
            given = "a folder is there" if is_folder else "a path with a null character"
            fix = "choose another path" + (", or move the folder away" if is_folder else "")
            raise error(f"{caller}: no file can be written at {str(path)!r}", given=given, fix=fix)
        if not overwrite:
            check_free(caller, path, error, OVERWRITE)

    Rendezvous(f"a check of {caller}").first(check)


def noted_of(stored: Stored) -> tuple[int, int]:
    """The seed of the model, and how often `fit` was called."""
    noted = stored.document("model")
    names = ("seed", "fits")
    if not isinstance(noted, dict) or not all(is_count(noted.get(name)) for name in names):
        raise stored.unreadable("model", shorten(noted))
    return noted["seed"], noted["fits"]


def snapshot(session: BuiltModel, progress: Progress | None, documents: Mapping[str, Any]) -> Snapshot:
    """All of a session's state, how far its training has come, and other documents."""
    mesh = session.cell.mesh.backend_mesh
    if not mesh.local_devices:
        given = f"a mesh without a device of process {process_index()}"
        fix = "make the mesh of list_devices(), the devices of all processes"
        raise ClusterError("no device of this process is in the model's mesh", given=given, fix=fix)
    names = names_of(session)
    arrays = dict(zip(names, session.cell.arrays, strict=True))
    documents = {"model": {"seed": session.seed, "fits": session.fits}, **documents}
    if progress is not None:
        written = progress.to_json()
        plain, found = split_arrays({name: written[name] for name in ("tallies", "callbacks")})
        documents[TRAINING] = written | plain
        arrays |= {f"{TRAINING}/{index}": value for index, value in enumerate(found)}
    trained = len(jax.tree.leaves(session.cell.state.trainable))
    rest = len(jax.tree.leaves(session.cell.state.rest))
    rows = zip(names, session.cell.state_plan.rows, strict=True)
    untrained = [name for name, row in [*rows][trained : trained + rest] if row.role in ("parameter", "statistic")]
    plan = session.cell.state_plan
    return Snapshot(int(session.cell.state.step), arrays, plan, documents, frozenset(untrained))


def names_of(session: BuiltModel) -> list[str]:
    """The names of the arrays of a session's state, flat, as they are written."""
    state = session.cell.state
    kinds = {"trainable": "variables", "rest": "variables", "slots": "optimizers", "step": ""}
    prefixes = [prefix for field, prefix in kinds.items() for _ in jax.tree.leaves(getattr(state, field))]
    rows = session.cell.state_plan.rows
    return [f"{prefix}/{row.path}".removeprefix("/") for prefix, row in zip(prefixes, rows, strict=True)]


def split_arrays(tree: PyTree) -> tuple[PyTree, list[jax.Array | np.ndarray]]:
    """Nested lists and dicts with arrays in them as plain values, in which a number stands for each array; the arrays.

    `join_arrays` is the inverse.
    """
    arrays: list[jax.Array | np.ndarray] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, tuple | list):
            return [plain(one) for one in value]
        is_odd = isinstance(value, np.ndarray) and (value.dtype.names is not None or value.dtype.kind in "OSUMm")
        if isinstance(value, jax.Array | np.ndarray) and not is_odd:
            arrays.append(value)
            return {_ARRAY: len(arrays) - 1}
        if isinstance(value, np.bool_ | np.integer | np.floating):
            return value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        fix = "return numbers, strings, None, arrays of numbers, and lists and dicts of these from `get_state`"
        raise CheckpointError("the state of a callback cannot be written down", given=with_type(value), fix=fix)

    return plain(tree), arrays


_ARRAY = "__array__"


def join_arrays(plain: PyTree, arrays: Mapping[str, ArrayLike]) -> PyTree:
    """What `split_arrays` was given, with lists for tuples; the arrays by their numbers."""
    if isinstance(plain, dict):
        if [*plain] == [_ARRAY]:
            return arrays[str(plain[_ARRAY])]
        return {name: join_arrays(value, arrays) for name, value in plain.items()}
    return [join_arrays(value, arrays) for value in plain] if isinstance(plain, list) else plain


def _progress_of(stored: Stored) -> Progress | None:
    """How far the training of a checkpoint had come; None if it was written outside of `fit`."""
    noted = stored.document(TRAINING)
    if noted is None and not stored.has(TRAINING):
        return None
    arrays = stored.arrays_below(f"{TRAINING}/")
    try:
        return Progress.from_json(join_arrays(noted, arrays))
    except (KeyError, DataError, RecursionError) as error:
        raise stored.unreadable(TRAINING, cause(error)) from error


def _wanted(session: BuiltModel) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a session's state, as they are to be read."""
    plan = session.cell.state_plan
    shardings = jax.tree.leaves(plan.shardings)
    return {
        name: jax.ShapeDtypeStruct(row.shape, row.dtype, sharding=sharding)
        for name, row, sharding in zip(names_of(session), plan.rows, shardings, strict=True)
    }


def _parts(wanted: Mapping[str, jax.ShapeDtypeStruct]) -> list[list[str]]:
    """The names in groups of `_PARTS_READ`th of all bytes, or of one array that has more."""
    sizes = {name: math.prod(like.shape) * jax_internals.itemsize(like.dtype) for name, like in wanted.items()}
    limit = max(_PART_BYTES, sum(sizes.values()) / _PARTS_READ)
    parts: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if parts[-1] and total + size > limit:
            parts.append([])
            total = 0
        parts[-1].append(name)
        total += size
    return parts


def _check_fit(model: str, wanted: Mapping[str, jax.ShapeDtypeStruct], stored: Stored, with_slots: bool) -> None:
    """Check that a checkpoint has exactly the arrays of the model."""
    left_out = (f"{TRAINING}/",) if with_slots else (f"{TRAINING}/", "optimizers/")
    noted = {name: one for name, one in stored.record["arrays"].items() if not name.startswith(left_out)}
    problems = [f"missing in the checkpoint: {name}" for name in wanted if name not in noted]
    problems += [f"not in the model: {name}" for name in noted if name not in wanted]
    for name, like in wanted.items():
        found = noted.get(name)
        if found is not None and (tuple(found["shape"]), found["dtype"]) != (like.shape, str(like.dtype)):
            problems.append(
                f"of another shape or type: {name} is {tuple(found['shape'])} {found['dtype']}, "
                f"in the model {like.shape} {like.dtype}"
            )
    if problems:
        raise _unfit(stored, f"model {model!r}", problems)


def check_shapes(stored: Stored, specs: Sequence[VariableSpec]) -> None:
    """Check that a checkpoint has an array of the same shape and type for each variable of a model, or of a part."""
    noted = ((name, one) for name, one in stored.record["arrays"].items() if name.startswith("variables/"))
    left = collections.Counter((tuple(one["shape"]), one["dtype"]) for _, one in noted)
    problems = []
    for spec in specs:
        kind = spec.shape, str(spec.dtype)
        left[kind] -= 1
        if left[kind] < 0:
            problems.append(f"not in the checkpoint: for {spec.path} an array of shape {kind[0]} and type {kind[1]}")
    if problems:
        raise _unfit(stored, "the model that is to be made", problems)


def _unfit(stored: Stored, model: str, problems: list[str]) -> CheckpointError:
    more = f" and {len(problems) - _LISTED} more (see `problems`)" if len(problems) > _LISTED else ""
    summary = f"{str(stored.folder)!r} does not fit {model}"
    fix = "make and compile the model as it was when the checkpoint was written; or choose another directory"
    return CheckpointError(summary, given="; ".join(problems[:_LISTED]) + more, fix=fix, problems=tuple(problems))


def retried(load: Callable[[], T]) -> T:
    """Return what `load` returns; call it again where files are overwritten meanwhile, except in jobs."""
    return load() if jax.process_count() > 1 else regular_files.retried(load)


def model_path(caller: str, filepath: str | os.PathLike[str]) -> pathlib.Path:
    """The folder of a model."""
    is_path = isinstance(filepath, str | os.PathLike) and str(filepath) and "\0" not in str(filepath)
    if not is_path or str(filepath).endswith(_FILES):
        summary = f"{caller}: `filepath` must be the path of a folder"
        fix = 'for example "digits"; model.save_weights writes a file of weights'
        raise ModelError(summary, given=f"filepath={shorten(filepath)}", fix=fix)
    return folder_path(os.fspath(filepath))


def reduced(model: SavingMethods) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """How the model is made again, on the distribution that is current then, with the state of its optimizer."""
    if jax.process_count() > 1:
        summary = f"model {model.name!r} cannot be pickled or copied in a job of several processes"
        given = f"{jax.process_count()} processes, each of which holds a part of the weights"
        raise ModelError(summary, given=given, fix="model.save(path) in all of them, then kd.models.load_model(path)")
    check_described(model)
    own = {type(owner) for owner in model._owners() if not type(owner).__module__.startswith("keras_dist.")}
    custom_objects = {cls.__name__: cls for cls in own}
    with lambdas_kept():  # `pickle` refuses them itself, and `cloudpickle` takes them
        documents = (serialize_keras_object(model), written_compile(model), model.dtype_policy.identifier)
    state = None
    if model._session is not None or model._is_built:
        session = model._with_weights()
        with model.at_rest():
            arrays = [host_copy(array) for array in session.cell.arrays]
        state = (session.seed, session.fits, dict(zip(names_of(session), arrays, strict=True)))
    return _unpickled, (custom_objects, *documents, state)


def copied(model: SavingMethods) -> Any:
    """The model with arrays of its own, on the same distribution."""
    make, arguments = reduced(model)
    made_under = model._runtime.made_under if arguments[-1] is None else model._with_weights().distribution
    with contextlib.nullcontext() if made_under is None else made_under.scope(), in_place_of(model):
        return make(*arguments)


def _unpickled(custom_objects: Any, config: Any, compiled: Any, policy: Any, state: Any) -> Any:
    with under_policy(policy):
        model = deserialize_keras_object(config, custom_objects)
        if compiled:
            model.compile_from_config(compiled)
    if state is not None:
        seed, fits, values = state
        session = model._with_weights()
        session.use_seed(seed)
        session.fits = fits
        cell = session.cell
        places = zip(names_of(session), cell.arrays, jax.tree.leaves(cell.state_plan.shardings), strict=True)
        cell.arrays = [place_copy(_like(array, values[name]), sharding) for name, array, sharding in places]
    return model


def _like(array: Any, value: Any) -> Any:
    """What `host_copy` gave for such an array, typed PRNG keys as these."""
    if not is_key_dtype(array.dtype):
        return value
    return jax.random.wrap_key_data(value, impl=key_impl(array.dtype))
