"""The decoder of most sections: its attention by kernels, `generate` against the plan, and files of its weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import keras_dist as kd
from benchmarks.accelerator.sections import Result, Sizes, failed, result
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
    run = {new: lambda new=new: kd.generate(model, prompts, max_new_tokens=new) for new in (1, sizes.new)}
    first, all_new = map(least_seconds, run.values())
    measured = {"prefill": (first, rows * sizes.prompt), "decode": ((all_new - first) / (sizes.new - 1), rows)}
    for phase, (seconds, tokens) in measured.items():
        bound = (least := phases[phase].least_seconds) and tokens / least
        yield result(phase, tokens / seconds, "tokens/s", bound=bound, part=least and least / seconds)


def load(sizes: Sizes) -> Iterator[Result]:
    """Yield seconds; the files are in memory."""
    folder = sizes.folder / "temporary"  # which is removed in any case
    kd.pretrained.save(decoder(sizes, "float32"), folder)
    nbytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    layout = NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))

    def ours() -> Any:
        with kd.FullySharded(kd.DeviceMesh("data=-1")).scope():
            return [weight.value for weight in kd.pretrained.load(folder, scan=True).weights]

    def by_hand() -> Any:
        read = map(safetensors.numpy.load_file, folder.glob("*.safetensors"))
        return [jax.device_put(array, layout) for arrays in read for array in arrays.values()]

    yield result(f"load of {nbytes / 1e9:.2g} GB", least_seconds(ours, 1), "s")
    yield result("the same by hand", least_seconds(by_hand, 1), "s")


def attention(sizes: Sizes) -> Iterator[Result]:
    """Yield the results of each case; a kernel that does not know a case says so."""
    kernel = "cudnn" if jax.default_backend() == "gpu" else "splash"
    cases = {"causal": {}, "segments": {}, "window": {"window": sizes.attended // 4}, "cap": {"soft_cap": 30.0}}
    for case, options in cases.items():
        found: dict[str, list[Any]] = {}
        for name in ("xla", kernel):
            try:
                found[name] = list(_measured(sizes, case, implementation=name, **options))
            except Exception as error:
                yield failed(f"{case}, {name}", error)
        for (what, *xla), (_, *ours) in zip(found.get("xla", ()), found.get(kernel, ()), strict=False):
            yield result(f"{case}, {what}, {kernel}", ours[0] * 1e3, "ms", XLA=xla[0] * 1e3)
            yield result(f"{case}, {what}, {kernel}, intermediate results", ours[1] / 1e6, "MB", XLA=xla[1] / 1e6)
            difference = np.max(np.abs(ours[2] - xla[2])) / np.max(np.abs(xla[2]))
            yield result(f"{case}, {what}: largest difference, of the largest number", float(difference))


def _measured(sizes: Sizes, case: str, **options: Any) -> Iterator[tuple[str, float, int, np.ndarray]]:
    """Yield the seconds, bytes and numbers of the outputs, and of their gradients."""
    attention = AttentionConfig(sizes.heads, sizes.kv_heads, max(sizes.head_dim, 64), **options)
    parts = {"attention": attention, "feed_forward": FeedForwardConfig(64)}
    config = DecoderConfig(family="llama", vocab_size=64, hidden_size=64, num_layers=1, **parts)
    kd.utils.set_random_seed(0)
    with kd.DataParallel(kd.DeviceMesh("data=-1")).scope():
        model = Decoder(config, dtype="bfloat16", initializer="glorot_uniform")
        model.build()
    places = np.arange(whole_rows(2) * sizes.attended, dtype="int32").reshape(-1, sizes.attended)
    inputs = {"tokens": places % 61}
    if case == "segments":
        inputs["segments"] = places % sizes.attended * 4 // sizes.attended + 1

    def outputs(trainable: Any) -> jax.Array:
        return model.stateless_call(trainable, model.state.rest, inputs)[0].astype(jnp.float32)

    gradients = jax.grad(lambda trainable: jnp.mean(outputs(trainable) ** 2))
    for what, function in (("forward", outputs), ("gradient", gradients)):
        program = jax.jit(function).lower(model.state.trainable).compile()
        seconds = least_seconds(lambda program=program: program(model.state.trainable), sizes.steps)
        numbers = jax.tree.leaves(program(model.state.trainable))
        flat = np.concatenate([np.ravel(each.astype(jnp.float32)) for each in numbers])
        yield what, seconds, program.memory_analysis().temp_size_in_bytes, flat
