"""`generate` against a jitted loop written by hand, prefill and a `while_loop`, on one mesh with the same weights.

Four blocks of Llama's form on (2,4) fake devices, eight rows, greedy. Both have a cache that is sharded over heads and
rows, and must return the same tokens.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import keras_dist as kd
from benchmarks import measure as m
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary, rules

BLOCKS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, UNITS, VOCABULARY = 4, 8, 4, 32, 256, 768, 1024
ROWS, PROMPT, NEW = 8, 32, 64

AIM = 1.05  # 0.95 of its tokens a second

Weights = dict[str, jax.Array]
Cache = list[tuple[jax.Array, jax.Array]]


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMS normalization."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale


def rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary position embedding."""
    angles = positions[:, :, None, None] * (10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).astype("float32")
    first, second = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def forward(weights: Weights, tokens: jax.Array, cache: Cache, start: Any) -> tuple[jax.Array, Cache]:
    """The logits of the last token, and the cache with the new tokens."""
    hidden, after = weights["embedding/embeddings"][tokens], []
    steps = start + jnp.arange(tokens.shape[1])
    positions = jnp.broadcast_to(steps, tokens.shape)
    for block in range(BLOCKS):
        of = {path.removeprefix(f"layers/{block}/"): each for path, each in weights.items()}
        x = norm(hidden, of["attention_norm/scale"])
        query, key, value = (
            jnp.einsum("btd,dnh->btnh", x, of[f"attention/{name}/kernel"]) for name in ("query", "key", "value")
        )
        query, key = rotated(query, positions), rotated(key, positions)
        keys, values = (
            jax.lax.dynamic_update_slice(old, new, (0, start, 0, 0))
            for old, new in zip(cache[block], (key, value), strict=True)
        )
        after.append((keys, values))
        grouped = query.reshape(*query.shape[:2], KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        scores = jnp.einsum("btkgh,bskh->bkgts", grouped, keys) / HEAD_DIM**0.5
        is_seen = jnp.arange(keys.shape[1]) <= steps[:, None]
        shares = jax.nn.softmax(jnp.where(is_seen, scores, -1e30), -1)
        mixed = jnp.einsum("bkgts,bskh->btkgh", shares, values).reshape(query.shape)
        hidden = hidden + jnp.einsum("btnh,nhd->btd", mixed, of["attention/output/kernel"])
        x = norm(hidden, of["feed_forward_norm/scale"])
        units = jax.nn.silu(x @ of["feed_forward/gate/kernel"]) * (x @ of["feed_forward/up/kernel"])
        hidden = hidden + units @ of["feed_forward/down/kernel"]
    return norm(hidden[:, -1], weights["norm/scale"]) @ weights["head/kernel"], after


def measure(rounds: int) -> list[Any]:
    """The results of one process."""
    kd.use_cpu_devices(8)
    mesh = kd.DeviceMesh("data=2,model=4")
    attention = AttentionConfig(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, rotary=Rotary())
    sizes = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_layers": BLOCKS}
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(UNITS))
    with kd.ModelParallel(layout_map=rules(config, mesh), batch_dim_name="data").scope():
        model = Decoder(config)
        model.build()
    weights = {weight.path: weight.value for weight in model.weights}
    rows, heads = (
        NamedSharding(mesh.backend_mesh, PartitionSpec(*axes)) for axes in (("data",), ("data", None, "model", None))
    )
    prompts = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, PROMPT)).astype("int32")

    @jax.jit
    def prefill(weights: Weights, tokens: jax.Array) -> tuple[jax.Array, Cache]:
        empty = jax.lax.with_sharding_constraint(jnp.zeros((ROWS, PROMPT + NEW, KV_HEADS, HEAD_DIM)), heads)
        logits, cache = forward(weights, tokens, [(empty, empty)] * BLOCKS, 0)
        return jnp.argmax(logits, -1).astype("int32"), cache

    @jax.jit
    def decode(weights: Weights, first: jax.Array, cache: Cache) -> jax.Array:
        def step(carry: Any) -> Any:
            count, token, cache, found = carry
            logits, cache = forward(weights, token[:, None], cache, PROMPT + count - 1)
            token = jnp.argmax(logits, -1).astype("int32")
            return count + 1, token, cache, jax.lax.dynamic_update_slice(found, token[:, None], (0, count))

        found = jnp.zeros((ROWS, NEW), "int32").at[:, 0].set(first)
        return jax.lax.while_loop(lambda carry: carry[0] < NEW, step, (jnp.int32(1), first, cache, found))[3]

    def by_hand() -> list[list[int]]:
        return np.asarray(decode(weights, *prefill(weights, jax.device_put(prompts, rows)))).tolist()

    def ours() -> list[list[int]]:
        return [list(row) for row in kd.generate(model, list(prompts), max_new_tokens=NEW)]

    if ours() != by_hand():
        raise AssertionError("generate and the loop by hand return different tokens")
    samples = m.interleave({"ours": ours, "by hand": by_hand}, rounds)
    what, where = f"{ROWS} rows of {PROMPT} + {NEW} tokens", "data=2,model=4"
    return m.compare(samples, "ours", "by hand", what, where, unit="ms a token", per=NEW / 1e3, wall=AIM, all_cpu=None)


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    return m.in_process(__spec__.name, rounds=3 if quick else 20)


if __name__ == "__main__":
    m.main("generate", "generate / a loop by hand", run, __doc__)
