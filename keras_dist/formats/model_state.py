"""The whole state of a built model as a `Snapshot` in a folder.

Arrays are restored by eighths of their bytes, and old arrays of a part are deleted before it is read: both would be
twice the memory. What cannot be read at all shows in the first part, which deletes nothing.
"""

from __future__ import annotations

import collections
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support import backend_environment
from keras_dist._support.arguments import check_flag, check_kind
from keras_dist._support.types import ArrayLike, PyTree
from keras_dist._unstable import jax_internals
from keras_dist.checkpoint import Snapshot, Stored
from keras_dist.checkpoint.snapshot import is_count
from keras_dist.distribution.variables import VariableSpec
from keras_dist.errors import CheckpointError, ClusterError, DataError, cause, shorten, with_type
from keras_dist.formats.save_formats import check_free
from keras_dist.jobs.job import process_index
from keras_dist.jobs.rendezvous import Rendezvous
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.progress import Progress

TRAINING, CONFIG, COMPILE, POLICY, LORA = "training", "config", "compile", "policy", "lora"
QUANTIZED = "quantized"
"""The documents of a snapshot: progress of the training, config of the model, arguments of `compile`, the dtype policy
under which the code of the model creates layers, arguments of `enable_lora`, and modes of quantized weights by path."""

_PARTS_READ, _PART_BYTES = 8, 16 * 2**20
"""Arrays are read by eighths of their bytes, so that not all of them are there twice; what is small is read at once."""

_LISTED = 20


def save_folder(built: BuiltModel, documents: Mapping[str, Any], path: pathlib.Path, overwrite: bool) -> None:
    """Save a model to a folder; see `Model.save`."""
    if not overwrite:
        Rendezvous("a save").first(lambda: check_free("save", path, CheckpointError))
    with built.cell.lock:  # a training in another thread consumes the arrays
        taken: list[Snapshot] = []
        Rendezvous("a save").each(lambda: taken.append(snapshot(built, None, documents)))
        finish = taken[0].begin(path)
    finish()


def restore(
    name: str, built: BuiltModel, stored: Stored, continue_training: bool = False, with_slots: bool = True
) -> None:
    """Restore the state of a model; see `Model.restore`. An uncompiled model has no slots to restore."""
    check_kind("stored", stored, Stored, "a Stored, as CheckpointManager.newest() returns it", error=CheckpointError)
    check_flag("continue_training", continue_training)
    cell = built.cell
    wanted = _wanted(built)
    job = Rendezvous("a restore")
    looked: list[tuple[tuple[int, int], Progress | None]] = []

    def look() -> None:
        _check_fit(name, wanted, stored, with_slots)
        progress = _progress_of(stored) if continue_training else None
        if progress is not None:
            built.step_runner.check_continues(progress)
        looked.append((seed_and_fits(stored), progress))

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
    built.fits = fits
    built.use_seed(seed)
    if progress is not None:
        built.step_runner.continue_from(progress)


def seed_and_fits(stored: Stored) -> tuple[int, int]:
    """Return the stored seed of the model and the number of calls of `fit`."""
    recorded = stored.document("model")
    names = ("seed", "fits")
    if not isinstance(recorded, dict) or not all(is_count(recorded.get(name)) for name in names):
        raise stored.unreadable("model", shorten(recorded))
    return recorded["seed"], recorded["fits"]


def snapshot(built: BuiltModel, progress: Progress | None, documents: Mapping[str, Any]) -> Snapshot:
    """Return the whole state of a model: arrays, progress of training, and further documents."""
    mesh = built.cell.mesh.backend_mesh
    if not mesh.local_devices:
        given = f"a mesh without a device of process {process_index()}"
        fix = "make the mesh of list_devices(), the devices of all processes"
        raise ClusterError("no device of this process is in the model's mesh", given=given, fix=fix)
    names = names_of(built)
    arrays = dict(zip(names, built.cell.arrays, strict=True))
    documents = {"model": {"seed": built.seed, "fits": built.fits}, **documents}
    if progress is not None:
        written = progress.to_json()
        plain, found = split_arrays({name: written[name] for name in ("tallies", "callbacks")})
        documents[TRAINING] = written | plain
        arrays |= {f"{TRAINING}/{index}": value for index, value in enumerate(found)}
    trained = len(jax.tree.leaves(built.cell.state.trainable))
    rest = len(jax.tree.leaves(built.cell.state.rest))
    rows = zip(names, built.cell.state_plan.rows, strict=True)
    untrained = [name for name, row in [*rows][trained : trained + rest] if row.role in ("parameter", "statistic")]
    plan = built.cell.state_plan
    return Snapshot(built.cell.steps_taken, arrays, plan, documents, frozenset(untrained))


def names_of(built: BuiltModel) -> list[str]:
    """Return the flat names of all state arrays, as they are written."""
    state = built.cell.state
    kinds = {"trainable": "variables", "rest": "variables", "slots": "optimizers", "step": ""}
    prefixes = [prefix for field, prefix in kinds.items() for _ in jax.tree.leaves(getattr(state, field))]
    rows = built.cell.state_plan.rows
    return [f"{prefix}/{row.path}".removeprefix("/") for prefix, row in zip(prefixes, rows, strict=True)]


def split_arrays(tree: PyTree) -> tuple[PyTree, list[jax.Array | np.ndarray]]:
    """Replace each array in nested lists and dicts by a number; return them and the arrays. See `join_arrays`."""
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
    """Invert `split_arrays`; tuples become lists."""
    if isinstance(plain, dict):
        if [*plain] == [_ARRAY]:
            return arrays[str(plain[_ARRAY])]
        return {name: join_arrays(value, arrays) for name, value in plain.items()}
    return [join_arrays(value, arrays) for value in plain] if isinstance(plain, list) else plain


def _progress_of(stored: Stored) -> Progress | None:
    """Return the progress of the training of a checkpoint; None if it was written outside of `fit`."""
    recorded = stored.document(TRAINING)
    if recorded is None and not stored.has(TRAINING):
        return None
    arrays = stored.arrays_below(f"{TRAINING}/")
    try:
        return Progress.from_json(join_arrays(recorded, arrays))
    except (KeyError, DataError, RecursionError) as error:
        raise stored.unreadable(TRAINING, cause(error)) from error


def _wanted(built: BuiltModel) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a built model's state, as they are to be read."""
    plan = built.cell.state_plan
    shardings = jax.tree.leaves(plan.shardings)
    return {
        name: jax.ShapeDtypeStruct(row.shape, row.dtype, sharding=sharding)
        for name, row, sharding in zip(names_of(built), plan.rows, shardings, strict=True)
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
    recorded = {name: one for name, one in stored.record["arrays"].items() if not name.startswith(left_out)}
    problems = [f"missing in the checkpoint: {name}" for name in wanted if name not in recorded]
    problems += [f"not in the model: {name}" for name in recorded if name not in wanted]
    for name, like in wanted.items():
        found = recorded.get(name)
        if found is not None and (tuple(found["shape"]), found["dtype"]) != (like.shape, str(like.dtype)):
            problems.append(
                f"of another shape or type: {name} is {tuple(found['shape'])} {found['dtype']}, "
                f"in the model {like.shape} {like.dtype}"
            )
    if problems:
        raise _unfit(stored, f"model {model!r}", problems)


def check_shapes(stored: Stored, specs: Sequence[VariableSpec]) -> None:
    """Check that a checkpoint has an array of equal shape and dtype for each variable."""
    recorded = ((name, one) for name, one in stored.record["arrays"].items() if name.startswith("variables/"))
    left = collections.Counter((tuple(one["shape"]), one["dtype"]) for _, one in recorded)
    problems = []
    for spec in specs:
        kind = spec.shape, str(spec.dtype)
        left[kind] -= 1
        if left[kind] < 0:
            problems.append(f"not in the checkpoint: for {spec.path} an array of shape {kind[0]} and type {kind[1]}")
    if problems:
        raise _unfit(stored, "the described model", problems)


def _unfit(stored: Stored, model: str, problems: list[str]) -> CheckpointError:
    more = f" and {len(problems) - _LISTED} more (see `problems`)" if len(problems) > _LISTED else ""
    summary = f"{str(stored.folder)!r} does not fit {model}"
    fix = "make and compile the model as it was when the checkpoint was written; or choose another directory"
    return CheckpointError(summary, given="; ".join(problems[:_LISTED]) + more, fix=fix, problems=tuple(problems))
