"""Fine-tuning of a decoder of Llama's form: reading its folder and training it, against the same by hand.

Four blocks with the sizes of `bench_generate`, on one device and fully sharded over eight. Both train on the same
tokens from the same weights, and must have equal losses. Folders are read from the memory of the machine. Quantized
bases are compared with the same adapters on a base in bfloat16.
"""

from __future__ import annotations

import collections
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.bench_generate import BLOCKS, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, UNITS, VOCABULARY, norm, rotated
from benchmarks.workload import MAX_IN_FLIGHT
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary

ROWS, LENGTH, STEPS = 8, 128, 8
RANK, ADAPTED = 8, ".*/(query|value)"
STEP, QUANTIZED, LOAD = 1.03, 1.15, 1.3
WIDER = 160
"""Of a folder of 1.8 GB."""

Weights = dict[str, jax.Array]


def logits(weights: Weights, tokens: jax.Array) -> jax.Array:
    """The logits of all tokens (batch, length, vocabulary); adapters are used where there are some."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden = weights["embedding/embeddings"][tokens]

    def projected(x: jax.Array, path: str) -> jax.Array:
        found = jnp.einsum("btd,dnh->btnh", x, weights[f"{path}/kernel"])
        if (down := weights.get(f"{path}/lora_kernel_a")) is not None:
            found = found + jnp.einsum("btr,rnh->btnh", x @ down, weights[f"{path}/lora_kernel_b"])
        return found

    for block in range(BLOCKS):
        path = f"layers/{block}"
        x = norm(hidden, weights[f"{path}/attention_norm/scale"])
        query, key, value = (projected(x, f"{path}/attention/{name}") for name in ("query", "key", "value"))
        query, key = rotated(query, positions), rotated(key, positions)
        grouped = query.reshape(*query.shape[:2], KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        scores = jnp.einsum("btkgh,bskh->bkgts", grouped, key) / HEAD_DIM**0.5
        is_seen = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        mixed = jnp.einsum("bkgts,bskh->btkgh", jax.nn.softmax(jnp.where(is_seen, scores, -1e30), -1), value)
        hidden = hidden + jnp.einsum(
            "btnh,nhd->btd", mixed.reshape(query.shape), weights[f"{path}/attention/output/kernel"]
        )
        x = norm(hidden, weights[f"{path}/feed_forward_norm/scale"])
        gate, up, down = (weights[f"{path}/feed_forward/{name}/kernel"] for name in ("gate", "up", "down"))
        hidden = hidden + (jax.nn.silu(x @ gate) * (x @ up)) @ down
    return norm(hidden, weights["norm/scale"]) @ weights["head/kernel"]


class ByHand:
    """One jitted step that donates its state, two in flight, on the weights of a model and in their layouts."""

    def __init__(self, model: Any, x: np.ndarray, y: np.ndarray) -> None:
        mesh = model.distribution.device_mesh.backend_mesh
        self.whole, self.rows = (NamedSharding(mesh, PartitionSpec(axis)) for axis in (None, mesh.axis_names[0]))
        self.optimizer, self.data, self.losses = optax.adamw(1e-3, weight_decay=0.004), (x, y), []
        copied = {weight.path: jnp.copy(weight.value) for weight in model.weights}
        trainable = {weight.path for weight in model.trainable_weights}
        self.frozen = {path: value for path, value in copied.items() if path not in trainable}
        state = {path: value for path, value in copied.items() if path in trainable}
        self.state = state, jax.jit(self.optimizer.init)(state)
        self.step = jax.jit(self.stepped, donate_argnums=0)

    def stepped(self, state: Any, frozen: Weights, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        """A step of AdamW; weights are gathered where they are used."""
        trainable, slots = state

        def loss(trainable: Weights) -> jax.Array:
            weights = jax.lax.with_sharding_constraint({**frozen, **trainable}, self.whole)
            return optax.softmax_cross_entropy_with_integer_labels(logits(weights, x), y).mean()

        value, gradients = jax.value_and_grad(loss)(trainable)
        updates, slots = self.optimizer.update(gradients, slots, trainable)
        return (optax.apply_updates(trainable, updates), slots), value

    def __call__(self) -> None:
        """An epoch."""
        in_flight: collections.deque[jax.Array] = collections.deque()
        for start in range(0, len(self.data[0]), ROWS):
            if len(in_flight) == MAX_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
            batch = (jax.device_put(part[start : start + ROWS], self.rows) for part in self.data)
            self.state, value = self.step(self.state, self.frozen, *batch)
            in_flight.append(value)
            self.losses.append(value)
        in_flight[-1].block_until_ready()


def decoder(dtype: str = "float32", wider: int = 1) -> Any:
    """The decoder, or one of which the vocabulary and the feed-forward layers are wider, fully sharded."""
    attention = AttentionConfig(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, rotary=Rotary())
    sizes = {"vocab_size": wider * VOCABULARY, "hidden_size": HIDDEN, "num_layers": BLOCKS}
    config = DecoderConfig(family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(wider * UNITS))
    with kd.FullySharded(kd.DeviceMesh("data=-1")).scope():
        kd.utils.set_random_seed(0)
        model = Decoder(config, dtype=dtype)
        model.build()
    return model


def trainer(model: Any, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """What runs an epoch of `fit`, of a compiled model."""
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(kd.optimizers.AdamW(1e-3, epsilon=1e-8), loss)
    return lambda: model.fit(x, y, ROWS, shuffle=False, verbose=0)


def measure(what: str, devices: int, rounds: int) -> list[Any]:
    """The results of one process."""
    kd.use_cpu_devices(devices)
    where = f"{devices} device{'s' * (devices > 1)}"
    if what == "load":
        return _load(rounds, where)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS * STEPS, LENGTH + 1)).astype("int32")
    x, y = tokens[:, :-1], tokens[:, 1:]
    unit = {"unit": "ms a step", "per": STEPS / 1e3, "all_cpu": None}
    if what == "quantized":
        runs = {}
        for mode in ("bfloat16", "int8", "nf4"):
            model = decoder("bfloat16")
            if mode != "bfloat16":
                model.quantize(mode)
            model.enable_lora(RANK, ADAPTED)
            runs[mode] = trainer(model, x, y)
        samples = m.interleave(runs, rounds)
        pairs = ((mode, "bfloat16", f"LoRA on {mode} / on bfloat16", QUANTIZED) for mode in ("int8", "nf4"))
    else:
        model = decoder()
        if what == "LoRA":
            model.enable_lora(RANK, ADAPTED, alpha=RANK)
        by_hand, ours = ByHand(model, x, y), trainer(model, x, y)
        _check_losses(ours().history["loss"][0], by_hand)
        samples = m.interleave({"ours": ours, "by hand": by_hand}, rounds)
        pairs = (("ours", "by hand", f"a step, {what}", STEP),)
    return [
        line
        for mine, theirs, name, aim in pairs
        for line in m.compare(samples, mine, theirs, name, where, **unit, wall=aim)
    ]


def _check_losses(mean: float, by_hand: ByHand) -> None:
    """Raise unless the first epochs have the same mean of their losses."""
    by_hand()
    expected = float(np.mean([float(loss) for loss in by_hand.losses]))
    if abs(mean - expected) > 1e-4 * expected:
        raise AssertionError(f"`fit` has a mean loss of {mean}, the loop by hand of {expected}")


def _load(rounds: int, where: str) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        kd.pretrained.save(decoder(wider=WIDER), folder)

        def ours() -> Any:
            with kd.FullySharded(kd.DeviceMesh("data=-1")).scope():
                return jax.block_until_ready([weight.value for weight in kd.pretrained.load(folder).weights])

        def by_hand() -> Any:
            mesh = jax.make_mesh((jax.device_count(),), ("data",))
            layout = NamedSharding(mesh, PartitionSpec("data"))
            read = safetensors.numpy.load_file(pathlib.Path(folder, "model.safetensors"))
            return jax.block_until_ready([jax.device_put(array, layout) for array in read.values()])

        samples = m.interleave({"ours": ours, "by hand": by_hand}, rounds)
    return m.compare(
        samples, "ours", "by hand", "reading a folder", where, unit="ms", per=1e-3, wall=LOAD, all_cpu=None
    )


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    cases = (("load", 1), ("load", 8), ("all weights", 1), ("LoRA", 1), ("quantized", 1), ("all weights", 8))
    return [
        line
        for what, devices in cases
        for line in m.in_process(__spec__.name, what=what, devices=devices, rounds=2 if quick else 7)
    ]


if __name__ == "__main__":
    m.main("fine_tuning", "fine-tuning / the same by hand", run, __doc__)
