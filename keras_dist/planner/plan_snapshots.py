"""`assert_plan`: a plan that is kept in a file, and the test that it is still the same."""

from __future__ import annotations

import collections
import itertools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic

from keras_dist._support.arguments import check_kind, check_path
from keras_dist.distribution.jobs.job import is_chief
from keras_dist.distribution.plan import Row
from keras_dist.distribution.render import render_axes, render_bytes, render_shape
from keras_dist.errors import PlanError, PlanFileError, shorten
from keras_dist.planner.report import PlanReport
from keras_dist.saving.drafts import write_text
from keras_dist.saving.regular_files import open_regular

UPDATE_VARIABLE = "KERAS_DIST_UPDATE_PLANS"
"""The variable of the environment that has `assert_plan` write files: `1`."""

_MOST_BYTES = 2**26
_MOST_LINES = 40

_Axes = tuple[str | tuple[str, ...] | None, ...]


class _Placement(pydantic.BaseModel):
    """Of one array, as in a file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    shape: tuple[int, ...]
    dtype: str
    role: str
    axes: _Axes
    rule: str | None
    nbytes_per_device: int

    def describe(self) -> str:
        return f"{render_axes(self.axes)}, {self.rule or 'no rule'}"


class _Golden(pydantic.BaseModel):
    """A file: what of a report neither depends on the machine nor on the version of JAX."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["keras_dist plan 1"] = "keras_dist plan 1"
    mesh: dict[str, int]
    arrays: dict[str, _Placement]


def assert_plan(report: PlanReport, path: str | os.PathLike[str], *, update: bool | None = None) -> None:
    """Check that all arrays lie as a file says, for continuous integration.

    The file keeps the *exact* part of the report: the axes of the mesh, and shape, element type, role, layout and
    bytes per device of each array, with the rule that decided. It has neither devices nor what depends on the version
    of JAX. Another rule for the same layout is no difference.

    Args:
        report: of the model as it is now.
        path: of the file, which belongs into version control.
        update: whether the file is written, new or over the old one, instead of being compared; by default only
            where the variable `KERAS_DIST_UPDATE_PLANS` of the environment is `1`.

    Raises:
        PlanError: an array lies otherwise, is new or has gone; or there is no file. It is an `AssertionError`.
        PlanFileError: the file cannot be read, or is damaged.
        WriteError: it cannot be written, such as where a folder is in its place, or none around it.
        ModelError: an argument cannot be used.

    Example:
        >>> import keras_dist as kd, numpy as np, os, tempfile
        >>> with kd.DataParallel(kd.DeviceMesh("batch=8")).scope():
        ...     model = kd.Sequential([kd.Input((16,)), kd.layers.Dense(64, name="d1")])
        >>> model.compile("sgd", "mse")
        >>> report = model.plan(np.zeros((32, 16)), np.zeros((32, 64)))
        >>> path = os.path.join(tempfile.mkdtemp(), "plan.json")
        >>> kd.planner.assert_plan(report, path, update=True)
        >>> kd.planner.assert_plan(report, path)
    """
    check_kind("report", report, PlanReport, "a PlanReport, as kd.plan and model.plan return it")
    check_kind("update", update, bool | None, "True, False or None")
    place = pathlib.Path(check_path("path", path, "plan.json"))
    now = _golden_of(report)
    if os.environ.get(UPDATE_VARIABLE) == "1" if update is None else update:
        if is_chief():
            write_text(place, _text_of(now))
        return
    kept = _read(place)
    if lines := _differences(kept, now):
        shown = [*lines[:_MOST_LINES], *[f"... and {len(lines) - _MOST_LINES} more"] * (len(lines) > _MOST_LINES)]
        raise PlanError(
            f"the plan is not the one in {str(place)!r}:\n" + "\n".join(f"    {line}" for line in shown),
            given=f"{len(lines)} difference{'s' if len(lines) > 1 else ''}",
            fix=f"correct the rules or names; if it is meant so, run once with {UPDATE_VARIABLE}=1 (or update=True)",
        )


def _golden_of(report: PlanReport) -> _Golden:
    rows = (*report.state.rows, *report.batch.rows)
    return _Golden(mesh=report.state.mesh.axis_sizes, arrays={row.path: _placement_of(row) for row in rows})


def _placement_of(row: Row) -> _Placement:
    return _Placement(
        shape=row.shape,
        dtype=str(row.dtype),
        role=row.role,
        axes=row.axes,
        rule=row.rule,
        nbytes_per_device=row.nbytes_per_device,
    )


def _text_of(golden: _Golden) -> str:
    """One line for each array, in the order of their paths, so that a diff of the file can be read, too."""
    lines = [f"  {json.dumps(path)}: {json.dumps(golden.arrays[path].model_dump())}" for path in sorted(golden.arrays)]
    joined = ",\n".join(f"  {line}" for line in lines)
    return (
        f'{{\n  "format": {json.dumps(golden.format)},\n  "mesh": {json.dumps(golden.mesh)},\n'
        f'  "arrays": {{\n{joined}\n  }}\n}}\n'
    )


def _read(place: pathlib.Path) -> _Golden:
    try:
        with open_regular(place, follow_links=True) as file:
            text = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        given = f"path={str(place)!r}"
        fix = f"run once with {UPDATE_VARIABLE}=1 (or update=True), look at the file and commit it"
        raise PlanError(f"there is no plan {str(place)!r} to compare with", given=given, fix=fix) from None
    except OSError as error:
        raise _unusable(place, str(error.strerror or error)) from error
    if len(text) > _MOST_BYTES:
        raise _unusable(place, f"it has more than {_MOST_BYTES} bytes")
    try:
        kept = _Golden.model_validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "/".join(map(str, first["loc"]))
        raise _unusable(place, f"{where + ': ' if where else ''}{first['msg']}") from None
    twice: list[str] = []

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.extend(name for name, times in collections.Counter(name for name, _ in pairs).items() if times > 1)
        return dict(pairs)

    try:
        json.loads(text, object_pairs_hook=noted)  # of which pydantic sees the last alone
    except (ValueError, RecursionError) as error:  # in what it does not see
        raise _unusable(place, f"Invalid JSON: {shorten(str(error))}") from None
    if twice:
        raise _unusable(place, f"{shorten(twice[0])} is there twice")
    return kept


def _unusable(place: pathlib.Path, why: str) -> PlanFileError:
    fix = f"restore it from version control, or write it anew with {UPDATE_VARIABLE}=1 (or update=True)"
    return PlanFileError(f"{str(place)!r} is not a plan, or is damaged", given=why, fix=fix)


def _differences(kept: _Golden, now: _Golden) -> list[str]:
    """A line for each thing that is not as it was; arrays that were only renamed are told as that."""
    lines: list[str] = []
    if kept.mesh != now.mesh or list(kept.mesh) != list(now.mesh):
        lines.append(f"mesh: was {_mesh_text(kept.mesh)}, is {_mesh_text(now.mesh)}")
    gone = [path for path in kept.arrays if path not in now.arrays]
    new = [path for path in now.arrays if path not in kept.arrays]
    renamed = _renamed(kept, now, gone, new)
    for path in sorted({*kept.arrays, *new}):
        before, after = kept.arrays.get(path), now.arrays.get(renamed.get(path, path))
        if path in renamed.values():
            continue
        if before is None and after is not None:
            lines.append(f"{path}: is new, {after.describe()}")
        elif after is None and before is not None:
            lines.append(f"{path}: has gone; was {before.describe()}")
        elif before is not None and after is not None:
            changes = _changes(before, after)
            if path in renamed:
                lines.append(f"{path}: is now {renamed[path]!r}; {', '.join(changes) or 'it lies as before'}")
            elif changes:
                lines.append(f"{path}: {', '.join(changes)}")
    return lines


def _renamed(kept: _Golden, now: _Golden, gone: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """For each path that has gone the new one of its kind: in their order, where there are as many of either."""

    def kinds(arrays: Mapping[str, _Placement], paths: Sequence[str]) -> dict[Any, list[str]]:
        found: dict[Any, list[str]] = {}
        for path in paths:
            of = arrays[path]
            found.setdefault((of.shape, of.dtype, of.role, path.rpartition("/")[2]), []).append(path)
        return found

    before, after = kinds(kept.arrays, gone), kinds(now.arrays, new)
    pairs = ((before[kind], after[kind]) for kind in before if kind in after)
    alike = (zip(*pair, strict=True) for pair in pairs if len(pair[0]) == len(pair[1]))
    return dict(itertools.chain.from_iterable(alike))


def _changes(before: _Placement, after: _Placement) -> list[str]:
    changes: list[str] = []
    for name, show in (("role", str), ("dtype", str), ("shape", render_shape)):
        if getattr(before, name) != getattr(after, name):
            changes.append(f"{name} was {show(getattr(before, name))}, is {show(getattr(after, name))}")
    if before.axes != after.axes:
        changes.append(f"was {before.describe()}; is {after.describe()}")
    if before.nbytes_per_device != after.nbytes_per_device:
        sizes = map(render_bytes, (before.nbytes_per_device, after.nbytes_per_device))
        changes.append(" -> ".join(sizes) + " per device")
    return changes


def _mesh_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
