"""Checks of a directory of checkpoints by its JSON files, without reading arrays or using devices."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_dist._support.arguments import check_path
from keras_dist._support.text_tables import Table, render
from keras_dist._unstable import jax_internals
from keras_dist._unstable.jax_internals import dtype_named
from keras_dist.checkpoint import manifest
from keras_dist.checkpoint.snapshot import FORMAT, KINDS, RECORD, is_array, is_count
from keras_dist.checkpoint.unchanged_arrays import DOCUMENT as BASES
from keras_dist.checkpoint.unchanged_arrays import FINGERPRINTS, bases_from_json, has_arrays
from keras_dist.checkpoint.unchanged_arrays import NAME as BASE_NAME
from keras_dist.distribution.layout import Axis
from keras_dist.distribution.render import render_bytes
from keras_dist.errors import CheckpointError, shorten
from keras_dist.files.buckets import absolute, files_below, folder_path, refreshed
from keras_dist.files.drafts import is_draft
from keras_dist.files.locks import Holder, holder_of
from keras_dist.files.regular_files import read_regular

_STEP = re.compile(r"step_\d+")
_ASIDE = re.compile(r".+\.damaged_*")


@dataclasses.dataclass(frozen=True)
class SavedArray:
    """One array of a checkpoint.

    Attributes:
        name: such as `variables/d1/kernel`.
        shape: shape of the array.
        nbytes: size of the whole array [bytes].
        axes: for each dim the mesh axis, several axes, or None; None if no plan was saved.
        rule: origin of the layout; see `Row.rule`.
        nbytes_per_device: size of one shard, or of the array if no plan was saved [bytes].
    """

    name: str
    shape: tuple[int, ...]
    nbytes: int
    axes: tuple[Axis, ...] | None
    rule: str | None
    nbytes_per_device: int

    @property
    def kind(self) -> str:
        """One of `KINDS`, or `"other"`."""
        kind = self.name.partition("/")[0]
        return kind if kind in KINDS else "other"


@dataclasses.dataclass(frozen=True)
class SavedState:
    """One checkpoint. Attributes that cannot be read because of damage are empty or None.

    Attributes:
        name: name of its folder.
        problems: damage, by file.
        files: number of files.
        step: number of training steps.
        written: time of the save.
        versions: versions of the packages that wrote it.
        processes: number of processes that wrote it.
        arrays: all arrays.
        documents: names of its JSON documents.
        epoch: epoch of the training; None if it was written outside of `fit`.
        batch: number of finished batches of the epoch; None if it was written outside of `fit`.
        mesh: sizes of the mesh axes it was saved on.
        bases: names of the bases that hold some of its arrays.
    """

    name: str
    problems: tuple[str, ...]
    files: int = 0
    step: int | None = None
    written: datetime.datetime | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    processes: int = 1
    arrays: tuple[SavedArray, ...] = ()
    documents: tuple[str, ...] = ()
    epoch: int | None = None
    batch: int | None = None
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)
    bases: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the checkpoint is undamaged."""
        return not self.problems

    @property
    def rules(self) -> dict[str, int]:
        """Bytes per device that each layout rule saves, slots included; the largest first."""
        followed = {array.name.partition("/")[2]: array.rule for array in self.arrays if array.kind == "variables"}
        kept_away: Counter[str] = Counter()
        for array in self.arrays:
            path, _, own = (array.rule or "").removeprefix("follows ").partition(", ")
            rule = (own or followed.get(path)) if (array.rule or "").startswith("follows ") else array.rule
            kept_away[rule or "no rule"] += array.nbytes - array.nbytes_per_device
        return {rule: nbytes for rule, nbytes in kept_away.most_common() if nbytes}


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The contents of a directory of checkpoints.

    Attributes:
        path: the directory, or the folder of one checkpoint.
        states: the checkpoints, by step.
        drafts: folders of saves that are still running or were killed; they are never read.
        aside: damaged folders that were moved aside.
        writer: holder of the lock, or None.
        bases: arrays that states share. Their problems are also problems of these states.
        link: the given path, if it is a link to `path`; links inside of `path` are not followed.
    """

    path: pathlib.Path
    states: tuple[SavedState, ...]
    drafts: tuple[str, ...]
    aside: tuple[str, ...]
    writer: Holder | None
    bases: tuple[SavedState, ...] = ()
    link: pathlib.Path | None = None

    def __str__(self) -> str:
        return render_diagnosis(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values."""
        found = dataclasses.asdict(self)
        found |= {"path": str(self.path), "link": self.link and str(self.link), "is_good": self.is_good}
        entries = [*found["states"], *found["bases"]]
        for state, entry in zip((*self.states, *self.bases), entries, strict=True):
            entry |= {"written": state.written and state.written.isoformat(), "rules": state.rules}
        return found

    @property
    def is_good(self) -> bool:
        """Whether there is a state and all are undamaged; folders that were moved aside are ignored."""
        return bool(self.states) and all(state.is_good for state in self.states)


def examine(path: str | os.PathLike[str]) -> Diagnosis:
    """Compare the files of checkpoints with their manifests. No array is read, no device is used.

    Args:
        path: a directory of checkpoints, or the folder of one. It is not changed.

    Raises:
        CheckpointError: the directory does not exist.

    Example:
        >>> import tempfile
        >>> import keras_dist as kd
        >>> directory = tempfile.mkdtemp()
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
        >>> with kd.checkpoint.CheckpointManager(model, directory) as manager:
        ...     path = manager.save()
        >>> found = kd.checkpoint.examine(directory)
        >>> [(state.name, state.is_good) for state in found.states]
        [('step_00000000', True)]
    """
    path = refreshed(folder_path(check_path("path", path, "states", CheckpointError)))
    link = path if os.path.islink(path) else None  # the user names it; links inside are not followed
    path = path.__class__(os.path.realpath(path)) if link else path
    if not path.is_dir():
        summary = f"examine: {str(path)!r} is {'a file' if path.exists() else 'not there'}"
        fix = "the directory that CheckpointManager or BackupAndRestore was given, or a folder of Model.save"
        raise CheckpointError(summary, given=f"path={str(path)!r}", fix=fix)
    if _is_state(path):
        found, directory = [path], absolute(path).parent
        around = [one for one in _folders(directory) if absolute(path).name in one.name]
    else:
        directory = path
        around = _folders(directory)
        found = [one for one in around if _is_state(one) and not is_draft(one) and not _ASIDE.fullmatch(one.name)]
    bases = {one.name: _examined(one) for one in _folders(directory) if BASE_NAME.fullmatch(one.name)}
    states = [_with_bases(_examined(folder), folder, bases) for folder in found if folder.name not in bases]
    states = states or [bases.pop(folder.name) for folder in found]  # the folder of a base was given
    if found == [path]:
        needed = {name for state in states for name in state.bases}
        bases = {name: base for name, base in bases.items() if name in needed}
    return Diagnosis(
        path,
        tuple(sorted(states, key=lambda state: (-1 if state.step is None else state.step, state.name))),
        tuple(one.name for one in around if is_draft(one)),
        tuple(one.name for one in around if _ASIDE.fullmatch(one.name) and not is_draft(one)),
        holder_of(directory),
        tuple(bases.values()),
        link,
    )


def _is_state(folder: pathlib.Path) -> bool:
    names = (manifest.NAME, f"{RECORD}.json")
    return _STEP.fullmatch(absolute(folder).name) is not None or any((folder / name).is_file() for name in names)


def _folders(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() or _STEP.fullmatch(path.name))


def _examined(folder: pathlib.Path) -> SavedState:
    """Return the known facts about a checkpoint, damaged or not."""
    name = absolute(folder).name
    if not folder.is_dir():
        return SavedState(name, (f"{name} is a file",))
    if os.path.islink(folder) and folder.resolve().parent != folder.parent.resolve():
        return SavedState(name, ("is a link to another place, which is not followed",))
    problems = manifest.damage_of(folder)
    files = files_below(folder)
    documents = sorted(name.removesuffix(".json") for name in files if "/" not in name and name.endswith(".json"))
    state = SavedState(
        name,
        tuple(problems),
        len(files),
        documents=tuple(one for one in documents if one not in (RECORD, pathlib.Path(manifest.NAME).stem)),
    )
    document = RECORD
    try:
        record = _read(folder, document)
        if record["format"] != FORMAT:
            unknown = f"{RECORD}.json has the format {shorten(record['format'])}, which is not known"
            return dataclasses.replace(state, problems=(*problems, unknown))
        state = dataclasses.replace(state, **_recorded(record))
        if "training" in documents:
            document = "training"
            cursor = _read(folder, document)["cursor"]
            state = dataclasses.replace(state, epoch=_count(cursor["epoch"]), batch=_count(cursor["batch"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if not problems:  # else these are the reason
            unread = f"{document}.json cannot be read: {type(error).__name__}: {shorten(str(error))[1:-1]}"
            return dataclasses.replace(state, problems=(unread,))
    return state


def _with_bases(state: SavedState, folder: pathlib.Path, known: Mapping[str, SavedState]) -> SavedState:
    """Add the problems of the bases of a state."""
    if BASES not in state.documents:
        return state
    bases = bases_from_json(_read_or_none(folder, BASES))
    if bases is None:
        unread = () if state.problems else (f"{BASES}.json cannot be read",)
        return dataclasses.replace(state, problems=(*state.problems, *unread))
    found: list[str] = []
    for name, arrays in bases.items():
        problems = known[name].problems if name in known else (f"{manifest.NAME} is missing",)
        if not problems and not has_arrays(_read_or_none(folder.parent / name, FINGERPRINTS), arrays):
            problems = ("has other arrays than the state was saved with",)
        found += [f"{name}: {problem}" for problem in problems]
    return dataclasses.replace(state, bases=tuple(bases), problems=(*state.problems, *found))


def _read_or_none(folder: pathlib.Path, document: str) -> Any:
    try:
        return _read(folder, document)
    except (OSError, ValueError, RecursionError):
        return None


def _read(folder: pathlib.Path, document: str) -> Any:
    return json.loads(read_regular(folder / f"{document}.json"))


def _count(value: Any) -> int:
    if not is_count(value):
        raise ValueError(f"{shorten(value)} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shorten(value)} is not text")
    value.encode()  # JSON may contain surrogates, which cannot be printed
    return value


def _recorded(record: Mapping[str, Any]) -> dict[str, Any]:
    plan, mesh = record["plan"], record["plan"]["mesh"]
    planned = [name for name in record["arrays"] if not name.startswith("training/")]
    rows = dict(zip(planned, plan["rows"], strict=True))  # a snapshot has them in one order
    return {
        "step": _count(record["step"]),
        "written": datetime.datetime.fromisoformat(record["written"]).astimezone(datetime.UTC),
        "versions": {_text(name): _text(version) for name, version in record["versions"].items()},
        "processes": _count(record["processes"]),
        "mesh": dict(zip(map(_text, mesh["axis_names"]), map(_count, mesh["shape"]), strict=True)),
        "arrays": tuple(_saved_array(name, recorded, rows.get(name)) for name, recorded in record["arrays"].items()),
    }


def _saved_array(name: str, recorded: Mapping[str, Any], row: Mapping[str, Any] | None) -> SavedArray:
    if not is_array(recorded):
        raise ValueError(f"{shorten(recorded)} is not a shape and dtype of {_text(name)!r}")
    shape = tuple(recorded["shape"])
    if row is None:
        nbytes = math.prod(shape) * jax_internals.itemsize(dtype_named(recorded["dtype"]))
        return SavedArray(name, shape, nbytes, None, None, nbytes)
    axes = tuple(_axis(axis) for _, axis in zip(shape, row["axes"], strict=True))
    rule = None if row["rule"] is None else _text(row["rule"])
    return SavedArray(_text(name), shape, _count(row["nbytes"]), axes, rule, _count(row["nbytes_per_device"]))


def _axis(axis: Any) -> Axis:
    return tuple(map(_text, axis)) if isinstance(axis, list) else None if axis is None else _text(axis)


if TYPE_CHECKING:
    from keras_dist.checkpoint.doctor import Diagnosis, SavedArray, SavedState

_LISTED = 20
_RULES_LISTED = 3


def render_diagnosis(found: Diagnosis) -> str:
    """Render a table of the states, and lines about damage, writers and layouts."""
    lines: list[Table | str] = [f"{found.link} is a link to {found.path}"] if found.link else []
    lines.append(_table(found) if found.states else f"no checkpoints in {found.path}")
    for state in found.states:
        lines += _listed(f"damaged: {state.name}: ", state.problems)
    lines += [_base(base, [state.name for state in found.states if base.name in state.bases]) for base in found.bases]
    lines += [f"draft: {name}: being written, or left by a process that was killed" for name in found.drafts]
    lines += [f"moved aside: {name}" for name in found.aside]
    if found.writer is not None:
        ends = {True: "", False: "; it has exited without releasing it", None: "; it may still run on its machine"}
        lines.append(f"lock: {found.writer.text}{ends[found.writer.is_alive]}")
    lines += _grouped("versions of", {state.name: _versions(state) for state in found.states})
    lines += _grouped("plan of", {state.name: _plan(state) for state in found.states})
    return render(*lines)


def _table(found: Diagnosis) -> Table:
    headers = ("state", "step", "written (UTC)", *KINDS, "documents", "epoch, batch", "files")
    priority = ("state", "files", "step", "written (UTC)", "epoch, batch")
    table = Table(f"Checkpoints in {found.path}", headers, numbers=("step", *KINDS), priority=priority)
    for state in found.states:
        cells = (
            state.name,
            "?" if state.step is None else str(state.step),
            "?" if state.written is None else f"{state.written.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}",
            *(_amount([array for array in state.arrays if array.kind == kind]) for kind in KINDS),
            ", ".join(state.documents),
            "" if state.epoch is None else f"{state.epoch}, {state.batch}",
            f"{state.files}, good" if state.is_good else f"{state.files}, DAMAGED",
        )
        table.rows.append(cells)
    return table


def _base(base: SavedState, states: Sequence[str]) -> str:
    of = f"arrays of {', '.join(states)}" if states else "no state needs it; the next save deletes it"
    return f"base: {base.name}: {_amount(base.arrays)}, {'good' if base.is_good else 'DAMAGED'}; {of}"


def _amount(arrays: Sequence[SavedArray]) -> str:
    return f"{len(arrays)}: {render_bytes(sum(array.nbytes for array in arrays))}" if arrays else "-"


def _versions(state: SavedState) -> str:
    several = f", {state.processes} processes" if state.processes > 1 else ""
    return ", ".join(f"{name} {version}" for name, version in state.versions.items()) + several


def _plan(state: SavedState) -> str:
    if not state.mesh:
        return ""
    planned = [array for array in state.arrays if array.axes is not None]
    each, whole = sum(array.nbytes_per_device for array in planned), sum(array.nbytes for array in planned)
    rules = [f"{rule} ({render_bytes(nbytes)})" for rule, nbytes in [*state.rules.items()][:_RULES_LISTED]]
    saved = f"; saved per device by {', '.join(rules)}" if rules else ""
    return f"mesh {_mesh(state.mesh)}, {render_bytes(each)} of {render_bytes(whole)} on each device{saved}"


def _mesh(sizes: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{name}: {size}" for name, size in sizes.items()) + "}"


def _grouped(label: str, texts: Mapping[str, str]) -> list[str]:
    """Return a line for each text, after the names that share it."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    return [
        f"{label} {'all' if len(found) == len(texts) > 1 else ', '.join(found)}: {text}"
        for text, found in names.items()
        if text
    ]


def _listed(prefix: str, lines: Sequence[str]) -> list[str]:
    more = [f"{prefix}and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return [f"{prefix}{line}" for line in lines[:_LISTED]] + more
