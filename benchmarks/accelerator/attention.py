"""Attention by the kernel of the platform against XLA's: outputs, gradients, time and memory of a decoder's layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import keras_dist as kd
from benchmarks.accelerator.decoding import least_seconds, whole_rows
from benchmarks.accelerator.sections import Result, Sizes, failed, result
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig


def run(sizes: Sizes) -> Iterator[Result]:
    """Yield the results of each case; a kernel that does not know a case says so."""
    kernel = "cudnn" if jax.default_backend() == "gpu" else "splash"
    window = sizes.attended // 4
    for case, options in {
        "causal": {},
        "segments": {},
        "window": {"window": window},
        "cap": {"soft_cap": 30.0},
    }.items():
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
    tokens = np.random.default_rng(0).integers(0, 64, (whole_rows(2), sizes.attended)).astype("int32")
    inputs = {"tokens": tokens}
    if case == "segments":
        inputs["segments"] = (
            np.broadcast_to(np.arange(sizes.attended, dtype="int32") * 4 // sizes.attended, tokens.shape) + 1
        )

    def outputs(trainable: Any) -> jax.Array:
        return model.stateless_call(trainable, model.state.rest, inputs)[0].astype(jnp.float32)

    gradients = jax.grad(lambda trainable: jnp.mean(outputs(trainable) ** 2))
    for what, function in (("forward", outputs), ("gradient", gradients)):
        program = jax.jit(function).lower(model.state.trainable).compile()
        seconds = least_seconds(lambda program=program: program(model.state.trainable), sizes.steps)
        numbers = jax.tree.leaves(program(model.state.trainable))
        flat = np.concatenate([np.ravel(each.astype(jnp.float32)) for each in numbers])
        yield what, seconds, program.memory_analysis().temp_size_in_bytes, flat
