"""Muon on layouts. The reference is one device, and in the HLO the probe: one exchange in, one out for equal shapes."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist import optimizers
from keras_dist.optimizers.whole_matrices import Placement, matrix_dims, over_matrices
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, ExpertsConfig, FeedForwardConfig, rules
from tests import soak

EVERY = ("data", "model")
WEIGHTS = {  # shape, names of dims, and layouts
    "query": ((16, 4, 8), "ioo", [(None, "model", None), ("data", "model", None), (EVERY, None, None), (None,) * 3]),
    "output": ((4, 8, 16), "iio", [("model", None, None), ("model", None, "data"), (None, EVERY, None), (None,) * 3]),
    "up": ((16, 32), "io", [(None, "model"), ("data", "model"), (EVERY, None), (None, None)]),
    "down": ((32, 16), "io", [("model", None), ("model", "data"), (None, EVERY), (None, None)]),
    "square": ((16, 16), "io", [("model", None), (None, "model"), ("data", "model"), (None, None)]),
    "stack": (
        (4, 16, 32),
        "lio",
        [("model", None, None), ("model", "data", None), ("data", None, "model"), (None,) * 3],
    ),
    "experts": ((8, 32, 16), "eio", [("model", None, "data"), (EVERY, None, None), (None, "model", None), (None,) * 3]),
    "blocks": ((16, 8, 32), "ibo", [(None, None, "model"), ("data", "model", None), (None, EVERY, None), (None,) * 3]),
    "odd": ((6, 10), "io", [(None, "data"), ("data", None), ("data", None), (None, None)]),
}
NAMES = {"i": "inputs", "o": "outputs", "l": "layers", "e": "experts", "b": "blocks"}


def dims_of(kind):
    shape, letters, _ = WEIGHTS[kind]
    return matrix_dims(tuple(NAMES[letter] for letter in letters), len(shape))


def squared(x):
    """A function of whole matrices that commutes with transposition."""
    x = x / jnp.linalg.norm(x, axis=(1, 2), keepdims=True)
    return x @ jnp.swapaxes(x, 1, 2) @ x


def by_hand(array, dims):
    moved = array.transpose((*dims.others, *dims.inputs, *dims.outputs))
    matrices = np.float64(moved).reshape(-1, *dims.sizes(array.shape))
    matrices = matrices / np.linalg.norm(matrices, axis=(1, 2), keepdims=True)
    found = matrices @ matrices.transpose(0, 2, 1) @ matrices
    return found.reshape(moved.shape).transpose(np.argsort((*dims.others, *dims.inputs, *dims.outputs)))


def moved_in(hlo):
    """The kinds of collectives of a program, and the bytes of their results."""
    found, total = collections.Counter(), 0
    for match in re.finditer(
        r"= (.{1,4000}?) (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)\(", hlo
    ):
        found[match[2]] += 1
        sizes = re.findall(r"f32\[([\d,]*)\]", match[1])
        total += sum(4 * int(np.prod([int(size) for size in each.split(",")])) for each in sizes)
    return dict(found), total


def mapped(arrays, dims, given, made):
    mesh = kd.DeviceMesh("data=2,model=4").backend_mesh
    places = {path: Placement(mesh, given[path], made[path]) for path in arrays}
    ins, outs = ({path: NamedSharding(mesh, P(*of[path])) for path in arrays} for of in (given, made))
    step = jax.jit(lambda arrays: over_matrices(squared, arrays, dims, places), in_shardings=(ins,), out_shardings=outs)
    return step.lower(arrays).compile(), jax.device_put(arrays, ins)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("whole_steps", [False, True])
@pytest.mark.parametrize("place", range(4))
def test_functions_of_whole_matrices_are_those_of_one_device(place, whole_steps, count):
    """`count` is odd: stacks are padded, or one matrix is gathered. Steps may be needed whole, as of ZeRO-1."""
    rng = np.random.default_rng(place)
    paths = {f"{kind}/{number}": kind for kind in WEIGHTS for number in range(count)}
    arrays = {path: rng.normal(size=WEIGHTS[kind][0]).astype("float32") for path, kind in paths.items()}
    dims = {path: dims_of(kind) for path, kind in paths.items()}
    given = {path: WEIGHTS[kind][2][place] for path, kind in paths.items()}
    made = {path: (None,) * len(axes) if whole_steps else axes for path, axes in given.items()}
    program, placed = mapped(arrays, dims, given, made)
    for path, found in program(placed).items():
        np.testing.assert_allclose(found, by_hand(arrays[path], dims[path]), atol=1e-6, err_msg=path)


PROBED = {"qkv": (256, 768), "out": (256, 256), "up": (256, 1024), "down": (1024, 256)}
LAYOUTS = {  # of a matrix, the groups of equal shapes, and the bytes of the probe `muon.py`
    "fully sharded": (lambda shape: (EVERY, None), 4, 6 * 2**20),
    "Megatron": (lambda shape: (None, "model") if shape[1] >= shape[0] else ("model", None), 4, 18 * 2**20),
    "hybrid": (lambda shape: EVERY if shape[1] >= shape[0] else EVERY[::-1], 4, 12 * 2**20),
    "replicated": (lambda shape: (None, None), 4, 36 * 2**20),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_equal_shapes_have_one_exchange_in_and_one_out(name):
    layout, groups, most = LAYOUTS[name]
    arrays = {f"{number}/{kind}": np.ones(shape, "float32") for number in range(8) for kind, shape in PROBED.items()}
    dims = {path: matrix_dims((), 2) for path in arrays}
    given = {path: layout(array.shape) for path, array in arrays.items()}
    program, _ = mapped(arrays, dims, given, given)
    kinds, nbytes = moved_in(program.as_text())
    assert set(kinds) <= {"all-to-all", "all-gather"}
    assert sum(kinds.values()) <= 2 * groups
    assert nbytes <= most


TOKENS = np.random.default_rng(0).integers(0, 64, (37, 12)).astype("int32")


def config(experts=False):
    attention = AttentionConfig(num_heads=4, num_kv_heads=4, head_dim=8)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_layers": 4}
    chosen = ExpertsConfig(num_experts=4) if experts else None
    return DecoderConfig(
        family="llama", **sizes, attention=attention, feed_forward=FeedForwardConfig(size=64), experts=chosen
    )


def one_device(of):
    return kd.DataParallel(devices=kd.list_devices()[:1])


def by_rules(mesh, batch="data", **options):
    return lambda of: kd.ModelParallel(rules(of, kd.DeviceMesh(mesh), **options), batch_dim_name=batch)


def hybrid(of):
    mesh = kd.DeviceMesh("data=4,model=2")
    return kd.FullySharded(mesh, axis="data", rules=rules(of, mesh))


TRAINED = {
    "fully sharded": (lambda of: kd.FullySharded(kd.DeviceMesh("data=8")), {}),
    "Megatron": (by_rules("data=2,model=4"), {}),
    "stages": (by_rules("stage=4,data=2", scan=True, stage="stage"), {"scan": True, "micro_batches": 2}),
    "data parallel": (lambda of: kd.DataParallel(kd.DeviceMesh("data=8")), {}),
    "slots alone": (lambda of: kd.DataParallel(kd.DeviceMesh("data=8"), shard_optimizer=True), {}),
    "hybrid": (hybrid, {}),
    "experts": (by_rules("data=2,expert=4", ("data", "expert")), {"experts": True}),
    "two batches a step": (lambda of: kd.FullySharded(kd.DeviceMesh("data=8")), {"gradient_accumulation_steps": 2}),
    "by neuron": (by_rules("data=2,model=4"), {"neuron_beta": 0.95}),
}


def trained(distribution, scan=False, experts=False, micro_batches=None, **arguments):
    """The losses of four epochs of five batches, the last of five rows."""
    kd.set_random_seed(0)
    with distribution(config(experts)).scope():
        model = Decoder(config(experts), scan=scan)
    model.compile(optimizers.Muon(0.02, **arguments), "causal_lm", micro_batches=micro_batches)
    losses = model.fit(TOKENS, TOKENS, batch_size=8, epochs=4, verbose=0).history["loss"]
    return np.array(losses), {variable.path: np.asarray(variable) for variable in model.trainable_variables}


@soak.soak_if_large
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", soak.sampled(TRAINED, 2))
def test_training_is_that_of_one_device(name):
    distribution, options = TRAINED[name]
    losses, weights = trained(distribution, **options)
    expected, single = trained(one_device, **{**options, "micro_batches": None})
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for path, weight in weights.items():
        np.testing.assert_allclose(weight, single[path], atol=1e-4 * np.abs(single[path]).max(), err_msg=path)


@pytest.mark.parametrize("neuron_beta", [None, 0.95])
def test_a_training_resumes_on_another_mesh_to_rounding(tmp_path, neuron_beta):
    found = []
    for there in ("fully sharded", "Megatron"):
        kd.set_random_seed(0)
        folder = tmp_path / there.replace(" ", "-")
        for name, epochs in (("fully sharded", 1), (there, 2)):
            with TRAINED[name][0](config()).scope():
                model = Decoder(config())
            model.compile(optimizers.Muon(0.02, neuron_beta=neuron_beta), "causal_lm")
            backup = kd.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
            fit = model.fit(TOKENS, TOKENS, batch_size=8, epochs=epochs, verbose=0, callbacks=[backup])
        assert fit.epoch[-1] == 1
        found.append(fit.history["loss"][-1])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_stack_a_scan_and_layers_take_the_same_steps():
    found = []
    for scan in (False, True):
        kd.set_random_seed(0)
        with TRAINED["fully sharded"][0](config()).scope():
            model = Decoder(config(), scan=scan)
        for variable in model.trainable_variables:
            parts = variable.path.split("/")
            if scan and parts[0] == "layers":
                names = [f"layers/{number}/{'/'.join(parts[1:])}" for number in range(4)]
                variable.assign(np.stack([values_of(name, variable.shape[1:]) for name in names]))
            else:
                variable.assign(values_of(variable.path, variable.shape))
        model.compile(optimizers.Muon(0.02), "causal_lm")
        found.append(model.fit(TOKENS, TOKENS, batch_size=8, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(*found, rtol=1e-6)


def values_of(name, shape):
    """Values of a weight that depend on its path alone."""
    seed = sum(ord(letter) * place for place, letter in enumerate(name, 1))
    return 0.2 * np.random.default_rng(seed).normal(size=shape).astype("float32") + (1 if "norm" in name else 0)
