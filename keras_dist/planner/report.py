"""`PlanReport`: the figures of a planned train step, each with its tier."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from keras_dist._support.text_tables import Table, render
from keras_dist.distribution.lint import Problem
from keras_dist.distribution.mesh import axis_tuple
from keras_dist.distribution.pipelining import Pipeline
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.render import layout_table, render_bytes, render_interval
from keras_dist.planner import html
from keras_dist.planner.comparison import Comparison, compare
from keras_dist.planner.explanation import Activation, Explanation, explain
from keras_dist.planner.propagated import Propagated
from keras_dist.planner.verdict import Verdict

_MOST_LINES, _MOST_ESTIMATES = 20, 3


@dataclasses.dataclass(frozen=True, repr=False)
class PlanReport:
    """Layouts, communication and costs of a train step. Printing it shows tables.

    Attributes:
        state: *exact*: layouts of parameters, statistics and optimizer slots.
        batch: *exact*: layouts of the batch.
        step: *propagated*: collectives and costs by JAX's partitioner Shardy. XLA's program moves the same bytes
            unless `step.estimates` lists operations whose collectives may differ. Bytes are then intervals, and the
            report says *estimate*.
        activations: *propagated*: layouts of the outputs of submodules, and their reasons.
        problems: rules without effect, repeated work, and hidden reshards, which no rule asks for. If other rules were
            found that cost less, the first names the layout that costs most, and its `fix` is code with these rules.
        assumed: assumptions about the step, such as a default optimizer.
        verdict: whether the step fits on the target, and its least time there; None without a target.
        kernels: *exact*: the implementations that layers chose for the platform, such as attention by cuDNN.
        pipelines: *exact*: the schedules of stacks of layers, with stages, micro-batches and bubble.
        updates: *exact*: how the optimizer updates each weight, by its path.

    Example:
        >>> import keras_dist as kd, numpy as np
        >>> with kd.DataParallel(kd.DeviceMesh("batch=8")).scope():
        ...     model = kd.Sequential([kd.Input((16,)), kd.layers.Dense(64, name="d1")])
        >>> model.compile("sgd", "mse")
        >>> report = model.plan(np.zeros((32, 16)), np.zeros((32, 64)))
        >>> report.nbytes_by_role["parameter"], report.step.nbytes_by_axes()
        (4352, {('all_reduce', ('batch',)): 4356})
    """

    state: LayoutPlan
    batch: LayoutPlan
    step: Propagated
    activations: tuple[Activation, ...] = ()
    problems: tuple[Problem, ...] = ()
    assumed: tuple[str, ...] = ()
    verdict: Verdict | None = None
    kernels: tuple[str, ...] = ()
    pipelines: tuple[Pipeline, ...] = ()
    updates: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def nbytes_by_role(self) -> dict[str, int]:
        """Bytes of state and batch per device, by role, as `"slot"` or `"slot in pinned_host"`. *Exact*."""
        found: collections.Counter[str] = collections.Counter()
        for row in (*self.state.rows, *self.batch.rows):
            found[row.role if row.memory_kind is None else f"{row.role} in {row.memory_kind}"] += row.nbytes_per_device
        return dict(found)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits on the target; None if not known: without a target, or before compilation."""
        return None if self.verdict is None else self.verdict.fits

    @property
    def exit_code(self) -> int:
        """Exit code for scripts: 1 if the step does not fit on the target, 4 if this is not known, else 0."""
        if self.verdict is None or not self.verdict.limit_nbytes:
            return 0
        return {True: 0, False: 1, None: 4}[self.verdict.fits]

    def explain(self, path: str) -> Explanation:
        """Explain the layout of a variable, slot or input, or of an activation, `<layer>/output`.

        Args:
            path: path of the array.

        Raises:
            LayoutError: the step has no such array.
        """
        return explain(path, self.state, self.batch, self.activations)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as dicts, lists, strings and numbers."""
        return {
            "exact": {
                **self.state.to_dict(),
                "batch": self.batch.to_dict()["rows"],
                "nbytes_by_role": self.nbytes_by_role,
            },
            "assumed": list(self.assumed),
            "kernels": list(self.kernels),
            "pipelines": [dataclasses.asdict(each) | {"bubble": each.bubble} for each in self.pipelines],
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "propagated": {
                **dataclasses.asdict(self.step),
                "moved_nbytes": list(self.step.moved_interval),
                "moved": [
                    {"kind": kind, "axes": list(axes), "nbytes": list(interval)}
                    for (kind, axes), interval in self.step.intervals().items()
                ],
                "activations": [dataclasses.asdict(each) for each in self.activations],
            },
            "problems": [dataclasses.asdict(each) for each in self.problems],
        }

    def to_json(self) -> str:
        """Return `to_dict()` as JSON."""
        return json.dumps(self.to_dict(), indent=2, default=list)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a self-contained page of HTML with pictures.

        Args:
            path: path of the file. In a job of several processes, the first one writes it.

        Raises:
            ModelError: `path` is not a path.
            WriteError: the file cannot be written. It is an `OSError`.
        """
        html.write_page(self, path)

    def compare(self, other: PlanReport) -> Comparison:
        """Return the changes from this report to another one.

        Args:
            other: a report of the same model or of another one.

        Raises:
            ModelError: `other` is not a report.

        Example:
            >>> import keras_dist as kd, numpy as np
            >>> def report(distribution):
            ...     with distribution.scope():
            ...         model = kd.Sequential([kd.Input((16,)), kd.layers.Dense(64, name="d1")])
            ...     model.compile("sgd", "mse")
            ...     return model.plan(np.zeros((32, 16)), np.zeros((32, 64)))
            >>> mesh = kd.DeviceMesh("batch=8")
            >>> changes = report(kd.DataParallel(mesh)).compare(report(kd.FullySharded(mesh)))
            >>> changes.nbytes_by_role["parameter"].before, changes.nbytes_by_role["parameter"].after
            (4352, 544)
        """
        return compare(self, other)

    def _update_lines(self) -> list[str]:
        """Return a line for each kind of update, if there are several."""
        kinds = collections.defaultdict[str, list[str]](list)
        for path, kind in self.updates.items():
            kinds[kind].append(path)
        lines = [
            f"{kind}: {paths[0]}" + f" and {len(paths) - 1} more" * (len(paths) > 1) for kind, paths in kinds.items()
        ]
        return lines if len(kinds) > 1 else []

    def _repr_html_(self) -> str:
        return html.fragment_of(self)

    def __str__(self) -> str:
        mesh, step = self.state.mesh.describe(), self.step
        lines = [(f"bytes of role {role}", "exact", render_bytes(n)) for role, n in self.nbytes_by_role.items()]
        lines.append(("bytes of intermediate results", "propagated", f"about {render_bytes(step.activation_nbytes)}"))
        lines.append(("FLOPs of a step", "propagated", f"{step.flops:,}"))
        if compiled := self.verdict and self.verdict.compiled:
            lines.append(("bytes of intermediate results", "compiled", render_bytes(compiled.temp_nbytes)))
            lines.append(("bytes at the peak", "compiled", render_bytes(compiled.peak_nbytes)))
            lines.append(("FLOPs of a step", "compiled", f"{compiled.flops:,}"))
            lines += [(f"calls of {name}", "compiled", f"{count}") for name, count in compiled.kernels.items()]
        headers = ("figure", "from", "of one device")
        sizes = Table(f"Each of the devices of mesh {mesh}", headers, headers[2:], rows=[*lines])
        rows = [row for row in self.state.rows if row.role != "slot"]  # slots mostly have the layout of their parameter
        layouts = layout_table([*rows, *self.batch.rows], f"Layout on mesh {mesh} (exact)")
        *lines, total = self.collective_lines()
        moved = Table(
            f"Collectives of a step ({'estimate' if step.estimates else 'propagated'})",
            html.COLLECTIVE_HEADERS,
            numbers=("turns", "bytes"),
            priority=("kind", "bytes", "axes", "layer"),
            rows=[*lines],
            totals=[total],
        )
        headers, lines = html.DIFFERENCE_HEADERS, self.difference_lines()
        compared = [Table("Bytes of collectives of a step", headers, numbers=headers[2:], rows=[*lines])] * bool(lines)
        notes = [] if self.verdict is None else [str(self.verdict)]
        if self.verdict is not None and self.verdict.limit_nbytes:
            notes.append(
                f"save: copies at most {render_bytes(self.verdict.snapshot_nbytes)} to the memory of each host"
            )
        for each, fix in zip(self.problems, html.fixes_once(self.problems), strict=True):
            notes.append(f"warning: {each.summary} ({each.given})" + (f": {fix}" if fix else ""))
        largest = sorted(step.estimates, key=lambda each: -each.most_nbytes)
        notes += [f"estimate: {each}" for each in largest[:_MOST_ESTIMATES]]
        if more := len(step.estimates) - _MOST_ESTIMATES:
            notes += [f"estimate: {more} more operations"] * (more > 0)
        notes += [f"kernel: {text}" for text in self.kernels]
        notes += [f"pipeline: {each}" for each in self.pipelines]
        notes += [f"loop: {text}" for text in self.loop_lines()]
        notes += [f"optimizer: {text}" for text in self._update_lines()]
        notes += [f"assumed: {text}" for text in self.assumed]
        return render(layouts, sizes, moved, *compared, *notes)

    def loop_lines(self) -> list[str]:
        """Return a line for each recurrent layer whose gradients are all-reduced in every turn of its loop."""
        mesh, found = self.state.mesh, dict[str, list[int]]()
        for each in self.step.collectives if not self.pipelines else ():
            for row in self.state.rows if each.kind == "all_reduce" and each.turns > 1 and each.layer else ():
                axes = [axis for dim in row.compute_axes for axis in axis_tuple(dim)]
                is_of_row = row.path.startswith(f"{each.layer}/") and not {*axes} & {*each.axes}
                if is_of_row and row.nbytes == each.nbytes * mesh.axis_size(axes):
                    found.setdefault(each.layer, [each.turns, 0, 0])
                    found[each.layer][1] += each.nbytes_per_step
                    found[each.layer][2] += each.nbytes
                    break
        return [
            f"gradients of {layer} are all-reduced in each of {turns} turns: {render_bytes(total)} instead of "
            f"{render_bytes(once)}. Compilers for TPUs reduce once, as do recurrent layers of keras_dist where the "
            "batch is sharded over the whole mesh. Unrolling all turns (`unroll=True`) joins the exchanges"
            for layer, (turns, total, once) in found.items()
        ]

    def difference_lines(self) -> list[tuple[str, ...]]:
        """Return lines of kind, axes, bytes propagated and compiled, and their difference; none without compilation."""
        compiled = self.verdict and self.verdict.compiled
        if not compiled or compiled.note:
            return []
        propagated, real, intervals = self.step.nbytes_by_axes(), compiled.nbytes_by_axes(), self.step.intervals()
        lines: list[tuple[str, ...]] = []
        for key in sorted({*propagated, *real}):
            one, other = propagated.get(key, 0), real.get(key, 0)
            differs = "none" if one == other else f"{other / one - 1:+.1%}" if one else "not propagated"
            interval = render_interval(*intervals.get(key, (0, 0)))
            lines.append((key[0], ", ".join(key[1]), interval, render_bytes(other), differs))
        return lines

    def collective_lines(self) -> list[tuple[str, ...]]:
        """Return lines of kind, axes, layer, operation, turns and bytes of collectives; the last line is the total.

        Bytes of estimates are intervals. XLA may exchange them by another kind of collective.
        """
        grouped: dict[tuple[str, ...], list[int]] = {}
        for each in self.step.collectives:
            key = each.kind, ", ".join(each.axes), each.layer or "-", each.operation
            sums = zip(grouped.get(key, (0, 0, 0)), (each.turns, *each.interval), strict=True)
            grouped[key] = [one + other for one, other in sums]
        largest = sorted(grouped.items(), key=lambda item: -item[1][2])
        lines = [(*key, f"{turns}", render_interval(*nbytes)) for key, (turns, *nbytes) in largest[:_MOST_LINES]]
        if rest := [figures for _, figures in largest[_MOST_LINES:]]:
            nbytes = (sum(figures[place] for figures in rest) for place in (1, 2))
            lines.append((f"{len(rest)} more", "", "", "", "", render_interval(*nbytes)))
        if unknown := self.step.unknown_nbytes:
            lines.append(("unknown", "", "", "", "", render_interval(0, unknown)))
        return [*lines, ("total", "", "", "", "", render_interval(*self.step.moved_interval))]
