"""Functional models of operations: on meshes, in configs and files, as those of Keras."""

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import ops
from keras_dist.errors import ConfigError, ModelError

X = np.random.default_rng(0).normal(size=(16, 4, 8)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 4)).astype("float32")


def model_of(package, operations):
    """The same model of Keras or of ours."""
    x = package.Input((4, 8))
    hidden = package.layers.Dense(8)(x)
    joined = operations.concatenate([hidden, x * 2, operations.stop_gradient(hidden)], axis=-1)
    query, key = operations.split(joined, 2, axis=-1)
    scores = operations.softmax(operations.einsum("bij,bkj->bik", query, key) / 3, axis=-1)
    mixed = operations.layer_normalization(operations.matmul(scores, joined), epsilon=1e-5)
    pooled = operations.mean(operations.gelu(mixed), axis=1)
    chosen = operations.where(pooled > 0, operations.sqrt(operations.abs(pooled) + 1), pooled)
    values = operations.cast(operations.reshape(chosen, (-1, 8, 3)), "float32")
    return package.Model(x, package.layers.Dense(4)(operations.logsumexp(values, axis=-1)[:, 1:]))


def trained(model, package):
    model.compile(optimizer=package.optimizers.SGD(0.1), loss="mse")
    return model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]


def test_a_model_on_a_mesh_is_trained_saved_and_loaded_as_that_of_keras(keras, tmp_path):
    mesh = kd.DeviceMesh((4, 2), ("batch", "model"))
    rules = kd.LayoutMap(mesh)
    rules[".*kernel"] = (None, "model")
    kd.set_distribution(kd.ModelParallel(layout_map=rules, batch_dim_name="batch"))
    model, theirs = model_of(kd, ops), model_of(keras, keras.ops)
    model.set_weights(theirs.get_weights())
    np.testing.assert_allclose(trained(model, kd), trained(theirs, keras), rtol=1e-5)
    np.testing.assert_allclose(model.predict(X, verbose=0), theirs.predict(X, verbose=0), rtol=1e-4, atol=1e-5)
    assert tuple(model.layers[1].kernel.value.sharding.spec) == (None, "model")
    model.save(tmp_path / "model")
    for made in (kd.models.load_model(tmp_path / "model"), kd.models.clone_model(model)):
        made.set_weights(model.get_weights())
        np.testing.assert_allclose(made.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


def test_what_takes_several_symbolic_tensors_by_name():
    x = kd.Input((4,))
    mask = kd.Input((4,), dtype="bool")
    model = kd.Model([x, mask], ops.where(x2=ops.zeros_like(x), condition=mask, x1=x))
    made = kd.Model.from_config(model.get_config())
    values, kept = X[:, 0, :4], X[:, 1, :4] > 0
    np.testing.assert_array_equal(made([values, kept]), np.where(kept, values, 0))


def test_arrays_and_functions_among_the_arguments_are_written_down():
    x = kd.Input((4,))
    with_array = kd.Model(x, ops.matmul(x, np.eye(4, dtype="float32")[:, :2]))
    with_function = kd.Model(x, ops.map(kd.activations.relu, x))
    for model, expected in ((with_array, X[:, 0, :2]), (with_function, np.maximum(X[:, 0, :4], 0))):
        made = kd.Model.from_config(model.get_config())
        np.testing.assert_allclose(made(X[:, 0, :4]), expected, rtol=1e-6)


def test_an_unknown_operation_is_an_error():
    x = kd.Input((4,))
    config = kd.Model(x, ops.sqrt(x)).get_config()
    config["layers"][1]["config"]["name"] = "squareroot"
    with pytest.raises(ConfigError, match="the unknown operation"):
        kd.Model.from_config(config)


def test_an_error_names_the_operation_and_its_shapes():
    with pytest.raises(TypeError) as error:
        ops.matmul(kd.Input((4,)), kd.Input((4,)))
    assert any("matmul" in note and "(None, 4)" in note for note in error.value.__notes__)
    with pytest.raises(ModelError, match="symbolic KerasTensor"):
        bool(ops.any(kd.Input((4,))))


def test_operations_in_layers_are_compiled():
    class Gated(kd.Layer):
        def build(self, input_shape):
            self.gate = self.add_weight((input_shape[-1],), "ones", name="gate")

        def call(self, inputs):
            rows = ops.shape(inputs)[0]
            return ops.reshape(ops.sigmoid(inputs) * self.gate, (rows, -1)) + ops.mean(self.gate)

    model = kd.Sequential([kd.Input((4,)), Gated()])
    assert model.output_shape == (None, 4)
    np.testing.assert_allclose(model(X[:, 0, :4]), jax.nn.sigmoid(X[:, 0, :4]) + 1, rtol=1e-6)
