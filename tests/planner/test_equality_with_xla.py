"""Shardy finds in the train step of a transformer what XLA moves in it, by bytes along each axis of the mesh."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers
from keras_dist.planner import propagate
from tests.soak import few
from tests.training.collectives import nbytes_by_axes

BLOCKS, WIDTH, HIDDEN, HEADS, VOCABULARY, ROWS, LENGTH = 2, 16, 64, 4, 32, 16, 8
X = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, LENGTH)).astype("int32")


class Block(nnx.Module):
    def __init__(self, rngs):
        self.before, self.between = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.before(x))
        return x + self.down(nnx.relu(self.up(self.between(x))))


class Transformer(nnx.Module):
    """Blocks of Flax with a tied embedding: in a list, or stacked and run by `nnx.scan`."""

    def __init__(self, rngs, is_scanned=False, is_repeated=False):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.is_scanned, self.is_repeated = is_scanned, is_repeated
        if is_scanned:
            self.blocks = nnx.split_rngs(splits=BLOCKS)(nnx.vmap(Block))(rngs)
        else:
            self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])

    def __call__(self, x):
        x = self.embed(x)
        call = nnx.remat(lambda block, x: block(x)) if self.is_repeated else lambda block, x: block(x)
        if self.is_scanned:
            over = nnx.scan(lambda x, block: call(block, x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return self.embed.attend(over(x, self.blocks))
        for block in self.blocks:
            x = call(block, x)
        return self.embed.attend(x)


def own():
    inputs = kd.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH, name="embed")(inputs)
    for index in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"attention_{index}")(y, y)
        y = layers.Dense(HIDDEN, activation="relu", name=f"up_{index}")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH, name=f"down_{index}")(y)
    return kd.Model(inputs, layers.Dense(VOCABULARY, name="head")(x))


def megatron(is_scanned, devices=None, sizes="data=2,model=4"):
    rules, stack = kd.LayoutMap(kd.DeviceMesh(sizes, devices=devices)), (None,) * is_scanned
    rules[".*up.*/kernel"], rules[".*up.*/bias"] = (*stack, None, "model"), (*stack, "model")
    rules[".*down.*/kernel"] = (*stack, "model", None)
    rules[".*(query|key|value)/kernel"] = (*stack, None, "model", None)
    rules[".*(query|key|value)/bias"] = (*stack, "model", None)
    rules[".*(out|attention_output)/kernel"] = (*stack, "model", None, None)
    return rules


def distributed(name, is_scanned):
    if name == "zero 1":
        return kd.DataParallel(kd.DeviceMesh("data=8"), shard_optimizer=True)
    if name == "fully sharded":
        return kd.FullySharded(kd.DeviceMesh("data=8"))
    rules = megatron(is_scanned)
    return kd.ModelParallel(rules, "data") if name == "Megatron" else kd.FullySharded(rules.device_mesh, "data", rules)


KINDS = {
    "own": None,
    "unrolled": {},
    "scanned": {"is_scanned": True},
    "scanned, repeated": {"is_scanned": True, "is_repeated": True},
}


@functools.cache
def model(kind, name):
    options = KINDS[kind]
    with distributed(name, "scanned" in kind).scope():
        made = own() if options is None else kd.Model.from_nnx(functools.partial(Transformer, **options), seed=0)
    made.compile("adam", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


@functools.cache
def lowered(kind, name):
    return model(kind, name).lower_train_step(X, X)


def moved(kind, name):
    return propagate(lowered(kind, name)).nbytes_by_axes()


CASES = [("own", "Megatron"), ("own", "zero 1"), ("unrolled", "hybrid"), ("scanned", "Megatron")]
CASES += [("scanned", "fully sharded"), ("scanned, repeated", "fully sharded")]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("case", few(CASES, ("own", "Megatron"), ("scanned", "fully sharded")), ids="-".join)
def test_shardy_and_xla_move_the_same_bytes(case):
    kind, name = case
    mesh = model(kind, name).distribution.device_mesh
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    assert moved(kind, name) == nbytes_by_axes(lowered(kind, name).compile(), sizes)


TABLE = 4 * VOCABULARY * WIDTH


@functools.cache
def parameters(kind):
    """Bytes of the parameters."""
    return sum(row.nbytes for row in model(kind, "fully sharded").plan(X, X).state.rows if row.role == "parameter")


@pytest.mark.parametrize("kind", few(["own", "scanned"], "scanned"))
def test_a_fully_sharded_step_gathers_and_scatters_what_the_textbook_says(kind):
    found = moved(kind, "fully sharded")
    again = 0 if kind == "own" else TABLE  # which is tied, and used twice
    assert found.keys() == {("all_gather", ("data",)), ("all_reduce", ("data",))}
    assert found["all_reduce", ("data",)] == parameters(kind) + again + 4  # and the loss
    most = 2 * parameters(kind) + again
    assert 0.9 * most < found["all_gather", ("data",)] < most, "the backward pass needs no biases"


def test_steps_of_users_gather_as_ours_do():
    loss, x = kd.losses.MeanSquaredError(), np.zeros((ROWS, WIDTH), "float32")
    with distributed("fully sharded", False).scope():
        ours, other = (
            kd.Sequential([kd.Input((WIDTH,)), layers.Dense(HIDDEN, "relu"), layers.Dense(WIDTH)]) for _ in range(2)
        )

    def train_step(state, batch, rngs):
        def loss_of(trainable):
            outputs, rest = other.stateless_call(trainable, state.rest, batch[0], training=True)
            return loss(batch[1], outputs), rest

        (value, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(state.trainable)
        return other.apply_gradients(state, grads).replace(rest=rest), {"loss": value}

    ours.compile("adam", loss)
    other.compile("adam", train_step=train_step)
    found, expected = (propagate(each.lower_train_step(x, x)).nbytes_by_axes() for each in (other, ours))
    assert found == expected
    assert found["all_gather", ("data",)] > 2 * WIDTH * HIDDEN * 4


def test_scanned_blocks_are_gathered_turn_by_turn():
    found = [each for each in propagate(lowered("scanned", "fully sharded")).collectives if each.kind == "all_gather"]
    looped = [each for each in found if each.turns == BLOCKS]
    of_the_blocks = parameters("scanned") - TABLE
    assert {each.turns for each in found} == {1, BLOCKS}
    assert max(each.nbytes for each in looped) == 4 * WIDTH * HIDDEN
    assert of_the_blocks < sum(each.nbytes_per_step for each in looped) <= 2 * of_the_blocks


@pytest.mark.slow
def test_gathers_belong_to_the_submodule_that_uses_the_weight():
    found = model("own", "fully sharded").plan(X, X)
    named = {each.layer for each in found.step.collectives if each.kind == "all_gather"}
    assert {"up_0", "down_1", "embed", "head", "attention_0/query"} <= named
    assert "" not in named
    assert not [problem for problem in found.problems if problem.kind == "reshard"]
