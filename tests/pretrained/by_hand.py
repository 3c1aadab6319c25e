"""A language model of the form of Llama, its loss and its training, in JAX alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 8, 4, 4
HIDDEN, UNITS, TOKENS = 32, 64, 256
THETA, EPSILON = 10_000.0, 1e-6
FIRST, SECOND = 0.9, 0.999  # of Adam


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
    grouped = q.reshape(*q.shape[:2], KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    index = jnp.arange(q.shape[1])
    seen = (index[:, None] >= index) & (segments[:, :, None] == segments[:, None, :])
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type="float32") / HEAD_DIM**0.5
    shares = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e30), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", shares, v).reshape(q.shape)


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


@jax.custom_vjp
def cross_entropy(logits: Any, labels: Any) -> Any:
    """-log(softmax(logits)[label]), with the gradient as it stands in books, softmax - one_hot."""
    return forward(logits, labels)[0]


def forward(logits: Any, labels: Any) -> Any:
    wide = logits.astype("float32")
    total = jax.nn.logsumexp(wide, axis=-1)
    return total - jnp.take_along_axis(wide, labels[..., None], axis=-1)[..., 0], (logits, labels, total)


def backward(saved: Any, slope: Any) -> Any:
    logits, labels, total = saved
    softmax = jnp.exp(logits.astype("float32") - total[..., None])
    return (slope[..., None] * (softmax - jax.nn.one_hot(labels, TOKENS))).astype(logits.dtype), None


cross_entropy.defvjp(forward, backward)


def loss(weights: dict[str, Any], batch: Any, dtype: str) -> Any:
    """The mean of the cross entropy of the next token over all weights."""
    x, y, sample_weight = batch
    each = cross_entropy(logits(weights, x, dtype)[:, :-1], y[:, 1:])
    return jnp.sum(each * sample_weight[:, 1:]) / jnp.sum(sample_weight[:, 1:])


def losses(weights: dict[str, Any], batches: list[list[Any]], dtype: str, rate: float) -> list[float]:
    """Train sharded weights, with an update for the batches of each list, and return the losses.

    Rows are sharded over `data`; weights over `data` are gathered first.
    """

    def gathered(weight: Any) -> Any:
        kept = (None if axis == "data" else axis for axis in weight.sharding.spec)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*kept))

    def loss_of(weights: Any, batch: Any) -> Any:
        return loss(jax.lax.with_sharding_constraint(weights, whole), batch, dtype)

    @jax.jit
    def step(weights: Any, slots: Any, count: Any, batches: list[Any]) -> Any:
        value, grads = 0.0, jax.tree.map(jnp.zeros_like, weights)
        tokens = [jnp.sum(sample_weight[:, 1:]) for _, _, sample_weight in batches]
        for batch, size in zip(batches, tokens, strict=True):
            one, gradient = jax.value_and_grad(loss_of)(weights, batch)
            value, grads = value + size * one, jax.tree.map(lambda a, b, size=size: a + size * b, grads, gradient)
        value, grads = jax.tree.map(lambda each: each / sum(tokens), (value, grads))
        m = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, slots[0], grads)
        v = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, slots[1], grads)
        size = rate * jnp.sqrt(1 - SECOND**count) / (1 - FIRST**count)
        weights = jax.tree.map(lambda w, m, v: w - size * m / (jnp.sqrt(v) + 1e-7), weights, m, v)
        weights, m, v = jax.lax.with_sharding_constraint((weights, m, v), (shardings,) * 3)
        return value, weights, (m, v)

    mesh = next(iter(weights.values())).sharding.mesh
    shardings, whole = (jax.tree.map(each, weights) for each in (lambda weight: weight.sharding, gathered))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    slots, found = (zeros, zeros), []
    for count, some in enumerate(batches, 1):
        value, weights, slots = step(weights, slots, float(count), jax.device_put(some, rows))
        found.append(float(value))
    return found
