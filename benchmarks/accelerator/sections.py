"""The sections in their order; `python -m benchmarks.accelerator.sections NAME FILE SIZES` runs one of them."""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from typing import Any, NamedTuple

Sizes = types.SimpleNamespace
"""Of the decoder (Llama 3.2 1B), of a batch, of attention, of `generate`."""

SIZES = {
    "full": Sizes(hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, units=8192, vocabulary=128_256, rows=8,
                  length=2048, steps=8, attended=4096, prompt=1024, new=128),
    "small": Sizes(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, units=192, vocabulary=512, rows=8,
                   length=32, steps=2, attended=128, prompt=32, new=16),
}  # fmt: skip  # both alike

Result = dict[str, Any]
"""`name`, and `error`, or `value` with `unit`; `beside` has by name what to compare it with, in the same unit."""


class Section(NamedTuple):
    """A part that fails, or runs out of its seconds, alone: `run(sizes, **options)` of a function here."""

    seconds: int
    what: str
    function: str
    options: dict[str, Any] = {}  # noqa: RUF012  # none is changed


SECTIONS = {
    "demo": Section(25, "the demo's training on these devices", "running.demo"),
    "tests": Section(75, "`pytest -m accelerator`: equal to the CPU", "running.tests"),
    "attention": Section(45, "kernels against XLA: difference, time, memory", "attention.run"),
    "full": Section(45, "training of all weights with AdamW", "training.run"),
    "remat": Section(35, "the same, computing blocks again", "training.run", {"remat": True}),
    "lora": Section(35, "training of adapters of rank 8", "training.run", {"mode": "lora"}),
    "qlora": Section(40, "the same on int8 kernels", "training.run", {"mode": "qlora"}),
    "muon": Section(30, "training of all weights with Muon", "training.run", {"optimizer": "muon"}),
    "host": Section(30, "AdamW's slots in `pinned_host`", "training.run", {"slots": "pinned_host"}),
    "limit": Section(60, "the largest batch that the plan says fits, and half as much again", "training.limit"),
    "generate": Section(40, "prefill and decode against the bound of memory", "decoding.generate"),
    "load": Section(35, "a folder of safetensors, 5 GB in full size, against reading it by hand", "decoding.load"),
    "loop": Section(20, "`fit` as it comes against a loop by hand", "running.loop"),
    "start": Section(10, "import, and the first step of a fresh process", "running.start"),
    "two": Section(15, "two trainings on the same devices at once, and a job of two processes", "running.two"),
}


def result(name: str, value: float | None, unit: str = "", **beside: Any) -> Result:
    """A result; None is not known here."""
    known = {key.replace("_", " "): each for key, each in beside.items() if each is not None}
    return {"name": name, "value": value, "unit": unit, "beside": known}


def failed(name: str, error: BaseException | str) -> Result:
    """What is written in place of a result."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return {"name": name, "error": " ".join(text.split())[:400]}


def main(name: str, path: str, sizes: str) -> None:
    """Run a section, and append each of its results to a file, as a line of JSON."""
    module, _, function = SECTIONS[name].function.partition(".")
    run = getattr(importlib.import_module(f"benchmarks.accelerator.{module}"), function)
    with open(path, "a") as file:
        for line in run(SIZES[sizes], **SECTIONS[name].options):
            print(json.dumps({"section": name, **line}), file=file, flush=True)
            os.fsync(file.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
