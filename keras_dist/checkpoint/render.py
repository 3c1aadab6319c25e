"""Tables of a directory of checkpoints, as text."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from keras_dist._support.text_tables import Table, render
from keras_dist.checkpoint.snapshot import KINDS
from keras_dist.distribution.render import render_bytes

if TYPE_CHECKING:
    from keras_dist.checkpoint.doctor import Diagnosis, SavedArray, SavedState

_LISTED = 20
_RULES_LISTED = 3


def render_diagnosis(found: Diagnosis) -> str:
    """Render a table of the states, and lines about damage, writers and layouts."""
    lines: list[Table | str] = [_table(found) if found.states else f"no checkpoints in {found.path}"]
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
