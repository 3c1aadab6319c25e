"""Trainings of the decoder: tokens a second, MFU and memory, beside the plan's."""

from __future__ import annotations

import gzip
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import keras_dist as kd
from benchmarks.accelerator.decoding import decoder, machine, whole_rows
from benchmarks.accelerator.sections import Result, Sizes, failed, result


def run(sizes: Sizes, **options: Any) -> Iterator[Result]:
    """Yield memory, speed and least time, what is measured first; the program is kept as text."""
    kd.use_compilation_cache(sizes.folder / "temporary")  # `fit` finds the program that is compiled here
    model, target, rows = _trained(sizes, **options), machine(), whole_rows(sizes.rows)
    x, y = _batches(sizes, rows, 1 + sizes.steps)
    began, created = time.perf_counter(), _peak_gigabytes()
    program = model.lower_train_step(x[:rows], y[:rows]).compile()
    yield result("compiling", time.perf_counter() - began, "s")
    with gzip.open(sizes.folder / f"{sizes.name}.hlo.gz", "wt") as file:
        file.write(program.as_text())
    planned = getattr(program.memory_analysis(), "peak_memory_in_bytes", None)
    history = model.fit(x, y, batch_size=rows, verbose=0)
    seconds, tokens = history.timing.median_step_seconds, rows * sizes.length
    yield result("speed", tokens / seconds, "tokens/s", loss=history.history["loss"][-1])
    if target is not None and target.hbm_nbytes:
        peak = target.chip.flops_per_second["bfloat16"] * target.device_count
        yield result("MFU", tokens * _flops_of_token(model, sizes, "mode" not in options) / seconds / peak)
    beside = {"of_the_program": planned and planned / 1e9, "before_training": created}
    yield result("peak of memory", _peak_gigabytes(), "GB", **beside)
    report = model.plan(x[:rows], y[:rows], target=target, compiles=False)
    least = report.verdict and report.verdict.roofline.step_seconds * 1e3
    yield result("step", seconds * 1e3, "ms", at_least_by_the_plan=least)
    if report.verdict and not options:
        path = sizes.folder / f"calibration_{target.chip.name}.json"
        yield result("efficiency, calibrated", kd.planner.calibrate(history, report, path).efficiencies["compute"])


def limit(sizes: Sizes) -> Iterator[Result]:
    """Yield the largest batch that the plan says fits, and half as much again, with what became of them."""
    target = machine()
    model = _trained(sizes, remat=True)

    def fits(rows: int, compiles: bool = False) -> bool | None:
        batch = (jax.ShapeDtypeStruct((rows, sizes.length), "int32") for _ in range(2))
        return model.plan(*batch, target=target, compiles=compiles, timeout_seconds=40).fits

    counts = (whole_rows(1) * 2**n for n in range(9)) if target and target.hbm_nbytes else ()
    if not (largest := max((*itertools.takewhile(fits, counts), 0))):
        yield failed("the largest batch", f"the plan of {whole_rows(1)} rows for {target} does not say that they fit")
    for rows in (largest, whole_rows(largest * 3 // 2)) if largest else ():
        said, trains = fits(rows, compiles=rows != largest), "yes"
        try:
            model.fit(*_batches(sizes, rows, 2), batch_size=rows, verbose=0)
        except Exception as error:  # of several classes
            trains = failed("", error)["error"]
        yield result("a batch", rows, "rows", fits_by_the_plan=str(said), trains=trains)


def _trained(sizes: Sizes, mode: str = "", remat: bool = False, optimizer: str = "adamw", slots: Any = None) -> Any:
    """The compiled decoder: all weights in float32, or adapters on frozen ones in bfloat16 or int8."""
    model = decoder(sizes, "bfloat16" if mode else "mixed_bfloat16", remat)
    if mode == "qlora":
        model.quantize("int8")
    if mode:
        model.enable_lora(8, layers=".*(query|key|value|output|gate|up|down)")
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, steps_per_execution=1, slot_memory=slots)
    return model


def _batches(sizes: Sizes, rows: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens, and those after them."""
    tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (rows * count, sizes.length + 1)).astype("int32")
    return tokens[:, :-1], tokens[:, 1:]


def _peak_gigabytes() -> float | None:
    """What the first device has held at most; None for CPUs."""
    stats = jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 1e9 if stats else None


def _flops_of_token(model: Any, sizes: Sizes, trains_all: bool) -> float:
    """PaLM, arXiv:2204.02311, appendix B; of frozen weights there are no gradients: 4 instead of 6 for each."""
    shapes = [weight.shape for weight in model.weights if weight.path.endswith("kernel")]
    multiplied = sum(map(math.prod, shapes)) + sizes.vocabulary * sizes.hidden  # the head has the embeddings
    return (6 if trains_all else 4) * multiplied + 12 * sizes.layers * sizes.heads * sizes.head_dim * sizes.length
