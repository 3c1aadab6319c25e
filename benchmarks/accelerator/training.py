"""Trainings of the decoder: tokens a second, MFU and memory, beside the plan's."""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import keras_dist as kd
from benchmarks.accelerator.decoding import decoder, machine, whole_rows
from benchmarks.accelerator.sections import Result, Sizes, failed, result

SECONDS_TO_COMPILE = 60


def run(sizes: Sizes, **options: Any) -> Iterator[Result]:
    """Yield speed, memory and least time; the plan's peak is that of its compiled program."""
    model, target, rows = _trained(sizes, **options), machine(), whole_rows(sizes.rows)
    history = model.fit(*_batches(sizes, rows, 1 + sizes.steps), batch_size=rows, verbose=0)
    timing, seconds, tokens = history.timing, history.timing.median_step_seconds, rows * sizes.length
    yield result("speed", tokens / seconds, "tokens/s", loss=history.history["loss"][-1])
    if target is not None and target.hbm_nbytes:
        peak = target.chip.flops_per_second["bfloat16"] * target.device_count
        yield result("MFU", tokens * _flops_of_token(model, sizes, "mode" not in options) / seconds / peak)
    yield result("compiling", timing.compile_seconds, "s")
    report = model.plan(target=target, timeout_seconds=SECONDS_TO_COMPILE)
    verdict, folder = report.verdict, pathlib.Path("build/accelerator")
    least = verdict and verdict.roofline.step_seconds * 1e3
    yield result("step", seconds * 1e3, "ms", at_least_by_the_plan=least, plan=(verdict and verdict.note) or None)
    planned = verdict and verdict.compiled and verdict.compiled.peak_nbytes / 1e9
    measured = max(timing.peak_bytes.values(), default=None)
    yield result("peak of memory", measured and measured / 1e9, "GB", by_the_compiled_plan=planned)
    if verdict:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"calibration_{target.chip.name}.json"
        yield result("efficiency, calibrated", kd.planner.calibrate(history, report, path).efficiencies["compute"])


def limit(sizes: Sizes) -> Iterator[Result]:
    """Yield the largest batch that the plan says fits, and half as much again, with what became of them."""
    target, rows = machine(), whole_rows(sizes.rows)
    if target is None or not target.hbm_nbytes:
        yield failed("the largest batch", "the plan knows no limit for the memory of these devices")
        return
    model = _trained(sizes, remat=True)

    def fits(rows: int) -> bool | None:
        batch = (jax.ShapeDtypeStruct((rows, sizes.length), "int32") for _ in range(2))
        return model.plan(*batch, target=target, timeout_seconds=SECONDS_TO_COMPILE).fits

    largest = max((*itertools.takewhile(fits, (rows * 2**n for n in range(5))), 0))
    for count in filter(None, (largest, whole_rows(largest * 3 // 2))):
        said, trains = fits(count), "yes"
        try:
            model.fit(*_batches(sizes, count, 2), batch_size=count, verbose=0)
        except Exception as error:  # of several classes
            trains = failed("", error)["error"]
        yield result("a batch", count, "rows", fits_by_the_plan=str(said), trains=trains)


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


def _flops_of_token(model: Any, sizes: Sizes, trains_all: bool) -> float:
    """PaLM, arXiv:2204.02311, appendix B; of frozen weights there are no gradients: 4 instead of 6 for each."""
    shapes = [weight.shape for weight in model.weights if weight.path.endswith("kernel")]
    multiplied = sum(map(math.prod, shapes)) + sizes.vocabulary * sizes.hidden  # the head has the embeddings
    return (6 if trains_all else 4) * multiplied + 12 * sizes.layers * sizes.heads * sizes.head_dim * sizes.length
