"""A tiny Llama, as `by_hand` computes it, and real text for it: the source of Python's standard library."""

import pathlib
import sysconfig
from typing import Any

import jax
import numpy as np

import keras_dist as kd
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig, Rotary
from tests import layouts
from tests.pretrained import by_hand

LENGTH = 64
CONFIG = DecoderConfig(
    family="llama",
    vocab_size=by_hand.TOKENS,
    hidden_size=by_hand.HIDDEN,
    num_layers=by_hand.LAYERS,
    attention=AttentionConfig(by_hand.HEADS, by_hand.KV_HEADS, by_hand.HEAD_DIM, rotary=Rotary(by_hand.THETA)),
    feed_forward=FeedForwardConfig(by_hand.UNITS),
    initializer_range=0.1,
)
RULES = {
    "embedding/embeddings": ("model", None),
    ".*/(query|key|value)/kernel": (None, "model", None),
    ".*/output/kernel": ("model", None, None),
    ".*/(gate|up)/kernel": (None, "model"),
    ".*/down/kernel": ("model", None),
    "head/kernel": (None, "model"),
}


def texts(pattern: str) -> list[bytes]:
    """The beginnings of files, of which bytes are the tokens."""
    paths = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob(pattern))[:40]
    return [path.read_bytes()[:500] for path in paths]


def packed() -> Any:
    """Modules and packages, three to one, in rows."""
    return kd.data.pack(kd.data.mix({"modules": texts("*.py"), "packages": texts("*/*.py")}, weights=(3, 1)), LENGTH)


def decoder(dtype: str = "mixed_bfloat16") -> Decoder:
    """The model, which computes each block again in the backward pass."""
    return Decoder(CONFIG, remat=True, dtype=dtype)


BATCH_SIZE, ACCUMULATED, UPDATES, RATE = 8, 2, 8, 1e-3


def curves(where: str, dtype: str) -> tuple[list[float], list[float]]:
    """Return the losses of `fit`, an epoch for each update, and of the loop by hand on the same mesh."""
    rows = packed()
    with layouts.on(where, RULES).scope():
        kd.set_random_seed(0)
        model = decoder(dtype)
    model.compile(kd.optimizers.Adam(RATE, gradient_accumulation_steps=ACCUMULATED), loss="causal_lm")
    model.build((None, LENGTH))
    weights = {variable.path: variable.value.copy() for variable in model.variables}
    options = {"steps_per_epoch": ACCUMULATED, "shuffle": False, "verbose": 0}
    losses = model.fit(rows, None, BATCH_SIZE, UPDATES, **options).history["loss"]

    def batch(numbers: Any) -> Any:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[number] for number in numbers))

    numbers = np.arange(UPDATES * ACCUMULATED * BATCH_SIZE).reshape(UPDATES, ACCUMULATED, -1)
    batches = [[batch(some) for some in update] for update in numbers]
    return losses, by_hand.losses(weights, batches, dtype.removeprefix("mixed_"), RATE)
