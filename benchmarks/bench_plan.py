"""What planning takes, and how right it is: decoders of up to 405 billion parameters for up to 1,024 chips.

Each is planned in a fresh process. The aims are seconds and bytes, and ratios are to them; what is propagated is
compared with what is compiled for TPUs. Without libtpu (the extra `tpu`) nothing is compiled.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import resource
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

import keras_dist as kd
from benchmarks import decoders
from benchmarks import measure as m

GIB = 2**30
MODEL_AXIS = 4
SMALL = decoders.Sizes(layers=12, embed=1536, mlp=6144, heads=16, kv_heads=16, vocab=32000)
SIZES = {
    "tiny": decoders.TINY,
    "0.4B": SMALL,
    "8B": decoders.DECODER_8B,
    "70B": decoders.DECODER_70B,
    "405B": decoders.DECODER_405B,
}
LENGTHS = {"tiny": 16, "0.4B": 1024, "8B": 4096, "70B": 4096, "405B": 4096}
SCREENED: tuple[dict[str, Any], ...] = ({"batch": "data"}, {"batch": "data", "mlp": "model"})
AIMS = (
    ("8B", "v5p:8x8x16", "propagate", 15),
    ("8B", "v5p:8x8x16", "screen", 1),
    ("70B", "v5p:4x8x8", "propagate", 20),
    ("70B", "v5p:8x8x16", "propagate", 20),
    ("405B", "v5p:8x8x16", "propagate", 2),
    ("70B", "v5p:4x8x8", "compile", 120),
    ("70B", "v5p:8x8x16", "compile", 120),
    ("0.4B", "v5e:2x4", "compile", None),
    ("0.4B", "v5p:4x4x4", "compile", None),
)
"""Decoder, target, what is done, and in how many seconds."""
AIM_GIB = 2


def measure(size: str, target: str, what: str) -> dict[str, Any]:
    """What it takes to plan a decoder, in a process that does nothing else, and what is found.

    Args:
        size: that of 8B is unrolled, the others are scanned, their weights fully sharded from 70B on.
        target: the machine.
        what: `propagate` it, `compile` it, too; or `screen` it under layouts, of which those after the first count.

    Returns:
        Seconds by the clock, and of work of all threads; bytes of memory of its processes at most.
    """
    kd.use_cpu_devices(1)
    devices = kd.planner.target(target).device_count
    shape = (devices // MODEL_AXIS, MODEL_AXIS)
    axes, is_scanned = dict(zip(("data", "model"), shape, strict=True)), size != "8B"
    tokens = jax.ShapeDtypeStruct((devices, LENGTHS[size]), jnp.int32)
    factory = functools.partial(decoders.Decoder, SIZES[size], scanned=is_scanned)
    step = "adam", kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    if what == "screen":
        classes = kd.planner.dim_classes(factory, (tokens, tokens), *step)
        taken: dict[str, Any] = {}
        for rules in SCREENED:
            started = _clocks()
            classes.screen.propagate(axes, classes.layouts(rules, axes)[0])
            taken = _taken(started)
        return taken
    mesh = kd.DeviceMesh(axes, devices=kd.planner.devices(target, shape))
    rules = decoders.megatron(kd.LayoutMap(mesh), scanned=is_scanned)
    distribution = kd.FullySharded(mesh, "data", rules) if size in ("70B", "405B") else kd.ModelParallel(rules, "data")
    started = _clocks()
    report = kd.plan(factory, (tokens, tokens), distribution, *step, target, compiles=what == "compile")
    verdict = report.verdict
    tiers = [report.step, *([verdict.compiled] if verdict and "compiled" in verdict.rooflines else [])]
    moved = [sum(each.nbytes_per_step for each in tier.collectives) for tier in tiers]
    found = {"verdict": str(verdict), "moved": moved, "flops": [tier.flops for tier in tiers]}
    return {**_taken(started), **found}


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), sum(os.times()[:4])


def _taken(started: tuple[float, float]) -> dict[str, float]:
    wall, work = (now - before for now, before in zip(_clocks(), started, strict=True))
    units = 1 if sys.platform == "darwin" else 1024
    most = [resource.getrusage(who).ru_maxrss * units for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"seconds": wall, "work_seconds": work, "nbytes": sum(most)}


def lines_of(size: str, target: str, what: str, aim: float | None, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the report: seconds and memory to their aims, and what is propagated to what is compiled.

    What is not compiled is the work of one thread, whose seconds others on the machine do not change.
    """
    form = "unrolled" if size == "8B" else "scanned"
    tiers = {"propagate": "with tracing", "screen": "another layout", "compile": "compiled, too"}
    name = f"{size} {form} on {target}, {tiers[what]}"
    lines: list[dict[str, Any]] = []
    if aim is not None:
        clock = "seconds" if what == "compile" else "work_seconds"
        lines.append(m.result(name, [run[clock] for run in runs], [aim] * len(runs), "s", aim=1))
        nbytes = [run["nbytes"] / GIB for run in runs]
        lines.append(m.result(f"{name}: memory", nbytes, [AIM_GIB] * len(runs), "GiB", aim=1))
    if len(runs[0].get("moved", ())) == 2:
        for figure, unit, per in (("moved", "MiB", 2**20), ("flops", "GFLOP", 1e9)):
            said, real = ([run[figure][tier] for run in runs] for tier in range(2))
            lines.append(m.result(f"{name}: {figure}, propagated / compiled", said, real, unit, per))
    return lines


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    cases = [("tiny", "v5e:2x4", what, aim) for what, aim in (("propagate", 15), ("screen", 1))] if quick else AIMS
    results: list[dict[str, Any]] = []
    for size, target, what, aim in cases:
        if what == "compile" and importlib.util.find_spec("libtpu") is None:
            continue
        rounds = 1 if quick or what == "compile" else 3
        runs = [m.in_process(__spec__.name, size=size, target=target, what=what) for _ in range(rounds)]
        print(f"{size} on {target}: {runs[-1].get('verdict', 'screened')}", flush=True)
        results += lines_of(size, target, what, aim, runs)
    return results


if __name__ == "__main__":
    m.main("plan", "planning / its aims", run, __doc__)
