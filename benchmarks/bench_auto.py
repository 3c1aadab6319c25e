"""Layouts that `AutoParallel` finds against Megatron's rules by hand, fully sharded weights, google-parallax's AUTO.

Each is planned for machines that are not here, and compiled for them where libtpu is installed (the extra `tpu`),
else propagated. Nothing is allocated. Without `make parallax` google-parallax and the models of others are left out. It
takes an hour or two of two cores; `--models`, `--targets` and `--layouts` measure some anew, and the rest is kept.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import importlib
import itertools
import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.planned_models import PUBLIC, TOKENS, Planned, planned_models, rows_of
from keras_dist.planner.verdict import Verdict, judge

PYTHON = m.ROOT / ".venv-parallax" / "bin" / "python"
TARGETS = ("v5e:2x4", "v5p:4x4x4")
AUTO, MEGATRON, FSDP, PARALLAX = LAYOUTS = ("AutoParallel", "Megatron", "FSDP", "google-parallax")
MODEL_AXIS = 4
RECORD = m.RESULTS / "auto.json"
TITLE, TIME = "layouts that are found / by hand", "serial_step_seconds"


def measure(**arguments: Any) -> dict[str, Any]:
    """As `cost`, in a process that does nothing else."""
    kd.use_cpu_devices(1)
    return cost(**arguments)


def cost(
    model: str,
    target: str,
    layout: str,
    layouts: Mapping[str, Any] | None = None,
    tiny: bool = False,
    compiles: bool = True,
) -> dict[str, Any]:
    """What a step of a model costs on a machine under a layout; those of google-parallax are given."""
    planned, machine = planned_model(model, tiny), kd.planner.target(target)
    batch, remat, is_complete = planned.batch(planned.rows * machine.device_count), None, True
    what, how = (planned.factory, batch), ("adam", loss_of(planned))
    started = time.perf_counter()
    try:
        if layout == AUTO:
            found = kd.planner.AutoParallel(target=target, compiles=compiles).search(*what, *how)
            distribution, remat, is_complete = found.distribution, found.best.remat, found.is_complete
        else:
            distribution = by_hand(planned, target, layout, layouts or {})
        seconds = time.perf_counter() - started
        program = kd.planner.trace_step(*what, distribution, *how, platform=machine.platform, remat=remat)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    step = kd.planner.propagate(program.lowered)
    verdict = judge(program, step, machine, compiles=compiles, timeout_seconds=900)
    how_found = {"seconds_to_find": seconds, "is_complete": is_complete, "remat": remat}
    return {**how_found, "distribution": described(distribution), **figures(program, step, verdict)}


def planned_model(model: str, tiny: bool) -> Planned:
    """The model of this name; public ones have one size, and are known in their environment alone."""
    if model in PUBLIC:
        return importlib.import_module("benchmarks.planned_public").public_models()[model]
    return planned_models(tiny=tiny)[model]


def by_hand(planned: Planned, target: str, layout: str, layouts: Mapping[str, Any]) -> kd.Distribution:
    """The strategy of an expert; or that of google-parallax, whose layouts are given."""
    if layout == FSDP:
        return kd.FullySharded(mesh_of(target, {"data": kd.planner.target(target).device_count}))
    rules = kd.LayoutMap(mesh_of(target, mesh_by_hand(target)))
    for path, axes in (planned.rules if layout == MEGATRON else layouts).items():
        rules[path] = tuple(axes)
    names = planned.axis_names if layout == MEGATRON else dict.fromkeys(planned.axis_names or ())
    return kd.ModelParallel(rules, "data", axis_names=names)


def mesh_by_hand(target: str) -> dict[str, int]:
    """The mesh of an expert, on which google-parallax is asked, too."""
    return {"data": kd.planner.target(target).device_count // MODEL_AXIS, "model": MODEL_AXIS}


def mesh_of(target: str, sizes: Mapping[str, int]) -> kd.DeviceMesh:
    """A mesh of all devices of a machine, along its wires."""
    return kd.DeviceMesh(sizes, devices=kd.planner.devices(target, tuple(sizes.values())))


def loss_of(planned: Planned) -> Any:
    """The loss, of logits where it is a crossentropy."""
    if planned.loss == TOKENS:
        return kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    return kd.losses.BinaryCrossentropy(from_logits=True) if planned.loss == "binary_crossentropy" else planned.loss


def described(distribution: kd.Distribution) -> dict[str, Any]:
    """The mesh, and the rules as they were found or written."""
    rules = getattr(distribution, "layout_map", None)
    return {
        "strategy": type(distribution).__name__,
        "mesh": distribution.device_mesh.axis_sizes,
        "batch": distribution.batch_dim_name,
        "rules": {rule: layout.axes for rule, layout in rules.snapshot()} if rules is not None else {},
    }


def figures(program: kd.planner.StepProgram, step: kd.planner.Propagated, verdict: Verdict) -> dict[str, Any]:
    """What the table tells, from the compiled step if there is one."""
    compiled = verdict.compiled if "compiled" in verdict.rooflines else None
    line = verdict.roofline
    moved: collections.Counter[str] = collections.Counter()
    for each in (compiled or step).collectives:
        if not each.is_joined:
            moved[f"{each.kind} over {', '.join(each.axes)}"] += each.nbytes_per_step
    return {
        "tier": "compiled" if compiled else "propagated",
        "parameters": sum(math.prod(row.shape) for row in program.state.rows if row.role == "parameter"),
        "state_nbytes": program.state.nbytes_per_device,
        "device_nbytes": (verdict.compiled and verdict.compiled.peak_nbytes) or verdict.most_nbytes,
        "fits": verdict.fits,
        "moved_nbytes": sum(moved.values()),
        "moved": dict(moved),
        "step_seconds": line.step_seconds,
        "serial_step_seconds": line.serial_step_seconds,
        "seconds": line.seconds_by_resource,
        "note": verdict.note or (verdict.compiled.note if verdict.compiled else ""),
    }


def cost_in_process(model: str, target: str, layout: str, tiny: bool, compiles: bool) -> dict[str, Any]:
    """What `measure` finds, in a process of its own; google-parallax finds its layouts in another one before."""
    options: dict[str, Any] = {"model": model, "tiny": tiny}
    if layout == PARALLAX:
        rows = rows_of(model, tiny) * kd.planner.target(target).device_count
        asked = {**options, "mesh": mesh_by_hand(target), "rows": rows}
        found = m.in_process("benchmarks.parallax_layouts", python=PYTHON, **asked)
        if "error" in found:
            return found
        options |= found
    options |= {"target": target, "layout": layout, "compiles": compiles}
    return m.in_process(__spec__.name, python=PYTHON if model in PUBLIC else sys.executable, **options)


def main() -> None:
    """Measure what was asked for, and report all that is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models, without compiling; nothing is written")
    known = [*planned_models(tiny=True), *(PUBLIC if PYTHON.exists() else ())]
    for name, choices in (("models", known), ("targets", TARGETS), ("layouts", LAYOUTS)):
        parser.add_argument(f"--{name}", nargs="+", choices=choices, default=list(choices), help="only these")
    parser.add_argument("--propagated", action="store_true", help="without compiling")
    asked = parser.parse_args()
    rows = {} if asked.quick else read_rows()
    for target, model, layout in itertools.product(asked.targets, asked.models, asked.layouts):
        if layout == PARALLAX and not PYTHON.exists():
            continue
        found = cost_in_process(model, target, layout, asked.quick, not (asked.quick or asked.propagated))
        print(f"{model}, {target}, {layout}: {cell(found)}", flush=True)
        rows.setdefault((model, target), {})[layout] = found
        if not asked.quick:
            write(rows)


Rows = dict[tuple[str, str], dict[str, Any]]


def read_rows() -> Rows:
    """What is known from earlier runs."""
    rows = json.loads(RECORD.read_text())["layouts"] if RECORD.exists() else []
    return {(row["model"], row["target"]): row["costs"] for row in rows}


def write(rows: Rows) -> None:
    """Write the record, with a ratio for each row: of `AutoParallel` to the best layout by hand."""
    results: list[dict[str, Any]] = []
    for (model, target), costs in rows.items():
        known = [costs[name] for name in (MEGATRON, FSDP) if TIME in costs.get(name, {})]
        others = [1e3 * each[TIME] for each in known if each["fits"] is not False]
        if others and TIME in costs.get(AUTO, {}):
            ours = 1e3 * costs[AUTO][TIME]
            results.append(m.result(f"{model}, {target}", [ours], [min(others)], "ms a step"))
    layouts = [{"model": model, "target": target, "costs": costs} for (model, target), costs in rows.items()]
    record = {"title": TITLE, "date": f"{datetime.date.today()}", **m.machine(), "results": results, "layouts": layouts}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def cell(costs: Mapping[str, Any]) -> str:
    """What the table says of a layout."""
    if "error" in costs:
        return f"raises {costs['error'].partition(':')[0]}"
    moved, held = (f"{costs[name] / 1e9:.3g} GB" for name in ("moved_nbytes", "device_nbytes"))
    marks = "" if costs["fits"] is not False else ", does not fit"
    return f"{1e3 * costs[TIME]:.3g} ms, moves {moved}, holds {held}{marks}"


if __name__ == "__main__":
    main()
