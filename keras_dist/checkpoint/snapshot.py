"""`Snapshot`, the contents of a checkpoint to write, and `Stored`, a checkpoint to read.

`Model.save`, `CheckpointManager`, `BackupAndRestore` and folders of weights write the same thing, with other documents:
one format, one reader, one doctor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import math
import pathlib
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import check_flag, check_int, check_kind, check_path, is_int
from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import dtype_named
from keras_dist.checkpoint.arrays import FOLDER as ARRAYS
from keras_dist.checkpoint.arrays import read_arrays, write_arrays
from keras_dist.checkpoint.folder import draft_at, is_being_written, present
from keras_dist.checkpoint.manifest import NAME as MANIFEST
from keras_dist.checkpoint.manifest import damage_of, listed_in
from keras_dist.checkpoint.unchanged_arrays import DOCUMENT as BASES
from keras_dist.checkpoint.unchanged_arrays import FINGERPRINTS, NAME, Bases, bases_from_json, has_arrays
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.errors import CheckpointError, cause, shorten
from keras_dist.files.buckets import absolute, folder_path, refreshed, resolved
from keras_dist.files.drafts import place_of, writing_to
from keras_dist.files.regular_files import identity_of, overwritten, read_regular, retried
from keras_dist.jobs.rendezvous import Rendezvous

FORMAT = 1
RECORD = "record"  # document of every checkpoint; see `Stored.record`
KINDS = ("variables", "optimizers", "training")  # of arrays, by the beginning of their names; `other` else
STEP = re.compile(r"step_(\d{8,})")  # folder of a state
_LIMIT = 2**63  # of counts

_PACKAGES = ("keras_dist", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """The contents of a checkpoint to write.

    Attributes:
        step: number of training steps.
        arrays: arrays by name.
        plan: layouts of the model's arrays.
        documents: JSON values by file name.
        untrained: names of weights that no gradient trains; training may change them, such as statistics.
        bases: checkpoints beside this one that already have some of the arrays.
    """

    step: int
    arrays: Mapping[str, jax.Array | np.ndarray]
    plan: LayoutPlan
    documents: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    untrained: frozenset[str] = frozenset()
    bases: Bases = dataclasses.field(default_factory=dict)

    def part(self, names: Collection[str], documents: Mapping[str, Any]) -> Snapshot:
        """Return a snapshot of some of the planned arrays, with their rows of the plan.

        Args:
            names: names of the arrays.
            documents: replace the documents of this snapshot.
        """
        planned = [name for name in self.arrays if not name.startswith("training/")]
        rows = tuple(row for name, row in zip(planned, self.plan.rows, strict=True) if name in names)
        plan = dataclasses.replace(self.plan, rows=rows, treedef=jax.tree.structure([*rows]))
        arrays = {name: array for name, array in self.arrays.items() if name in names}
        return Snapshot(self.step, arrays, plan, documents)

    def __post_init__(self) -> None:
        check_int("step", self.step, 0, example=100, error=CheckpointError)
        check_kind("arrays", self.arrays, Mapping, "a dict of arrays by name", error=CheckpointError)
        check_kind("plan", self.plan, LayoutPlan, "a LayoutPlan, as model.layout_plan", error=CheckpointError)
        check_kind("documents", self.documents, Mapping, "a dict of JSON values by file name", error=CheckpointError)
        wrong = [name for name, value in self.arrays.items() if not isinstance(value, jax.Array | np.ndarray)]
        wrong += [name for name in (*self.arrays, *self.documents) if not isinstance(name, str)]
        if wrong:
            given = shorten(wrong[0])
            fix = "numpy.asarray makes arrays of numbers; names are paths such as 'variables/d1/kernel'"
            raise CheckpointError("every entry of a snapshot must be an array with a name", given=given, fix=fix)

    def begin(self, place: pathlib.Path, fsync: bool = False) -> Callable[[], None]:
        """Start writing the snapshot to a folder, atomically. All processes of a job must call it.

        Args:
            place: path of the folder.
            fsync: whether to force it to the disk.

        Returns:
            A function that waits until it is written, to be called once, in any thread. It raises errors of writing.

        Raises:
            CheckpointError: the place is not suitable.
            OSError: a file cannot be written.
        """
        place = folder_path(check_path("place", place, "states", CheckpointError))
        check_flag("fsync", fsync, CheckpointError)
        job = Rendezvous("a save")
        with writing_to(place):
            draft = draft_at(place, job, fsync)

        bases = {BASES: self.bases} if self.bases else {}
        there = {name for held in self.bases.values() for name in held}
        arrays = {name: array for name, array in self.arrays.items() if name not in there}

        def write_documents() -> None:
            for name, document in {RECORD: self._record(), **bases, **self.documents}.items():
                (draft.folder / f"{name}.json").write_text(_json_of(name, document), "utf-8")

        try:
            with writing_to(place):
                job.first(write_documents)
                wait = write_arrays(draft.folder, arrays, job)
        except BaseException:
            draft.abandon()
            raise

        def finish() -> None:
            try:
                with writing_to(place):
                    wait()
                    draft.commit()
            except BaseException:
                draft.abandon()
                raise

        return finish

    def _record(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": self.step,
            "written": datetime.datetime.now(datetime.UTC).isoformat(),
            "versions": {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()},
            "processes": jax.process_count(),
            "arrays": {
                name: {"shape": list(value.shape), "dtype": str(value.dtype)} for name, value in self.arrays.items()
            },
            "plan": self.plan.to_dict(),
        }


class Stored:
    """A checkpoint in a folder. Opening it reads no arrays and needs no devices.

    Args:
        folder: path of the folder.
        is_checked: whether its files were already compared with the manifest, perhaps by another process.
        is_base: whether it is a base of another checkpoint.

    Attributes:
        folder: path of the folder.
        bases: arrays that are in other checkpoints beside it; see `CheckpointManager`.
        record: the format, the step, time and versions of the save, the names, shapes and dtypes of its arrays, and
            their layout plan.

    Raises:
        CheckpointError: the folder is damaged, or not a checkpoint.
    """

    def __init__(self, folder: pathlib.Path, is_checked: bool = False, *, is_base: bool = False) -> None:
        place = folder_path(check_path("folder", folder, "states/step_00000012", CheckpointError))
        check_flag("is_checked", is_checked, CheckpointError)
        retried(lambda: self._open(place, is_checked, is_base))

    def _open(self, folder: pathlib.Path, is_checked: bool, is_base: bool) -> None:
        self.folder = folder = present(folder)
        self._identity = identity_of(folder)
        with self._noticing():
            problems = [] if is_checked and (folder / MANIFEST).is_file() else _problems_of(folder)
            if problems:
                raise _unopened(folder, problems)
            self._files = listed_in(folder)
            record = self.document(RECORD)
            self.record: dict[str, Any] = record if isinstance(record, dict) else {}
            if self.record.get("format") != FORMAT:
                given = f"format {self.record.get('format')!r}, not {FORMAT}"
                fix = "read it with the version of keras_dist that wrote it, or a later one"
                raise CheckpointError(f"{str(folder)!r} has a format that is not known", given=given, fix=fix)
            recorded = self.record.get("arrays")
            has_arrays_noted = isinstance(recorded, dict) and all(map(is_array, recorded.values()))
            if not is_count(self.record.get("step")) or not has_arrays_noted:
                raise self.unreadable(RECORD, "a document without a step and arrays")
            self.bases: Bases = {} if is_base or not self.has(BASES) else self._found_bases()
            self._opened = {name: self._opened_base(name, is_checked) for name in self.bases}

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Raise `OverwrittenError` if the folder was replaced since it was opened, whether or not the body raises."""
        try:
            yield
        except (CheckpointError, OSError) as error:
            if identity_of(self.folder) == self._identity:
                raise
            raise overwritten("", self.folder) from error
        if identity_of(self.folder) != self._identity:
            raise overwritten("", self.folder)

    def _found_bases(self) -> Bases:
        recorded = self.document(BASES)
        bases = bases_from_json(recorded)
        if bases is None or not all(arrays.keys() <= self.record["arrays"].keys() for arrays in bases.values()):
            raise self.unreadable(BASES, shorten(recorded))
        return bases

    def _opened_base(self, name: str, is_checked: bool) -> Stored:
        """Open a base, and check that it has the arrays that this checkpoint was saved with."""
        try:
            found = Stored(absolute(self.folder).parent / name, is_checked, is_base=True)
        except CheckpointError as error:
            raise self._without_base(name, error.problems or (error.given,)) from error
        if not has_arrays(found.document(FINGERPRINTS), self.bases[name]):
            raise self._without_base(name, ("has other arrays than this checkpoint was saved with",))
        return found

    def _without_base(self, name: str, problems: Sequence[str]) -> CheckpointError:
        problems = tuple(f"{name}: {problem}" for problem in problems)
        summary = f"{str(self.folder)!r} is damaged: some of its arrays are in {name}"
        fix = "restore another one, or copy the whole directory again"
        return CheckpointError(summary, given="; ".join(problems), fix=fix, problems=problems)

    @classmethod
    def of_job(cls, folder: pathlib.Path) -> Stored:
        """Open a checkpoint in all processes of a job; the first process checks it for all.

        Args:
            folder: path of the folder; or a directory of a `CheckpointManager`, for its newest state.
        """
        folder = folder_path(check_path("folder", folder, "states", CheckpointError))
        checked = {}

        def check() -> str:
            checked[0] = cls(newest_in(folder) or folder)
            return str(checked[0].folder)

        place = folder_path(Rendezvous("a load").first(check, str))
        if not checked and resolved(folder) not in (resolved(place), place_of(place), resolved(place.parent)):
            given = f"process 0: {str(place)!r}, this process: {str(folder)!r}"
            fix = "give all processes the same path, on a shared disk"
            raise CheckpointError("the processes load from different places", given=given, fix=fix)
        return checked[0] if checked else cls(place, is_checked=True)

    @property
    def step(self) -> int:
        """Number of training steps."""
        return self.record["step"]

    def has(self, name: str) -> bool:
        """Return whether the manifest lists a document of this name."""
        return f"{name}.json" in self._files

    def document(self, name: str) -> Any:
        """Return the document of this name; None if the manifest does not list it.

        Raises:
            CheckpointError: the document is not JSON.
            OSError: the file cannot be read.
        """
        with self._noticing():
            try:
                return json.loads(read_regular(self.folder / f"{name}.json")) if self.has(name) else None
            except (ValueError, RecursionError) as error:
                raise self.unreadable(name, cause(error)) from error

    def unreadable(self, name: str, given: str, fix: str = "") -> CheckpointError:
        """Return the error for an invalid document.

        Args:
            name: name of the document.
            given: the mistake in the document.
            fix: by default, to restore another checkpoint.
        """
        fix = fix or "restore another checkpoint, or write it again; another version may have written it"
        return CheckpointError(f"{name}.json in {str(self.folder)!r} cannot be read", given=given, fix=fix)

    def arrays(self, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array | np.ndarray]:
        """Return arrays by name: on devices if `wanted` gives a sharding, else on the host.

        Raises:
            CheckpointError: an array cannot be read; or another process has replaced the checkpoint meanwhile.
        """
        check_kind("wanted", wanted, Mapping, "a dict of jax.ShapeDtypeStructs by name", error=CheckpointError)
        for name, like in wanted.items():
            check_kind("wanted", like, jax.ShapeDtypeStruct, f"a ShapeDtypeStruct for {name!r}", error=CheckpointError)
        with self._noticing():
            elsewhere = {name: folder for folder, arrays in self.bases.items() for name in arrays}
            found = read_arrays(self.folder, {name: like for name, like in wanted.items() if name not in elsewhere})
            for folder, base in self._opened.items():
                found |= base.arrays({name: like for name, like in wanted.items() if elsewhere.get(name) == folder})
            return found

    def arrays_below(self, prefix: str) -> dict[str, jax.Array | np.ndarray]:
        """Return the arrays whose names begin with `prefix`, on the host, by the remainder of their names."""
        check_kind("prefix", prefix, str, "a string", error=CheckpointError)
        like = {
            name: jax.ShapeDtypeStruct(tuple(recorded["shape"]), dtype_named(recorded["dtype"]))
            for name, recorded in self.record["arrays"].items()
            if name.startswith(prefix)
        }
        return {name.removeprefix(prefix): value for name, value in self.arrays(like).items()}


def _json_of(name: str, document: Any) -> str:
    try:
        return json.dumps(document, indent=1)
    except (TypeError, ValueError, RecursionError) as error:
        given = cause(error)
        fix = "numbers, strings, None, and lists and dicts by strings of these"
        raise CheckpointError(f"the document {name!r} of a snapshot must be JSON", given=given, fix=fix) from error


def states_in(directory: pathlib.Path) -> dict[int, pathlib.Path]:
    """Return the folders of the states in the directory of a `CheckpointManager`, by step, ascending."""
    directory = refreshed(directory)
    if not directory.is_dir():
        return {}
    found = ((STEP.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match is not None))


def bases_in(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the folders of the bases in the directory of a `CheckpointManager`."""
    directory = refreshed(directory)
    return [path for path in directory.iterdir() if NAME.fullmatch(path.name)] if directory.is_dir() else []


def bases_needed(directory: pathlib.Path) -> frozenset[str] | None:
    """Return the names of the bases that states in a directory refer to, also damaged ones; None if unknown."""
    found: set[str] = set()
    for folder in refreshed(directory).iterdir():
        try:
            bases = bases_from_json(json.loads(read_regular(folder / f"{BASES}.json")))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError):
            return None
        if bases is None:
            return None
        found |= bases.keys()
    return frozenset(found)


def newest_in(directory: pathlib.Path) -> pathlib.Path | None:
    """Return the newest state with a manifest in a directory without a manifest, or None."""
    if (refreshed(directory) / MANIFEST).is_file():
        return None
    whole = [path for path in states_in(directory).values() if (path / MANIFEST).is_file()]
    return whole[-1] if whole else None


def _problems_of(folder: pathlib.Path) -> list[str]:
    if folder.is_dir():
        return damage_of(folder)
    what = "is not a folder" if folder.exists() else "does not exist"
    return [f"{folder} {what}" + (", but is being written" if is_being_written(folder) else "")]


def _unopened(folder: pathlib.Path, problems: Sequence[str]) -> CheckpointError:
    """Return the error for a damaged checkpoint, or for a path of something else."""
    is_folder = folder.is_dir()
    names = sorted(path.name for path in folder.iterdir()) if is_folder else []
    if {MANIFEST, f"{RECORD}.json", ARRAYS} & {*names}:
        what, parts, fix = "damaged", list(problems), "restore another one, or copy it again completely"
    else:
        what, held = "not a checkpoint", f"the folder holds {shorten(names)}" if names else "the folder is empty"
        parts = [*problems, *[held] * is_folder]
        fix = "the path of a folder that save, save_weights or a CheckpointManager has written"
        fix = "load it again when the save has ended" if is_being_written(folder) else fix
    return CheckpointError(f"{str(folder)!r} is {what}", given="; ".join(parts), fix=fix, problems=tuple(problems))


def is_array(recorded: Any) -> bool:
    """Whether a value of a document describes an array by shape and dtype."""
    shape = recorded.get("shape") if isinstance(recorded, dict) else None
    if not isinstance(shape, list) or not all(map(is_count, shape)):
        return False
    try:
        itemsize = (
            jax_internals.itemsize(dtype_named(recorded["dtype"])) if isinstance(recorded.get("dtype"), str) else 0
        )
    except (TypeError, ValueError, StopIteration):
        return False
    return itemsize > 0 and math.prod(size or 1 for size in shape) * itemsize < _LIMIT  # as in numpy


def is_count(value: Any) -> bool:
    """Whether a value of a document is an integer of at least 0."""
    return is_int(value, 0, _LIMIT - 1)


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
