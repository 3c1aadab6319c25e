"""A four-layer Llama with Megatron's layout, and mistakes in its rules."""

import jax

import keras_dist as kd
from keras_dist.planner.tracing import StepProgram, trace_step
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig

SIZES = {"vocab_size": 512, "hidden_size": 64, "num_layers": 4}
ATTENTION = AttentionConfig(num_heads=8, num_kv_heads=4, head_dim=8)
CONFIG = DecoderConfig(family="llama", **SIZES, attention=ATTENTION, feed_forward=FeedForwardConfig(256))
TOKENS = jax.ShapeDtypeStruct((16, 32), "int32")
LOSS = kd.losses.SparseCategoricalCrossentropy(from_logits=True)

M = "model"
BLOCK = r"layers/\d+/"
QUERY, KEY_VALUE = BLOCK + "attention/query/kernel", BLOCK + "attention/(key|value)/kernel"
OUTPUT, DOWN = BLOCK + "attention/output/kernel", BLOCK + "feed_forward/down/kernel"
GATE, UP, GATE_UP = (BLOCK + f"feed_forward/{name}/kernel" for name in ("gate", "up", "(gate|up)"))
EMBEDDING, HEAD = "embedding/embeddings", "head/kernel"
GOOD = {
    QUERY: (None, M, None),
    KEY_VALUE: (None, M, None),
    OUTPUT: (M, None, None),
    GATE_UP: (None, M),
    DOWN: (M, None),
    EMBEDDING: (M, None),
    HEAD: (None, M),
}


def without(*rules: str) -> dict[str, tuple[str | None, ...]]:
    """The good layout without these rules."""
    return {rule: axes for rule, axes in GOOD.items() if rule not in rules}


def only(numbers: str, *rules: str) -> dict[str, tuple[str | None, ...]]:
    """The good layout, with these rules for blocks with these numbers only."""
    return {rule.replace(r"\d+", numbers) if rule in rules else rule: axes for rule, axes in GOOD.items()}


MISTAKES = {
    "down whole": without(DOWN),
    "down transposed": GOOD | {DOWN: (None, M)},
    "gate and up in half of the layers": only("[01]", GATE_UP),
    "half of the layers": only("[01]", *GOOD),
    "one layer dropped": only("[0-2]", *GOOD),
    "down over the wrong axis": GOOD | {DOWN: ("data", None)},
    "all over the wrong axis": {rule: tuple(axis and "data" for axis in axes) for rule, axes in GOOD.items()},
    "vocabulary whole": without(EMBEDDING, HEAD),
    "head whole": without(HEAD),
    "keys and values whole": without(KEY_VALUE),
    "output whole": without(OUTPUT),
    "up unlike gate": without(GATE_UP) | {GATE: (None, M), UP: (M, None)},
    "rule that matches too much": without(GATE_UP, DOWN) | {BLOCK + "feed_forward/.*kernel": (None, M)},
    "norms sharded": GOOD | {".*norm/scale": (M,)},
    "batch whole": GOOD,
    "batch over the wrong axis": GOOD,
    "embedding transposed": GOOD | {EMBEDDING: (None, M)},
    "query transposed": GOOD | {QUERY: (M, None, None)},
    "units of heads sharded": GOOD | {QUERY: (None, None, M)},
    "feed-forward whole": without(GATE_UP, DOWN),
    "feed-forward transposed": GOOD | {GATE_UP: (M, None), DOWN: (None, M)},
    "outputs whole": GOOD | {BLOCK + "feed_forward/up/output": ("data", None, None)},
}
"""Rules by mistake; in two of them the batch axis is wrong."""

BATCH = {"batch whole": (), "batch over the wrong axis": M}

CAUSES = {
    "down whole": {"down"},
    "down transposed": {"down"},
    "gate and up in half of the layers": {"gate", "up"},
    "down over the wrong axis": {"down"},
    "head whole": {"head"},
    "keys and values whole": {"key", "value"},
    "output whole": {"attention"},
    "up unlike gate": {"up"},
    "rule that matches too much": {"down"},
    "norms sharded": {"attention_norm", "feed_forward_norm", "norm"},
    "batch whole": {"input"},
    "batch over the wrong axis": {"input"},
    "embedding transposed": {"embedding"},
    "query transposed": {"query"},
    "units of heads sharded": {"query"},
    "feed-forward whole": {"gate", "up", "down"},
    "feed-forward transposed": {"gate", "up", "down"},
    "outputs whole": {"up"},
}
"""Names that the path of the cause may have, where one layer is the cause."""


def distribution(rules: dict[str, tuple[str | None, ...]], batch: str | tuple[()] = "data", **options: bool):
    """Rules on data=2, model=4."""
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    for rule, axes in rules.items():
        layout_map[rule] = axes
    return kd.ModelParallel(layout_map, batch, **options)


def mistaken(name: str, **options: bool) -> kd.ModelParallel:
    """The distribution with a mistake."""
    return distribution(MISTAKES[name], BATCH.get(name, "data"), **options)


def report(strategy: kd.Distribution, scan: bool = False) -> kd.planner.PlanReport:
    """The plan of the network."""
    return kd.plan(lambda: Decoder(CONFIG, scan=scan), (TOKENS, TOKENS), strategy, "adam", LOSS)


def program(strategy: kd.Distribution) -> StepProgram:
    """The lowered step of the network."""
    return trace_step(lambda: Decoder(CONFIG), (TOKENS, TOKENS), strategy, "adam", LOSS)
