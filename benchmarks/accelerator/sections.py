"""The sections in their order; `python -m benchmarks.accelerator.sections NAME FILE SIZES` runs one of them."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
import types
from typing import Any, NamedTuple

Sizes = types.SimpleNamespace
"""Of the decoder (Llama 3.2 1B), of a batch, of attention, of `generate`; `folder` and `write` are of a run."""

SIZES = {
    "full": Sizes(hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, units=8192, vocabulary=128_256, rows=4,
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
    "demo": Section(40, "the demo's training on these devices", "running.demo"),
    "tests": Section(120, "`pytest -m accelerator`: equal to the CPU", "running.tests"),
    "attention": Section(80, "kernels against XLA: difference, time, memory", "decoding.attention"),
    "full": Section(90, "training of all weights with AdamW", "training.run"),
    "remat": Section(90, "the same, computing blocks again", "training.run", {"remat": True}),
    "lora": Section(90, "training of adapters of rank 8", "training.run", {"mode": "lora"}),
    "qlora": Section(90, "the same on int8 kernels", "training.run", {"mode": "qlora"}),
    "limit": Section(150, "the largest batch that the plan says fits, and half as much again", "training.limit"),
    "generate": Section(60, "prefill and decode against the bound of memory", "decoding.generate"),
    "loop": Section(40, "`fit` as it comes against a loop by hand", "running.loop"),
    "host": Section(90, "AdamW's slots in `pinned_host`", "training.run", {"slots": "pinned_host"}),
    "load": Section(60, "a folder of safetensors, 5 GB in full size, against reading it by hand", "decoding.load"),
    "muon": Section(90, "training of all weights with Muon", "training.run", {"optimizer": "muon"}),
    "start": Section(40, "import, and the first steps of a fresh process", "running.start"),
    "two": Section(60, "two trainings on the same devices at once, and a job of two processes", "running.two"),
}


def result(name: str, value: float | None, unit: str = "", **beside: Any) -> Result:
    """A result; None is not known here."""
    known = {key.replace("_", " "): each for key, each in beside.items() if each is not None}
    return {"name": name, "value": value, "unit": unit, "beside": known}


def failed(name: str, error: BaseException | str) -> Result:
    """What is written in place of a result."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return {"name": name, "error": " ".join(text.split())[:400]}


def main(name: str, path: str, size: str) -> None:
    """Run a section, and append each of its results to a file, as a line of JSON."""
    module, _, function = SECTIONS[name].function.partition(".")
    with open(path, "a", buffering=1) as file:
        sizes = Sizes(**vars(SIZES[size]), folder=pathlib.Path(path).parent, name=name)
        sizes.write = write = lambda line: print(json.dumps({"section": name, **line}), file=file)
        try:
            run = getattr(importlib.import_module(f"benchmarks.accelerator.{module}"), function)
            for line in run(sizes, **SECTIONS[name].options):
                write(line)
        except Exception as error:
            write(failed(name, error))
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
