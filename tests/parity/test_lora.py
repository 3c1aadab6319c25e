"""LoRA: with the same weights the same numbers as in Keras, trained on a mesh, laid out as what is adapted."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from tests.parity.compare import TOLERANCE

LAYERS = {
    "Dense": (lambda lib, **k: lib.layers.Dense(4, **k), (3, 6)),
    "EinsumDense": (lambda lib, **k: lib.layers.EinsumDense("abc,cde->abde", (3, 2, 4), bias_axes="de", **k), (3, 6)),
    "Embedding": (lambda lib, **k: lib.layers.Embedding(5, 4, **k), (3,)),
    "ReversibleEmbedding": (lambda lib, **k: lib.layers.ReversibleEmbedding(5, 4, **k), (3,)),
    "Conv1D": (lambda lib, **k: lib.layers.Conv1D(4, 2, groups=2, **k), (3, 6)),
    "Conv2D": (lambda lib, **k: lib.layers.Conv2D(4, (2, 1), **k), (3, 3, 2)),
}


def rows(shape, count=8):
    x = np.random.default_rng(0).integers(0, 5, (count, *shape), "int32")
    return x if len(shape) == 1 else x.astype("float32") / 5


def numbered(weights):
    return [
        np.sin(np.arange(np.prod(one.shape)).reshape(one.shape) + len(one.shape)).astype("float32") for one in weights
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_keras(keras, name):
    make, shape = LAYERS[name]
    x = rows(shape)
    theirs, ours, enabled = make(keras, lora_rank=2), make(kd, lora_rank=2), make(kd)
    theirs(x)
    theirs.set_weights(numbered(theirs.weights))
    np.testing.assert_allclose(enabled(x), enabled(x))
    enabled.enable_lora(2, lora_alpha=2)
    for layer in (ours, enabled):
        layer(x)
        kind = [(weight.name, weight.shape, weight.trainable) for weight in layer.weights]
        assert kind == [(weight.name, weight.shape, weight.trainable) for weight in theirs.weights]
        layer.set_weights(theirs.get_weights())
        np.testing.assert_allclose(layer(x), theirs(x), atol=TOLERANCE)
    assert ours.get_config()["lora_rank"] == theirs.get_config()["lora_rank"] == 2
    assert "lora_rank" not in make(kd).get_config()
    ours.lora_alpha = 6
    theirs.lora_alpha = 6
    np.testing.assert_allclose(ours(x), theirs(x), atol=TOLERANCE)


RULES = {"dense/kernel": (None, "model"), "dense_1/kernel": ("model", None)}


def network(library):
    layers = [library.layers.Dense(8, "tanh", kernel_regularizer="l2", name="dense")]
    return library.Sequential([library.Input((6,)), *layers, library.layers.Dense(4, name="dense_1")])


def placed():
    layout_map = kd.LayoutMap(kd.DeviceMesh((4, 2), ("data", "model")))
    layout_map.update(RULES)
    with kd.ModelParallel(layout_map, batch_dim_name="data", strict=True).scope():
        return network(kd)


def test_a_model_is_trained_as_keras_trains_it_where_its_kernels_live(keras, tmp_path):
    theirs, ours = network(keras), placed()
    ours.set_weights(theirs.get_weights())
    x, y = rows((6,)), rows((4,))
    before = ours.predict(x, verbose=0)
    kernel = ours.layers[0].kernel
    for layer, other in zip(ours.layers, theirs.layers, strict=True):
        layer.enable_lora(2, lora_alpha=4)
        other.enable_lora(2, lora_alpha=4)
    np.testing.assert_allclose(ours.predict(x, verbose=0), before, atol=1e-6)
    assert [weight.path for weight in ours.weights] == [weight.path.split("/", 1)[1] for weight in theirs.weights]
    layouts = {row.path: (row.axes, row.rule) for row in ours.layout_plan.rows}
    assert layouts["dense/lora_kernel_a"] == ((None, None), "follows dense/kernel")
    assert layouts["dense/lora_kernel_b"] == ((None, "model"), "follows dense/kernel")
    assert layouts["dense_1/lora_kernel_a"] == (("model", None), "follows dense_1/kernel")
    assert layouts["dense_1/lora_kernel_b"] == ((None, None), "follows dense_1/kernel")
    assert kernel.layout.axes == layouts["dense/kernel"][0]
    ours.set_weights(theirs.get_weights())
    frozen = kernel.numpy()
    ours.compile(kd.optimizers.Adam(0.02), "mse")
    theirs.compile(keras.optimizers.Adam(0.02), "mse")
    options = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}
    found, expected = ours.fit(x, y, **options).history, theirs.fit(x, y, **options).history
    np.testing.assert_allclose(found["loss"], expected["loss"], atol=TOLERANCE)
    for mine, value in zip(ours.weights, theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine.numpy(), value, atol=TOLERANCE, err_msg=mine.path)
    np.testing.assert_array_equal(kernel.numpy(), frozen)
    assert kernel is ours.layers[0].kernel
    assert not kernel.trainable
    expected = ours.predict(x, verbose=0)
    ours.save_weights(tmp_path / "merged.safetensors")
    ours.load_weights(tmp_path / "merged.safetensors")  # merged: the product counts no more
    np.testing.assert_allclose(ours.predict(x, verbose=0), expected, atol=TOLERANCE)
    assert not ours.layers[0].lora_kernel_b.numpy().any()


def test_errors_name_the_way_out():
    with pytest.raises(ModelError, match="is not built"):
        kd.layers.Dense(2).enable_lora(2)
    layer = kd.layers.Dense(2, kernel_constraint="max_norm")
    layer(rows((3,)).astype("float32"))
    with pytest.raises(ModelError, match="must not have a constraint"):
        layer.enable_lora(2)
    model = kd.Sequential([kd.Input((6,)), kd.layers.Dense(4)])
    with pytest.raises(ModelError, match="`rank`"):
        model.layers[0].enable_lora(0)
    _other = kd.Model(model.inputs, model.layers[0].output)
    with pytest.raises(ModelError, match="another model shares"):
        model.layers[0].enable_lora(2)
    twice = kd.Sequential([kd.Input((6,)), kd.layers.Dense(4)])
    twice.layers[0].enable_lora(2)
    with pytest.raises(ModelError, match="has LoRA already"):
        twice.layers[0].enable_lora(2)
