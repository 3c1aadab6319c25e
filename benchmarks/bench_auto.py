"""Layouts that `AutoParallel` finds against presets by hand (Megatron's rules, FSDP, hybrid, data parallel).

Each is planned for a machine that is not here, and compiled for it where libtpu is installed (the extra `tpu`), else
propagated. Nothing is allocated. Without `make parallax` google-parallax and the models of others are left out.
`--models` and `--layouts` measure some anew, and the rest is kept.
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
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.planned_models import PUBLIC, TOKENS, Planned, planned_models, rows_of
from keras_dist.planner.compiled import start
from keras_dist.planner.compilers import Compilers

PYTHON = m.ROOT / ".venv-parallax" / "bin" / "python"
TARGETS = ("v5e:2x4",)
AUTO, MEGATRON, FSDP, HYBRID, DATA, PARALLAX = LAYOUTS = (
    "AutoParallel", "Megatron", "FSDP", "hybrid", "data parallel", "google-parallax"
)  # fmt: skip
BY_HAND = (MEGATRON, FSDP, HYBRID, DATA)
MODEL_AXIS = 4
LEVEL = "O0"
"""XLA's level of optimization: at its default a step is compiled for 40 seconds of a core and more, here for 4."""
SECONDS = 1800
"""Time limit of a search, and of compiling."""
RECORD = m.RESULTS / "auto.json"
TITLE, TIME = "layouts that are found / by hand", "serial_step_seconds"


def measure(**arguments: Any) -> dict[str, Any]:
    """As `costs`, in a process that does nothing else."""
    kd.use_cpu_devices(1)
    jax.config.update("jax_optimization_level", LEVEL)
    return costs(**arguments)


def costs(
    model: str,
    target: str,
    names: Sequence[str],
    layouts: Mapping[str, Any] | None = None,
    tiny: bool = False,
    compiles: bool = True,
) -> dict[str, Any]:
    """Costs of a step of a model on a machine by layout; rules of google-parallax are given as `layouts`."""
    planned, machine = planned_model(model, tiny), kd.planner.target(target)
    what = planned.factory, planned.batch(planned.rows * machine.device_count)
    how = "adam", loss_of(planned)
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = []
    started: dict[str, Any] = {}
    with Compilers(machine) as compilers:
        for name in names:
            try:
                distribution, notes = by_name(name, planned, target, what, how, compiles, layouts or {})
                options: Any = {"platform": machine.platform, "remat": notes.get("remat")}
                program = kd.planner.trace_step(*what, distribution, *how, **options)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
                continue
            step, mesh = kd.planner.propagate(program.lowered), program.state.mesh
            found[name] = {**notes, "distribution": described(distribution), **figures(program, step, machine, None)}
            if compiles:
                asked = program.lowered, mesh.axis_sizes, mesh.device_names, SECONDS
                text = program.lowered.as_text()  # layouts of equal programs are compiled once
                started[text] = started.get(text) or start(compilers, *asked)
                waiting.append((name, (program, step, started[text])))
        for name, (program, step, compiled) in waiting:
            try:
                found[name] |= figures(program, step, machine, compiled())
            except kd.errors.CompilationError as error:
                found[name]["note"] = f"{error.summary}: {error.given}"[:500]
    return found


def by_name(
    name: str, planned: Planned, target: str, what: Any, how: Any, compiles: bool, layouts: Mapping[str, Any]
) -> tuple[kd.Distribution, dict[str, Any]]:
    """The strategy of a column of the table; for a search, what it cost."""
    if name != AUTO:
        return by_hand(planned, target, name, layouts), {}
    started = time.perf_counter()
    auto = kd.planner.AutoParallel(target=target, compiles=compiles, time_limit_seconds=SECONDS)
    found = auto.search(*what, *how)
    return found.distribution, {
        "seconds_to_find": time.perf_counter() - started,
        "is_complete": found.is_complete,
        "remat": found.best.remat,
        "candidates": len(found.candidates),
        "compiled": sum(each.compiled_seconds is not None for each in found.candidates),
        "not_compiled": found.not_compiled,
        "ranked_by": found.ranked_by,
    }


def planned_model(model: str, tiny: bool) -> Planned:
    """The model of this name; public ones have one size, and are known in their environment alone."""
    if model in PUBLIC:
        return importlib.import_module("benchmarks.planned_public").public_models()[model]
    return planned_models(tiny=tiny)[model]


def by_hand(planned: Planned, target: str, layout: str, layouts: Mapping[str, Any]) -> kd.Distribution:
    """The strategy of an expert; or that of google-parallax, whose layouts are given."""
    if layout in (FSDP, DATA):
        mesh = mesh_of(target, {"data": kd.planner.target(target).device_count})
        return kd.FullySharded(mesh) if layout == FSDP else kd.DataParallel(mesh)
    rules = kd.LayoutMap(mesh_of(target, mesh_by_hand(target)))
    for path, axes in (layouts if layout == PARALLAX else planned.rules).items():
        rules[path] = tuple(axes)
    names = dict.fromkeys(planned.axis_names or ()) if layout == PARALLAX else planned.axis_names
    if layout == HYBRID:
        return kd.FullySharded(rules.device_mesh, "data", rules, "data", axis_names=names)
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


def figures(
    program: kd.planner.StepProgram,
    step: kd.planner.Propagated,
    machine: kd.planner.Target,
    compiled: kd.planner.CompiledFigures | None,
) -> dict[str, Any]:
    """What the table tells, from the compiled step if there is one."""
    source, mesh = compiled or step, program.state.mesh
    accessed = step.traffic_nbytes(machine.chip.vector_nbytes) if compiled is None else compiled.accessed_nbytes
    dtype = step.dtype if step.dtype in machine.chip.flops_per_second else "float32"
    moved: collections.Counter[str] = collections.Counter()
    for each in source.collectives:
        moved[f"{each.kind} over {', '.join(each.axes)}"] += each.nbytes_per_step
    line = kd.planner.roofline(
        machine,
        mesh.axis_sizes,
        flops=source.flops,
        accessed_nbytes=accessed,
        collectives=source.collectives,
        dtype=dtype,
        devices=mesh.device_names,
    )
    state = program.state.nbytes_per_device
    return {
        "tier": "compiled" if compiled else "propagated",
        "parameters": sum(math.prod(row.shape) for row in program.state.rows if row.role == "parameter"),
        "state_nbytes": state,
        "device_nbytes": compiled.peak_nbytes if compiled else state + step.activation_nbytes,
        "fits": compiled.fits if compiled else None,
        "moved_nbytes": sum(moved.values()),
        "moved": dict(moved),
        "step_seconds": line.step_seconds,
        "serial_step_seconds": line.serial_step_seconds,
        "seconds": line.seconds_by_resource,
        "note": compiled.note if compiled else "",
    }


def costs_in_process(model: str, target: str, names: Sequence[str], tiny: bool, compiles: bool) -> dict[str, Any]:
    """As `costs`, in a process of its own; google-parallax finds its layouts in another one before."""
    options: dict[str, Any] = {"model": model, "tiny": tiny}
    python = PYTHON if model in PUBLIC else sys.executable
    found: dict[str, Any] = {}
    if PARALLAX in names:
        rows = rows_of(model, tiny) * kd.planner.target(target).device_count
        asked = {**options, "mesh": mesh_by_hand(target), "rows": rows}
        given = m.in_process("benchmarks.parallax_layouts", python=PYTHON, **asked)
        if "error" in given:
            names, found = [name for name in names if name != PARALLAX], {PARALLAX: given}
        else:
            options |= given
    options |= {"target": target, "names": names, "compiles": compiles}
    return {**m.in_process(__spec__.name, python=python, **options), **found}


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
    layouts = [name for name in asked.layouts if name != PARALLAX or PYTHON.exists()]
    for target, model in itertools.product(asked.targets, asked.models):
        found = costs_in_process(model, target, layouts, asked.quick, not (asked.quick or asked.propagated))
        for name, costs in found.items():
            print(f"{model}, {target}, {name}: {cell(costs)}", flush=True)
        rows[model, target] = rows.get((model, target), {}) | found
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
        known = [costs[name] for name in BY_HAND if TIME in costs.get(name, {})]
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
