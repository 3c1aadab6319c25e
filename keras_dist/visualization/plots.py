"""Pictures of layouts and plans (meshes, shards, memory, collectives), of training histories and of measurements."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_dist._support.arguments import argument_error
from keras_dist._support.html_tables import escaped
from keras_dist._support.text_tables import Table
from keras_dist.distribution.device_blocks import ShardPicture
from keras_dist.distribution.drawing import device_labels, devices_svg
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.render import render_axes, render_bytes, render_shape
from keras_dist.errors import ModelError, with_type
from keras_dist.visualization.history import text_plot
from keras_dist.visualization.picture import Bar, Drawing, Picture, bar_picture, below, beside, legend, nested, titled

if TYPE_CHECKING:
    from keras_dist.planner.report import PlanReport

_HUES = {"parameter": 212, "slot": 262, "statistic": 162, "state": 132, "gradient": 22, "batch": 42}
_KINDS = {"all_reduce": 212, "all_gather": 32, "reduce_scatter": 162, "all_to_all": 292, "collective_permute": 352}
_OTHER_HUE = 92
_MOST_LINES = 16
_LONGEST_RULE = 30  # [characters] in a heading
_LEAST_SHARE = 0.001  # of the largest role, to be drawn


def plot_mesh(device_mesh: DeviceMesh) -> Picture:
    """Draw a mesh with its axes: the last axis along the rows, all others along the columns.

    Args:
        device_mesh: a mesh, also of devices that are not present.

    Raises:
        ModelError: `device_mesh` is not a mesh.

    Example:
        >>> import keras_dist as kd
        >>> print(kd.visualization.plot_mesh(kd.DeviceMesh("data=2,model=4")))
        mesh {data: 2, model: 4} of 8 devices; device 0 is cpu:0
               │ model 0 │ model 1 │ model 2 │ model 3
        ───────┼─────────┼─────────┼─────────┼────────
        data 0 │       0 │       1 │       2 │       3
        data 1 │       4 │       5 │       6 │       7
    """
    mesh = check_mesh(device_mesh, ModelError)
    labels = device_labels(mesh.device_names)
    title = f"mesh {mesh.describe()} of {mesh.size} devices; device {labels[0]} is {mesh.device_names[0]}"
    *outer, last = mesh.axis_names
    across, places = mesh.shape[-1], [""]
    for name in outer:
        places = [f"{place} {name} {index}".strip() for place in places for index in range(mesh.axis_sizes[name])]
    headers = ["", *(f"{last} {index}" for index in range(across))]
    rows = [[place, *labels[index * across : (index + 1) * across]] for index, place in enumerate(places)]
    drawing = titled(title, nested(devices_svg(mesh.axis_sizes, mesh.device_names)))
    return Picture(title, drawing, [Table(title, headers, headers[1:], headers, rows=[*rows])])


def plot_shards(plan: LayoutPlan | PlanReport, path: str) -> Picture:
    """Draw the shards of an array beside the mesh; a device has the colour of the block that it holds.

    Args:
        plan: a layout plan, or the report of `kd.plan`.
        path: path of the array, such as `"d1/kernel"`.

    Raises:
        ModelError: `plan` is not a plan.
        UnknownPathError: the plan lacks the array. It is also a `KeyError`.
    """
    shards = _state(plan).show(path)
    drawing = nested(shards.array_svg(), shards.mesh_svg())
    return Picture(path, titled(_heading(shards), drawing), [str(shards)])


def plot_memory(plan: LayoutPlan | PlanReport) -> Picture:
    """Draw the bytes of each device by role: parameters, optimizer slots, batch, intermediate results.

    Args:
        plan: a layout plan, or the report of `kd.plan`, which adds intermediate results.

    Raises:
        ModelError: `plan` is not a plan.
    """
    rows, title = _memory(plan), "bytes of each device, by role"
    return bar_picture(title, ("role", "bytes"), rows)


def plot_collectives(report: PlanReport) -> Picture:
    """Draw the bytes that collectives of one step move, by layer and kind.

    Args:
        report: the report of `kd.plan` or `model.plan`.

    Raises:
        ModelError: `report` is not a report.
    """
    if not hasattr(report, "step"):
        raise argument_error("report", report, "a PlanReport", fix="pass the result of kd.plan or model.plan")
    sums: collections.Counter[tuple[str, str]] = collections.Counter()
    for each in report.step.collectives:
        layer = each.layer or each.needed_by or each.weight.rpartition("/")[0] or "-"
        sums[f"{layer} ({', '.join(each.axes)})", each.kind] += each.nbytes_per_step
    title = "collectives of a step, by layer and axis of the mesh (propagated)"
    largest = sums.most_common(_MOST_LINES)
    if rest := sums.total() - sum(nbytes for _, nbytes in largest):
        largest.append(((f"{len(sums) - len(largest)} more", ""), rest))
    if not largest:
        return Picture(title, titled(f"{title}: none", Drawing("", 0, 0)), [f"{title}: none"])
    rows = [Bar(name, n, _KINDS.get(kind, _OTHER_HUE), f"{render_bytes(n)} {kind}") for (name, kind), n in largest]
    return bar_picture(title, ("layer", "bytes"), rows)


def plot_plan(plan: LayoutPlan | PlanReport, *paths: str) -> Picture:
    """Draw a plan: mesh, shards of some arrays, and bytes of each device by role.

    Args:
        plan: a layout plan, or the report of `kd.plan`.
        *paths: paths of the arrays to draw; by default the three largest parameters.

    Raises:
        ModelError: `plan` is not a plan.
        UnknownPathError: the plan lacks an array. It is also a `KeyError`.
    """
    state = _state(plan)
    largest = sorted((row for row in state.rows if row.role == "parameter"), key=lambda row: -row.nbytes)
    shards = [state.show(path) for path in paths or [row.path for row in largest[:3]]]
    mesh, memory = plot_mesh(state.mesh), plot_memory(plan)
    pictures = [titled(_heading(each), nested(each.array_svg(), each.mesh_svg())) for each in shards]
    drawing = below(beside(mesh.drawing, memory.drawing), *pictures)
    title = f"plan on mesh {state.mesh.describe()}"
    return Picture(title, drawing, [*mesh.text, *(f"\n{each}" for each in shards), "", *memory.text])


def _state(plan: Any) -> LayoutPlan:
    state = getattr(plan, "state", plan)
    if not isinstance(state, LayoutPlan):
        raise argument_error("plan", plan, "a LayoutPlan or PlanReport", fix="pass model.layout_plan, or kd.plan(...)")
    return state


def _heading(shards: ShardPicture) -> str:
    rule = f", rule {shards.rule}" if shards.rule and len(shards.rule) <= _LONGEST_RULE else ""
    layout, each = render_axes(shards.axes), render_bytes(shards.nbytes_per_device)
    return f"{shards.path}: {render_shape(shards.shape)} {shards.dtype}, {layout}{rule}; {each} on each device"


def _memory(plan: LayoutPlan | PlanReport) -> list[Bar]:
    state, batch, step = _state(plan), getattr(plan, "batch", None), getattr(plan, "step", None)
    whole, own = collections.Counter[str](), collections.Counter[str]()
    for row in (*state.rows, *(() if batch is None else batch.rows)):
        if row.memory_kind is None:
            whole[row.role] += row.nbytes
            own[row.role] += row.nbytes_per_device
    most = max(own.values(), default=0)
    rows = [
        Bar(role, n, _HUES.get(role, _OTHER_HUE), f"{render_bytes(n)} of {render_bytes(whole[role])} in all")
        for role, n in own.items()
        if n >= _LEAST_SHARE * most
    ]
    if step is not None:
        nbytes = step.activation_nbytes
        rows.append(Bar("intermediates", nbytes, _OTHER_HUE, f"about {render_bytes(nbytes)} (propagated)"))
    return rows


_PANEL = (280, 150)  # [pixels]
_PANELS_IN_A_ROW = 2
_REACHED, _MISSED = 162, 12  # hues


def plot_curves(history: Any, title: str = "training") -> Picture:
    """Draw loss and metrics over the epochs, without matplotlib.

    Values of `fit` get a panel for each name, with training and validation values. Lines of several runs share a panel
    with `title` as its heading.

    Args:
        history: the `History` that `fit` returned, a dict from names to values by epoch, or a dict from names of runs
            to histories, whose losses are compared.
        title: heading of the picture.

    Raises:
        ModelError: `history` is empty, or not a history.

    Example:
        >>> import keras_dist as kd
        >>> print(kd.visualization.plot_curves({"loss": [2.0, 1.0, 0.5], "val_loss": [2.5, 1.5, 1.0]}))
                 │ first │ epochs │ last
        ─────────┼───────┼────────┼─────
        loss     │     2 │ █▃▁    │  0.5
        val_loss │   2.5 │ █▃▁    │    1
    """
    given = getattr(history, "history", history)
    if not isinstance(given, Mapping) or not given:
        fix = "plot_curves(model.fit(...)), or a dict from names to values by epoch"
        raise ModelError("plot_curves: there is nothing to plot", given=f"history={with_type(history)}", fix=fix)
    runs = {str(name): getattr(each, "history", each) for name, each in given.items()}
    compared = all(isinstance(each, Mapping) and "loss" in each for each in runs.values())
    lines = {name: _numbers(each["loss"] if compared else each) for name, each in runs.items()}
    panels: dict[str, dict[str, np.ndarray]] = {}
    for name, values in lines.items():
        label = "validation" if name.startswith("val_") else "training"
        panels.setdefault(title if compared else name.removeprefix("val_"), {})[name if compared else label] = values
    drawn = [titled(name, _panel(each)) for name, each in panels.items()]
    rows = [beside(*drawn[at : at + _PANELS_IN_A_ROW]) for at in range(0, len(drawn), _PANELS_IN_A_ROW)]
    return Picture(title, below(*rows), [text_plot(lines)])


def plot_bars(
    values: Mapping[str, float], title: str, unit: str = "", aims: Mapping[str, float] | None = None
) -> Picture:
    """Draw measurements as bars, such as the ratios of a benchmark or the step times of layouts.

    Args:
        values: a positive number for each name.
        title: heading of the picture.
        unit: unit of the numbers.
        aims: upper bounds for some of the names: a line marks each, and bars above it have another colour.

    Raises:
        ModelError: `values` is empty, or has a negative value.
    """
    if not values or min(values.values()) < 0:
        raise argument_error("values", values, "positive numbers by name", example={"fit": 0.9})
    aims = aims or {}
    hues = {name: _MISSED if each > aims.get(name, each) else _REACHED for name, each in values.items()}
    rows = [Bar(name, n, hues[name], f"{n:.4g} {unit}".rstrip(), aims.get(name)) for name, n in values.items()]
    return bar_picture(title, ("", "value"), rows)


def _numbers(values: Sequence[Any]) -> np.ndarray:
    """Return values by epoch; several elements are averaged."""
    return np.asarray(values, float).reshape(len(values), -1).mean(1)


def _panel(lines: Mapping[str, np.ndarray]) -> Drawing:
    """Draw lines over the epochs, with the range of values at the left."""
    width, height = _PANEL
    finite = np.concatenate([*lines.values()])
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    left, most = 60, max(map(len, lines.values()))
    hues = {name: (212 + 300 * index // max(len(lines), 2)) % 360 for index, name in enumerate(lines)}
    parts = [
        f'<path d="M{left} 0V{height}H{left + width}" fill="none" stroke="currentColor" stroke-opacity="0.45"/>',
        f'<text x="{left - 6}" y="10" text-anchor="end">{high:.4g}</text>',
        f'<text x="{left - 6}" y="{height}" text-anchor="end">{low:.4g}</text>',
        f'<text x="{left + width}" y="{height + 16}" text-anchor="end">epoch {most}</text>',
    ]
    for name, values in lines.items():
        x = left + width * (np.arange(len(values)) * (most / len(values)) / max(most - 1, 1))
        y = height - height * (values - low) / (high - low or 1)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="hsl({hues[name]} 62% 50%)" stroke-width="2">'
            f"<title>{escaped(name)}</title></polyline>"
        )
    names = legend(hues)
    parts.append(f'<g transform="translate({left} {height + 26})">{names.svg}</g>')
    return Drawing("".join(parts), left + max(width, names.width), height + 38)
