"""`assert_plan`: compares a plan with a file, for tests in continuous integration.

Only the *exact* part is compared in CI: what Shardy propagates differs between versions of JAX. Another rule for the
same layout is no difference.
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Literal, TypeVar

import pydantic

from keras_dist._support.arguments import check_kind, check_path
from keras_dist.distribution.plan import Row
from keras_dist.distribution.render import render_axes, render_bytes, render_shape
from keras_dist.errors import PlanError, PlanFileError
from keras_dist.files.drafts import write_file
from keras_dist.files.regular_files import open_regular
from keras_dist.jobs.job import is_chief
from keras_dist.planner.report import PlanReport

T = TypeVar("T")

UPDATE_VARIABLE = "KERAS_DIST_UPDATE_PLANS"
"""If this environment variable is `1`, `assert_plan` writes files."""

_MOST_BYTES, _MOST_LINES = 2**26, 40


class _Placement(pydantic.BaseModel):
    """Layout of one array in a file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    shape: tuple[int, ...]
    dtype: str
    role: str
    axes: tuple[str | tuple[str, ...] | None, ...]
    rule: str | None
    nbytes_per_device: int

    def describe(self) -> str:
        return f"{render_axes(self.axes)}, {self.rule or 'no rule'}"


class _Snapshot(pydantic.BaseModel):
    """Contents of a file: the part of a report that depends on neither the machine nor the version of JAX."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["keras_dist plan 1"] = "keras_dist plan 1"
    mesh: dict[str, int]
    arrays: dict[str, _Placement]


_FILE = pydantic.TypeAdapter(_Snapshot)


def assert_plan(report: PlanReport, path: str | os.PathLike[str], *, update: bool | None = None) -> None:
    """Check that a plan equals the plan in a file, for continuous integration.

    The file has the *exact* part of the report: the axes of the mesh, and shape, element type, role, layout, rule and
    bytes per device of each array. It has no devices, and nothing that depends on the version of JAX. Another rule with
    the same layout is not a difference.

    Args:
        report: the report of the current model.
        path: path of the file, to be kept in version control.
        update: whether to write the file instead of comparing. By default only if the environment variable
            `KERAS_DIST_UPDATE_PLANS` is `1`.

    Raises:
        PlanError: an array has another layout, is new or missing; or the file does not exist. It is an
            `AssertionError`.
        PlanFileError: the file cannot be read, or is damaged.
        WriteError: the file cannot be written.
        ModelError: an argument has a wrong value.

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
    file = pathlib.Path(check_path("path", path, "plan.json"))
    rows = (*report.state.rows, *report.batch.rows)
    now = _Snapshot(mesh=report.state.mesh.axis_sizes, arrays={row.path: _placement_of(row) for row in rows})
    if os.environ.get(UPDATE_VARIABLE) == "1" if update is None else update:
        if is_chief():
            write_file(file, _text_of(now))
        return
    if lines := _differences(_read(file), now):
        shown = [*lines[:_MOST_LINES], *[f"... and {len(lines) - _MOST_LINES} more"] * (len(lines) > _MOST_LINES)]
        raise PlanError(
            f"the plan differs from the plan in {str(file)!r}:\n" + "\n".join(f"    {line}" for line in shown),
            given=f"{len(lines)} difference{'s' if len(lines) > 1 else ''}",
            fix=f"correct the rules or names; if the change is intended, run once with {UPDATE_VARIABLE}=1",
        )


def _placement_of(row: Row) -> _Placement:
    names = ("shape", "role", "axes", "rule", "nbytes_per_device")
    return _Placement(dtype=str(row.dtype), **{name: getattr(row, name) for name in names})


def _text_of(snapshot: _Snapshot) -> str:
    """Return JSON with one line for each array, in the order of the paths, for readable diffs."""
    arrays = snapshot.arrays
    lines = [f"    {json.dumps(path)}: {json.dumps(arrays[path].model_dump())}" for path in sorted(arrays)]
    joined = ",\n".join(lines)
    return (
        f'{{\n  "format": {json.dumps(snapshot.format)},\n  "mesh": {json.dumps(snapshot.mesh)},\n'
        f'  "arrays": {{\n{joined}\n  }}\n}}\n'
    )


def _read(file: pathlib.Path) -> _Snapshot:
    given, fix = f"path={str(file)!r}", f"run once with {UPDATE_VARIABLE}=1, review the file and commit it"
    missing = PlanError(f"the plan {str(file)!r} does not exist", given=given, fix=fix)
    fix = f"restore it from version control, or write it again with {UPDATE_VARIABLE}=1 (or update=True)"
    return read_file(file, _FILE, _MOST_BYTES, "a plan", fix, missing)


def read_file(
    file: pathlib.Path,
    content: pydantic.TypeAdapter[T],
    most_bytes: int,
    kind: str,
    fix: str,
    missing: PlanError | None = None,
) -> T:
    """Return the validated content of a file of this kind, in JSON; raise `missing` if it does not exist."""
    cause = None
    try:
        with open_regular(file, follow_links=True) as stream:
            text = stream.read(most_bytes + 1)
        if len(text) > most_bytes:
            raise OSError(errno.EFBIG, f"more than {most_bytes} bytes")
        return content.validate_json(text)
    except OSError as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            raise missing from None
        cause, why = error, str(error.strerror or error)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = ": ".join(filter(None, ("/".join(map(str, first["loc"])), first["msg"])))
    raise PlanFileError(f"{str(file)!r} is not {kind}, or is damaged", given=why, fix=fix) from cause


def _differences(kept: _Snapshot, now: _Snapshot) -> list[str]:
    lines: list[str] = []
    if list(kept.mesh.items()) != list(now.mesh.items()):
        lines.append(f"mesh: was {_mesh_text(kept.mesh)}, is {_mesh_text(now.mesh)}")
    for path in sorted({*kept.arrays, *now.arrays}):
        before, after = kept.arrays.get(path), now.arrays.get(path)
        if before is None and after is not None:
            lines.append(f"{path}: is new, {after.describe()}")
        elif after is None and before is not None:
            lines.append(f"{path}: is missing; was {before.describe()}")
        elif before is not None and after is not None and (changes := _changes(before, after)):
            lines.append(f"{path}: {', '.join(changes)}")
    return lines


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
