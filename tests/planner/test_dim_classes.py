"""Classes of dims: what belongs together, what it is called, and what sharding it costs; without names of layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.planner import dim_classes
from tests.planner import models_to_lay_out as models


@functools.cache
def decoder(scanned):
    return dim_classes(
        lambda rngs: models.Decoder(scanned, rngs), (models.TOKENS, models.TOKENS), "adam", models.CROSSENTROPY
    )


def members(classes, name):
    return {f"{path}[{dim}]" for path, dim in classes[name].members}


@pytest.mark.parametrize("scanned", [False, True])
def test_a_decoder_has_the_classes_of_the_textbook(scanned):
    classes = decoder(scanned)
    blocks = ["blocks"] if scanned else ["blocks/0", "blocks/1"]
    stacked = int(scanned)  # scanned weights have a dim in front

    def of(*dims):
        return {f"{block}/{path}[{dim + stacked}]" for block in blocks for path, dim in dims}

    assert members(classes, "batch") == {"input/x[0]", "target[0]"}
    assert members(classes, "sequence") == {"input/x[1]", "target[1]"}
    assert members(classes, "vocab") == {"embed/embedding[0]"}
    assert members(classes, "mlp") == of(("up/kernel", 1), ("up/bias", 0), ("down/kernel", 0))
    projections = [(f"attention/{name}/kernel", 1) for name in ("query", "key", "value")]
    biases = [(f"attention/{name}/bias", 0) for name in ("query", "key", "value")]
    assert members(classes, "heads") == of(*projections, *biases, ("attention/out/kernel", 0))
    norms = [(f"norm{index}/{name}", 0) for index in (1, 2) for name in ("scale", "bias")]
    residual = [(f"attention/{name}/kernel", 0) for name in ("query", "key", "value")]
    ends = [
        ("attention/out/kernel", 2),
        ("attention/out/bias", 0),
        ("up/kernel", 0),
        ("down/kernel", 1),
        ("down/bias", 0),
    ]
    assert members(classes, "embed") == {"embed/embedding[1]"} | of(*norms, *residual, *ends)
    assert {each.name for each in classes if not each.name.startswith("dim")} == {
        "batch", "sequence", "vocab", "mlp", "heads", "embed"
    }  # fmt: skip


def test_sizes_and_bytes():
    classes = decoder(False)
    sizes = {each.name: each.size for each in classes}
    assert sizes["vocab"] == models.VOCAB and sizes["mlp"] == models.HIDDEN and sizes["heads"] == models.HEADS
    mlp = 2 * models.WIDTH * models.HIDDEN + models.HIDDEN
    assert classes["mlp"].nbytes == 2 * 4 * mlp
    assert classes["sequence"].nbytes == 0


def test_what_sharding_a_class_costs_is_what_the_textbook_says():
    classes = decoder(False)
    activation = 4 * models.ROWS * models.POSITIONS * models.WIDTH
    # one reduction forward and one backward for each block; and one for each of queries, keys and values
    for name, times in (("mlp", 2), ("heads", 4)):
        reduced = [each for each in classes.cost_of(name, 4).collectives if each.nbytes == activation]
        assert [each.kind for each in reduced] == ["all_reduce"] * 2 * times
    rows = {row.path: row.nbytes for row in classes.program.state.rows if row.role == "parameter"}
    # the gradients, that of the tied table in two parts, and the loss
    expected = sum(rows.values()) + rows["embed/embedding"] + 4
    assert sum(classes.cost_of("batch").nbytes_by_axes().values()) == expected
    with pytest.raises(kd.errors.LayoutError, match="must be a divisor of 4"):
        classes.cost_of("heads", 3)


@pytest.mark.slow
def test_it_prints_a_table():
    text = str(decoder(True))
    for words in ("mlp", "blocks/down/kernel[1]", "bytes of weights", "all_reduce of"):
        assert words in text


def test_a_class_that_is_not_there():
    with pytest.raises(kd.errors.LayoutError, match="no dims 'mpl' \\(did you mean 'mlp'"):
        decoder(True)["mpl"]
    for wrong in (0, slice(1), None):
        with pytest.raises(kd.errors.LayoutError, match="the model has no dims"):
            decoder(True)[wrong]
    assert "mlp" in decoder(True) and "mpl" not in decoder(True)


NAMED = {
    "nnx": (models.Block, "heads", {"attention/query/kernel[1]", "attention/out/kernel[0]"}),
    "renamed": (models.RenamedBlock, "heads", {"z/kernel[1]", "vocab/kernel[0]"}),
    "linen": (models.linen(models.LinenBlock, models.SEQUENCES), "heads", set()),
    "ours": (models.our_block, "heads", {"attention/query/kernel[1]", "attention/attention_output/kernel[0]"}),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_of_layers_do_not_matter(name):
    factory, kind, expected = NAMED[name]
    classes = dim_classes(factory, (models.SEQUENCES, models.SEQUENCES), "sgd", "mse")
    assert expected <= members(classes, kind)
    found = {each.name: (each.size, len(each.members)) for each in classes}
    assert found["heads"] == (models.HEADS, 7), "four kernels and three biases"
    assert found["mlp"] == (models.HIDDEN, 3)
    assert found["embed"][0] == models.WIDTH


def test_layers_of_a_chain_alternate():
    def factory(rngs):
        return nnx.Sequential(*[part for _ in range(4) for part in (nnx.Linear(8, 8, rngs=rngs), nnx.relu)])

    classes = dim_classes(factory, np.zeros((4, 8), np.float32))
    kernels = [f"layers/{index}/kernel" for index in (0, 2, 4, 6)]
    assert [classes.names_of(path) for path in kernels[:3]] == [
        (classes.names_of(kernels[0])[0], "mlp"), ("mlp", "mlp2"), ("mlp2", "mlp")
    ]  # fmt: skip


def test_convolutions():
    classes = dim_classes(models.Convnet, (models.IMAGES, models.CLASSES), "adam", models.CROSSENTROPY)
    second = classes.names_of("second/kernel")[2]
    assert second == classes.names_of("first/kernel")[3] and second.startswith("channels")
    assert {"norm/scale[0]", "norm/mean[0]", "first/bias[0]"} <= members(classes, second), "statistics lie as channels"
    assert classes.names_of("input/x")[0] == "batch"
    assert [name[:7] for name in classes.names_of("input/x")[1:3]] == ["spatial"] * 2
    assert classes.names_of("head/kernel")[1] == "vocab", "a softmax is over it"


def test_heads_are_counted_not_their_elements():
    classes = dim_classes(models.FewKeys, models.SEQUENCES)
    parts = dict(zip(classes["heads"].members, classes["heads"].parts, strict=True))
    assert parts["query/kernel", 1] == 8 and parts["key/kernel", 1] == 2
    assert classes["heads"].size == 2


def test_what_is_joined_is_kept_apart():
    class Fused(nnx.Module):
        """One projection that is cut into three parts of different sizes."""

        def __init__(self, rngs):
            self.all, self.out = nnx.Linear(8, 40, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)

        def __call__(self, x):
            first, second, rest = jnp.split(self.all(x), (16, 32), axis=-1)
            return self.out(first * second) + rest

    classes = dim_classes(Fused, np.zeros((4, 8), np.float32))
    joined, part = classes.names_of("all/kernel")[1], classes.names_of("out/kernel")[0]
    assert joined != part and classes[joined].size == 40 and classes[part].size == 16


def test_a_branch_and_a_barrier_lead_on():
    def factory(rngs):
        class Branching(nnx.Module):
            def __init__(self):
                self.up, self.down = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)

            def __call__(self, x):
                hidden = jax.lax.optimization_barrier(self.up(x))
                hidden = jax.lax.cond(hidden.sum() > 0, lambda x: x * 2, lambda x: x + 1, hidden)
                return self.down(hidden)

        return Branching()

    classes = dim_classes(factory, np.zeros((4, 8), np.float32))
    assert classes.names_of("up/kernel")[1] == classes.names_of("down/kernel")[0] == "mlp"
