"""Pictures of layouts and plans: meshes, shards, memory and collectives."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from keras_dist._support.arguments import argument_error
from keras_dist._support.text_tables import Table
from keras_dist.distribution.drawing import device_labels, devices_svg
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.render import render_axes, render_bytes, render_shape
from keras_dist.distribution.shards import ShardPicture
from keras_dist.errors import ModelError
from keras_dist.visualization.picture import Bar, Drawing, Picture, bar_table, bars, below, beside, nested, titled

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
    drawing = beside(nested(shards.array_svg()), nested(shards.mesh_svg()))
    return Picture(path, titled(_heading(shards), drawing), [str(shards)])


def plot_memory(plan: LayoutPlan | PlanReport) -> Picture:
    """Draw the bytes of each device by role: parameters, optimizer slots, batch, intermediate results.

    Args:
        plan: a layout plan, or the report of `kd.plan`, which adds intermediate results.

    Raises:
        ModelError: `plan` is not a plan.
    """
    rows, title = _memory(plan), "bytes of each device, by role"
    return Picture(title, titled(title, bars(rows)), [bar_table(title, ("role", "bytes"), rows)])


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
    return Picture(title, titled(title, bars(rows)), [bar_table(title, ("layer", "bytes"), rows)])


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
    pictures = [titled(_heading(each), beside(nested(each.array_svg()), nested(each.mesh_svg()))) for each in shards]
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
