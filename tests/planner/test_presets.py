"""Presets: what they shard, what they leave whole, and that a model's arrays are as many bytes as planned."""

import functools
import re
import warnings

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import presets
from keras_dist.planner import trace_step
from tests.planner import models_to_lay_out as models
from tests.soak import few

MESH = "data=2,model=4"
X = np.random.default_rng(0).normal(size=models.SEQUENCES.shape).astype(np.float32)
BLOCK = models.Block, (X, X[::-1].copy()), "mse"
MLP = models.Mlp, (models.X, models.X), "mse"
CONVNET = models.Convnet, (models.IMAGES, models.CLASSES), models.CROSSENTROPY


def live_nbytes(model):
    """Bytes of the state on the first device."""
    arrays = jax.tree.leaves(model._built.cell.state)
    shards = [shard for array in arrays for shard in array.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0])


def trained(distribution, factory, batch, loss):
    """A model that was trained for a step under a distribution."""
    with distribution.scope():
        model = kd.Model.from_nnx(factory, seed=0)
    model.compile("adam", loss)
    model.train_on_batch(*batch)
    return model


PRESETS = {
    "data_parallel": (lambda *_: presets.data_parallel(kd.DeviceMesh("data=8")), BLOCK),
    "data_parallel over two axes": (lambda *_: presets.data_parallel(kd.DeviceMesh(MESH)), MLP),
    "fully_sharded": (lambda *_: presets.fully_sharded(kd.DeviceMesh(MESH)), CONVNET),
    "tensor_parallel": (lambda *step: presets.tensor_parallel(*step[:2], kd.DeviceMesh(MESH), loss=step[2]), BLOCK),
    "hybrid": (
        lambda *step: presets.hybrid(*step[:2], kd.DeviceMesh(MESH), fsdp="data", tensor="model", loss=step[2]),
        BLOCK,
    ),
    "sequence_parallel": (
        lambda *step: presets.sequence_parallel(*step[:2], kd.DeviceMesh("data=4,model=2"), loss=step[2]),
        BLOCK,
    ),
    "spatial": (lambda *step: presets.spatial(*step[:2], kd.DeviceMesh("data=4,model=2"), loss=step[2]), CONVNET),
}


@functools.cache
def trained_under(name):
    preset, step = PRESETS[name]
    return trained(preset(*step), *step)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", few(PRESETS, "tensor_parallel", "hybrid"))
def test_bytes_are_those_of_the_live_arrays(name):
    model, (factory, batch, loss) = trained_under(name), PRESETS[name][1]
    planned = trace_step(factory, batch, model.distribution, "adam", loss).state
    assert planned.nbytes_per_device == model.state_plan.nbytes_per_device == live_nbytes(model)
    whole = planned.nbytes_per_device == planned.nbytes
    assert whole == (name.split(" ")[0] in ("data_parallel", "sequence_parallel", "spatial"))


def rules_of(distribution):
    return {rule: layout.axes for rule, layout in distribution.layout_map.snapshot()}


def test_tensor_parallel_is_megatron():
    factory, batch, loss = BLOCK
    found = presets.tensor_parallel(factory, batch, kd.DeviceMesh(MESH), loss=loss)
    columns = {f"attention/{name}/kernel": (None, "model", None) for name in ("query", "key", "value")}
    biases = {f"attention/{name}/bias": ("model", None) for name in ("query", "key", "value")}
    assert rules_of(found) == columns | biases | {
        "attention/out/kernel": ("model", None, None),
        "up/kernel": (None, "model"),
        "up/bias": ("model",),
        "down/kernel": ("model", None),
    }
    assert found.batch_dim_name == "data"


def test_few_heads_of_keys_stay_whole_and_it_is_said():
    with pytest.warns(kd.errors.LayoutWarning, match=r"heads in dim 1 of 'key/kernel': 4 does not divide 2"):
        found = presets.tensor_parallel(models.FewKeys, models.SEQUENCES, kd.DeviceMesh(MESH))
    assert rules_of(found) == {
        "query/kernel": (None, "model"), "query/bias": ("model",), "out/kernel": ("model", None)
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = presets.tensor_parallel(models.FewKeys, models.SEQUENCES, kd.DeviceMesh("data=4,model=2"))
    assert rules_of(found)["key/kernel"] == (None, "model")


def test_inputs_are_split_over_positions_and_rows_of_pixels():
    found = presets.sequence_parallel(*BLOCK[:2], kd.DeviceMesh("data=4,model=2"))
    assert rules_of(found) == {"input/x": ("data", "model", None)}
    found = presets.spatial(*CONVNET[:2], kd.DeviceMesh("data=4,model=2"))
    assert rules_of(found) == {"input/x": ("data", "model", None, None)}
    with pytest.raises(kd.errors.LayoutError, match="no dims 'spatial'"):
        presets.spatial(*BLOCK[:2], kd.DeviceMesh(MESH))


@pytest.mark.slow
def test_outputs_are_the_same_under_all_of_them():
    names = ("data_parallel", "tensor_parallel", "hybrid", "sequence_parallel")
    outputs = [trained_under(name).predict(X, verbose=0) for name in names]
    for found in outputs[1:]:
        np.testing.assert_allclose(found, outputs[0], rtol=1e-3, atol=1e-4)


def test_meshes_that_do_not_fit():
    with pytest.raises(kd.errors.DistributionError, match="no axis for the batch"):
        presets.tensor_parallel(models.Mlp, models.X, kd.DeviceMesh("model=8"))
    with pytest.raises(kd.errors.DistributionError) as caught:
        presets.tensor_parallel(models.Mlp, models.X, kd.DeviceMesh("data=8"))
    suggested = re.search(r'DeviceMesh\("(.*)"\)', caught.value.fix)[1]
    assert kd.DeviceMesh(suggested).axis_sizes == {"batch": 1, "data": 8}
    for both in (("model", "model"), ("model", None), (("data", "model"), "model")):
        with pytest.raises(
            kd.errors.DistributionError, match="`fsdp` and `tensor` must be different axes, not both 'model'"
        ) as caught:
            presets.hybrid(models.Mlp, models.X, kd.DeviceMesh(MESH), *both)
        assert caught.value.fix == "fsdp='data', tensor='model'"
    with pytest.raises(kd.errors.DistributionError, match="zero1 takes a mesh of one axis"):
        presets.zero1(kd.DeviceMesh(MESH))
    with pytest.raises(kd.errors.DistributionError, match="`axis` must be one of"):
        presets.hybrid(models.Mlp, models.X, kd.DeviceMesh(MESH), tensor="modle")
    with pytest.raises(kd.errors.ArgumentTypeError, match=r"no argument 'expert_axis' \(did you mean 'axis'\?\)"):
        presets.experts(kd.DeviceMesh(MESH), expert_axis="model")
    with pytest.raises(kd.errors.DistributionError, match=r"`device_mesh` must be a keras_dist.DeviceMesh"):
        presets.data_parallel("data=8")


def test_a_model_without_such_dims():
    with pytest.raises(kd.errors.LayoutError, match="tensor parallelism needs dims of class"):
        presets.tensor_parallel(lambda rngs: nnx.Linear(64, 8, rngs=rngs), models.X, kd.DeviceMesh(MESH))
