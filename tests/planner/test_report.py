"""`model.plan`: bytes that equal those of the live arrays, and reports as text and JSON."""

import json

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from tests import layouts

X, Y = np.zeros((8, 16), np.float32), np.zeros(8, int)


def compiled(distribution):
    with distribution.scope():
        model = kd.Sequential(
            [kd.Input((16,)), layers.Dense(32, name="d1"), layers.BatchNormalization(), layers.Dense(8, name="d2")]
        )
    model.compile("adam", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("name", ["one device", "data=2,model=4", "fully data=8"])
def test_bytes_are_those_of_the_live_arrays(name):
    model = compiled(layouts.on(name))
    report = model.plan(X, Y)
    model.train_on_batch(X, Y)
    device = jax.devices()[0]
    arrays = jax.tree.leaves(model._session.cell.state)
    live = sum(shard.data.nbytes for array in arrays for shard in array.addressable_shards if shard.device == device)
    assert report.state.nbytes_per_device == live
    assert sum(report.nbytes_by_role.values()) == live + report.batch.nbytes_per_device


def test_it_prints_and_is_json():
    report = compiled(layouts.on("data=2,model=4")).plan(X, Y)
    text = str(report)
    for words in ("d1/kernel", "exact", "propagated", "all_reduce", "FLOPs of a step"):
        assert words in text
    assert "optimizer/" not in text
    found = json.loads(report.to_json())
    assert found["exact"]["nbytes_by_role"] == report.nbytes_by_role
    assert sum(each["nbytes"] * each["turns"] for each in found["propagated"]["collectives"]) == sum(
        report.step.nbytes_by_axes().values()
    )


def test_it_leaves_the_model_as_it_is():
    model, other = (compiled(layouts.on("data=2,model=4")) for _ in range(2))
    weights = [variable.numpy() for variable in other.weights]
    for variable, value in zip(model.weights, weights, strict=True):
        variable.assign(value)
    model.plan(X, Y)
    assert [type(layer) for layer in model.layers] == [type(layer) for layer in other.layers]
    assert model.train_on_batch(X, Y) == other.train_on_batch(X, Y)
    assert '"module ' not in model.lower_train_step(X, Y).as_text(debug_info=True)


def test_a_model_must_be_compiled():
    with pytest.raises(kd.errors.ModelError, match="compile"):
        kd.Sequential([kd.Input((16,)), layers.Dense(2)]).plan(X)


KERNELS, LOSS = 4 * 2 * 16 * 32, 4
THEORIES = {
    "one device": {},
    "data=8": {("all_reduce", ("data",)): KERNELS},
    "slots data=8": {("all_reduce", ("data",)): KERNELS, ("all_gather", ("data",)): KERNELS},
    "fully data=8": {("all_reduce", ("data",)): KERNELS, ("all_gather", ("data",)): 2 * KERNELS},
    "tensor data=2,model=4": {("all_reduce", ("data",)): KERNELS // 4},
}


def strategy(name):
    kind, _, sizes = name.rpartition(" ")
    mesh = kd.DeviceMesh(sizes if "=" in sizes else "data=1", devices=None if "=" in sizes else ["cpu:0"])
    rules = kd.LayoutMap(mesh)
    if kind == "tensor":
        rules["up/kernel"], rules["down/kernel"] = (None, "model"), ("model", None)
    if kind == "fully":
        return kd.FullySharded(mesh)
    return kd.ModelParallel(rules) if kind == "tensor" else kd.DataParallel(mesh, shard_optimizer=kind == "slots")


@pytest.mark.parametrize("name", THEORIES)
def test_theory_stands_beside_what_is_propagated(name):
    def factory():
        up = layers.Dense(32, "relu", use_bias=False, name="up")
        return kd.Sequential([kd.Input((16,)), up, layers.Dense(16, use_bias=False, name="down")])

    report = kd.plan(factory, (X, X), strategy(name), "adam", "mse")
    assert report.theory == THEORIES[name]
    moved = report.step.nbytes_by_axes()
    for key, nbytes in report.theory.items():
        first = KERNELS // 2 if name == "fully data=8" else 0  # which no gradient of the input needs again
        assert moved[key] == (nbytes + LOSS if key[0] == "all_reduce" else nbytes - first)
    lines = {line[:2]: line[2:] for line in report.difference_lines()}
    assert set(lines) == {(kind, ", ".join(axes)) for kind, axes in moved}
    assert all((theory == "-") == (key[0] == "all_reduce" and key[1] == "model") for key, (theory, *_) in lines.items())
    told = report.to_dict()["exact"]["theory"]
    assert {(each["kind"], tuple(each["axes"])): each["nbytes"] for each in told} == report.theory
    assert not lines or "theory" in str(report)
