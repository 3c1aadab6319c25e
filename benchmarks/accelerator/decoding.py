"""The decoder of most sections: `generate` against the plan, and `load` against reading safetensors by hand."""

from __future__ import annotations

import math
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import safetensors.numpy

import keras_dist as kd
from benchmarks.accelerator.sections import Result, Sizes, result
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary


def least_seconds(do: Callable[[], Any], rounds: int = 2) -> float:
    """The least of some calls that are waited for, after one that compiles."""
    times = []
    for _ in range(1 + rounds):
        began = time.perf_counter()
        jax.block_until_ready(do())
        times.append(time.perf_counter() - began)
    return min(times[1:])


def decoder(sizes: Sizes, dtype: str, remat: bool = False) -> Any:
    """The decoder with random weights, scanned, fully sharded over what is here."""
    attention = AttentionConfig(sizes.heads, sizes.kv_heads, sizes.head_dim, rotary=Rotary(rope_theta=500_000.0))
    widths = {"vocab_size": sizes.vocabulary, "hidden_size": sizes.hidden, "num_layers": sizes.layers}
    parts = {"attention": attention, "feed_forward": FeedForwardConfig(sizes.units), "tied_head": True}
    config = DecoderConfig(family="llama", **widths, **parts)
    with kd.FullySharded(kd.DeviceMesh("data=-1")).scope():
        model = Decoder(config, scan=True, remat=remat, dtype=dtype)
        model.build()
    return model


def machine() -> Any:
    """The target of what is here; None for a chip whose figures are not known."""
    found = jax.devices()
    return kd.planner.target(f"cpu:{len(found)}") if found[0].platform == "cpu" else kd.planner.target_of(found)


def whole_rows(rows: int) -> int:
    """As many, or the next number that the devices divide."""
    return math.ceil(rows / len(jax.devices())) * len(jax.devices())


def generate(sizes: Sizes) -> Iterator[Result]:
    """Yield both phases; each decode step reads all weights and the cache once."""
    model, rows = decoder(sizes, "bfloat16"), whole_rows(8)
    prompts = list(np.random.default_rng(0).integers(0, sizes.vocabulary, (rows, sizes.prompt)).astype("int32"))
    phases = kd.plan(model, generate=(rows, sizes.prompt, sizes.new), target=machine(), compiles=False).phases
    first, all_new = (
        least_seconds(lambda new=new: kd.generate(model, prompts, max_new_tokens=new)) for new in (1, sizes.new)
    )
    measured = {"prefill": (first, rows * sizes.prompt), "decode": ((all_new - first) / (sizes.new - 1), rows)}
    for phase, (seconds, tokens) in measured.items():
        least = phases[phase].least_seconds
        yield result(
            phase, tokens / seconds, "tokens/s", bound=least and tokens / least, part=least and least / seconds
        )


def load(sizes: Sizes) -> Iterator[Result]:
    """Yield seconds; the files are in memory."""
    with tempfile.TemporaryDirectory() as folder:
        kd.pretrained.save(decoder(sizes, "float32"), folder)
        nbytes = sum(file.stat().st_size for file in pathlib.Path(folder).glob("*.safetensors"))

        def ours() -> Any:
            with kd.FullySharded(kd.DeviceMesh("data=-1")).scope():
                return [weight.value for weight in kd.pretrained.load(folder, scan=True).weights]

        def by_hand() -> Any:
            read = map(safetensors.numpy.load_file, pathlib.Path(folder).glob("*.safetensors"))
            return [jax.device_put(array) for arrays in read for array in arrays.values()]

        yield result(f"load of {nbytes / 1e9:.2g} GB", least_seconds(ours), "s", by_hand=least_seconds(by_hand))
