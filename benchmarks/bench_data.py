"""A source of batches that takes as long as a step: what comes of it in `fit`, against the slower of the two alone.

The source waits 20 ms for each batch, as for a disk; the rows of a batch are so many that a step takes 20 ms, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import keras_dist as kd
from benchmarks import measure as m
from keras_dist.data import PyDataset

SECONDS = 0.02
STEPS = 50
WIDTH = 1024
AIM = 1.15

Batch = tuple[np.ndarray, np.ndarray]


class Numbered(PyDataset):
    """Batches by number, each after a while."""

    def __init__(self, batch: Batch, seconds: float, workers: int) -> None:
        super().__init__(workers=workers)
        self.batch, self.seconds = batch, seconds

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Batch:
        time.sleep(self.seconds)
        return self.batch


class Again:
    """Batches again and again, each after a while."""

    def __init__(self, batch: Batch, seconds: float) -> None:
        self.batch, self.seconds = batch, seconds

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(STEPS):
            time.sleep(self.seconds)
            yield self.batch


def make_model() -> Any:
    """An MLP on one device."""
    with kd.DataParallel(devices=kd.list_devices()[:1]).scope():
        model = kd.Sequential([kd.Input((WIDTH,)), kd.layers.Dense(WIDTH, "relu"), kd.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def batch_of(rows: int) -> Batch:
    """A batch of so many rows."""
    return np.ones((rows, WIDTH), np.float32), np.ones((rows, 1), np.float32)


def batch_that_takes(model: Any, seconds: float) -> Batch:
    """A batch with so many rows that a step takes so long."""
    rows = 256
    for _ in range(3):
        source = Again(batch_of(rows), 0.0)
        model.fit(source, verbose=0)
        began = time.perf_counter()
        model.fit(source, verbose=0)
        rows = max(8, int(rows * seconds * STEPS / (time.perf_counter() - began)) // 8 * 8)
    return batch_of(rows)


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    model = make_model()
    batch = batch_that_takes(model, SECONDS)
    sources = {
        "an iterable": Again(batch, SECONDS),
        "a PyDataset": Numbered(batch, SECONDS, workers=1),
        "a PyDataset, 2 workers": Numbered(batch, SECONDS, workers=2),
    }
    runs = {name: lambda source=source: model.fit(source, verbose=0) for name, source in sources.items()}
    runs["the source alone"] = lambda: list(Again(batch, SECONDS))
    runs["the steps alone"] = lambda: model.fit(Again(batch, 0.0), verbose=0)
    samples = m.interleave(runs, 3 if quick else 11)
    alone = samples["the source alone"].wall, samples["the steps alone"].wall
    slower = [max(pair) for pair in zip(*alone, strict=True)]
    return [m.result(name, samples[name].wall, slower, "ms", STEPS / 1000, AIM) for name in sources]


if __name__ == "__main__":
    m.main("data", "20 ms a batch, 20 ms a step / the slower of the two", run, __doc__)
