"""Steps of Muon against AdamW, 8-bit Adam, and Muon of optax as GSPMD compiles it, for a decoder on eight fake devices.

The decoder has 4 layers and trains on bytes of Python's own sources. Its weights are fully sharded, or after Megatron.
`python -m benchmarks.bench_optimizers --losses` prints the loss curves and the bytes of slots for the how-to page.
"""

from __future__ import annotations

import pathlib
import sys
import sysconfig
from typing import Any

import numpy as np
import optax

import keras_dist as kd
from benchmarks import measure as m
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary, rules

LENGTH, ROWS, STEPS = 128, 32, 4
LAYOUTS = ("fully sharded", "Megatron")


def config() -> DecoderConfig:
    """The decoder: 1.1 million parameters in 28 matrices, and bytes as tokens."""
    sizes = {"vocab_size": 256, "hidden_size": 128, "num_layers": 4, "initializer_range": 0.05}
    attention = AttentionConfig(num_heads=8, num_kv_heads=8, head_dim=16, rotary=Rotary())
    return DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(size=512))


def optimizers() -> dict[str, Any]:
    """The optimizers, each with the best of two or three rates for the losses."""
    return {
        "AdamW": kd.optimizers.AdamW(2e-3, weight_decay=0.01),
        "AdamW8bit": kd.optimizers.AdamW8bit(2e-3, weight_decay=0.01),
        "Muon": kd.optimizers.Muon(6e-3, weight_decay=0.01, adam_weight_decay=0.01),
        "optax": optax.contrib.muon(2e-3, weight_decay=0.01, consistent_rms=0.2),
    }


def tokens(rows: int) -> np.ndarray:
    """Bytes of modules of the standard library (rows, LENGTH)."""
    paths = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)[: rows * LENGTH]
    return np.frombuffer(text, np.uint8).reshape(rows, LENGTH).astype(np.int32)


def distribution(layout: str) -> kd.Distribution:
    """The layout of this name."""
    if layout == "fully sharded":
        return kd.FullySharded(kd.DeviceMesh("data=8"), min_size_bytes=0)
    mesh = kd.DeviceMesh("data=2,model=4")
    return kd.ModelParallel(rules(config(), mesh), batch_dim_name="data")


def model(optimizer: Any, layout: str) -> Any:
    """The compiled decoder, always with the same initial weights."""
    kd.set_random_seed(0)
    with distribution(layout).scope():
        decoder = Decoder(config())
    decoder.compile(optimizer, "causal_lm")
    return decoder


def measure(layout: str, rounds: int) -> list[Any]:
    """The results of one process."""
    kd.use_cpu_devices(8)
    batch = tokens(ROWS * STEPS)
    models = {name: model(optimizer, layout) for name, optimizer in optimizers().items()}

    def run(of: Any) -> Any:
        return lambda: of.fit(batch, batch, batch_size=ROWS, verbose=0)

    samples = m.interleave({name: run(of) for name, of in models.items()}, rounds)
    step = {"unit": "ms a step", "per": STEPS / 1e3}
    return [
        *m.compare(samples, "Muon", "AdamW", "Muon / AdamW", layout, **step, wall=1.3, all_cpu=None),
        *m.compare(samples, "Muon", "optax", "Muon / optax.contrib.muon", layout, **step, wall=1.0, all_cpu=None),
        *m.compare(samples, "AdamW8bit", "AdamW", "AdamW8bit / AdamW", layout, **step, wall=None, all_cpu=None),
    ]


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    return [line for layout in LAYOUTS for line in m.in_process(__spec__.name, layout=layout, rounds=2 if quick else 9)]


def print_losses(epochs: int = 6) -> None:
    """Print the losses of epochs of 32 steps, and the bytes of slots."""
    kd.use_cpu_devices(8)
    batch = tokens(ROWS * 32)
    for name, optimizer in optimizers().items():
        decoder = model(optimizer, "fully sharded")
        losses = decoder.fit(batch, batch, batch_size=ROWS, epochs=epochs, verbose=0).history["loss"]
        nbytes = sum(row.nbytes for row in decoder.plan(batch[:ROWS], batch[:ROWS]).state.rows if row.role == "slot")
        print(f"{name}: {', '.join(f'{loss:.3f}' for loss in losses)}; slots {nbytes / 2**20:.2f} MiB", flush=True)


if __name__ == "__main__":
    if "--losses" in sys.argv:
        print_losses()
    else:
        m.main("optimizers", "steps of optimizers", run, __doc__)
