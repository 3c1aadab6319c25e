"""A language model of the form of Llama, its loss and its training, in JAX alone."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 8, 4, 4
HIDDEN, UNITS, TOKENS = 32, 64, 256
THETA, EPSILON = 10_000.0, 1e-6


def normalized(x: Any, scale: Any) -> Any:
    wide = x.astype("float32")
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + EPSILON) * scale).astype(x.dtype)


def rotated(x: Any, positions: Any) -> Any:
    """Rotate pairs of the halves of each head; x (batch, length, heads, head_dim)."""
    angle = positions[:, :, None, None] * (THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).astype("float32")
    first, second = jnp.split(x.astype("float32"), 2, axis=-1)
    turned = first * jnp.cos(angle) - second * jnp.sin(angle), second * jnp.cos(angle) + first * jnp.sin(angle)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attended(q: Any, k: Any, v: Any, segments: Any) -> Any:
    """Attention to earlier tokens of the segment; q (batch, length, HEADS, HEAD_DIM)."""
    k, v = (jnp.repeat(each, HEADS // KV_HEADS, axis=2) for each in (k, v))
    index = jnp.arange(q.shape[1])
    seen = (index[:, None] >= index) & (segments[:, :, None] == segments[:, None, :])
    scores = jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type="float32") / HEAD_DIM**0.5
    shares = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e30), axis=-1).astype(v.dtype)
    return jnp.einsum("bnts,bsnh->btnh", shares, v)


def logits(weights: dict[str, Any], x: dict[str, Any], dtype: str) -> Any:
    """The logits (batch, length, TOKENS), computed in `dtype`."""
    tokens, table = x["tokens"], weights["embedding/embeddings"]
    weights = {path: value.astype(dtype) for path, value in weights.items()}
    h = table[tokens].astype(dtype)
    for layer in range(LAYERS):
        at = {path.removeprefix(f"layers/{layer}/"): value for path, value in weights.items()}
        a = normalized(h, at["attention_norm/scale"])
        q, k, v = (jnp.einsum("btd,dnh->btnh", a, at[f"attention/{name}/kernel"]) for name in ("query", "key", "value"))
        q, k = rotated(q, x["positions"]), rotated(k, x["positions"])
        h = h + jnp.einsum("btnh,nhd->btd", attended(q, k, v, x["segments"]), at["attention/output/kernel"])
        f = normalized(h, at["feed_forward_norm/scale"])
        gate, up = f @ at["feed_forward/gate/kernel"], f @ at["feed_forward/up/kernel"]
        h = h + (jax.nn.silu(gate) * up) @ at["feed_forward/down/kernel"]
    return normalized(h, weights["norm/scale"]) @ weights["head/kernel"]


def loss(weights: dict[str, Any], batch: Any, dtype: str) -> Any:
    """The mean of the cross entropy of the next token over all weights."""
    x, y, sample_weight = batch
    logs = jax.nn.log_softmax(logits(weights, x, dtype)[:, :-1].astype("float32"))
    each = -jnp.take_along_axis(logs, y[:, 1:, None], axis=-1)[..., 0]
    return jnp.sum(each * sample_weight[:, 1:]) / jnp.sum(sample_weight[:, 1:])


def losses_at(weights: list[dict[str, Any]], batches: list[Any], dtype: str) -> list[float]:
    """The losses at weights as they are sharded, with rows over `data`; weights over `data` are gathered first."""

    def gathered(weight: Any) -> Any:
        kept = (None if axis == "data" else axis for axis in weight.sharding.spec)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*kept))

    mesh = next(iter(weights[0].values())).sharding.mesh
    shardings = jax.tree.map(gathered, weights[0])
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    @jax.jit
    def compute(weights: Any, batch: Any) -> Any:
        return loss(jax.lax.with_sharding_constraint(weights, shardings), batch, dtype)

    return [float(compute(*each)) for each in zip(weights, jax.device_put(batches, rows), strict=True)]


@functools.partial(jax.jit, static_argnames=("dtype", "rate"))
def step(weights: Any, slots: Any, count: Any, batch: Any, dtype: str, rate: float) -> Any:
    """An update of Adam."""
    first, second = 0.9, 0.999
    value, grads = jax.value_and_grad(loss)(weights, batch, dtype)
    m = jax.tree.map(lambda m, g: first * m + (1 - first) * g, slots[0], grads)
    v = jax.tree.map(lambda v, g: second * v + (1 - second) * g * g, slots[1], grads)
    size = rate * jnp.sqrt(1 - second**count) / (1 - first**count)
    weights = jax.tree.map(lambda w, m, v: w - size * m / (jnp.sqrt(v) + 1e-7), weights, m, v)
    return value, weights, (m, v)


def losses(weights: dict[str, Any], batches: list[Any], dtype: str, rate: float) -> list[float]:
    """Train, with an update for each batch, and return the losses."""
    zeros = jax.tree.map(jnp.zeros_like, weights)
    slots, found = (zeros, zeros), []
    for count, batch in enumerate(batches, 1):
        value, weights, slots = step(weights, slots, float(count), batch, dtype, rate)
        found.append(float(value))
    return found
