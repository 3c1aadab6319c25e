"""What Keras's own tests of its distribution API ask of it, asked of ours."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import keras_dist as kd

X = np.random.default_rng(0).normal(size=(20, 6, 6, 1)).astype("float32")
Y = np.random.default_rng(1).normal(size=(20, 3)).astype("float32")


def model_parallel(shape: tuple[int, int], rules: dict[str, Any]) -> kd.ModelParallel:
    layout_map = kd.LayoutMap(kd.DeviceMesh(shape, ["batch", "model"], kd.list_devices()))
    for rule, axes in rules.items():
        layout_map[rule] = axes
    return kd.ModelParallel(layout_map=layout_map, batch_dim_name="batch")


def network() -> kd.Model:
    inputs = kd.Input((6, 6, 1))
    x = kd.layers.Flatten()(inputs)
    x = kd.layers.Dense(8, use_bias=False, activation="relu")(x)
    x = kd.layers.Dropout(0.4)(x)
    return kd.Model(inputs, kd.layers.Dense(3, activation="softmax")(x))


class Batches:
    """A data set that gives three batches, the last one shorter."""

    def __iter__(self) -> Any:
        return ((X[start : start + 8], Y[start : start + 8]) for start in (0, 8, 16))


RULES: dict[str, Any] = {".*dense.*kernel": (None, "model"), ".*dense.*bias": ("model",)}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("shape", [(8, 1), (1, 8)])
def test_a_map_without_rules_replicates_and_trains_batches_of_a_data_set(shape: tuple[int, int]) -> None:
    distribution = model_parallel(shape, {})
    with distribution.scope():
        model = network()
        assert all(weight.value.sharding.is_fully_replicated for weight in model.weights)
        model.compile(loss="mse")
        batches = Batches()
        losses = model.fit(batches, epochs=2, verbose=0).history["loss"]
        assert len(losses) == 2 and np.isfinite(model.evaluate(batches, verbose=0))


def test_rules_shard_weights_and_outputs_of_layers() -> None:
    seen: list[Any] = []

    class Looks(kd.layers.Layer):
        def call(self, inputs: Any) -> Any:
            jax.debug.inspect_array_sharding(inputs, callback=seen.append)
            return inputs

    rules = {".*kernel": (None, "model"), ".*dense.*output": ("batch", None)}
    distribution = model_parallel((4, 2), rules)
    with distribution.scope():
        inputs = kd.Input((6,))
        model = kd.Model(inputs, kd.layers.Dense(2)(Looks()(kd.layers.Dense(4)(inputs))))
        for weight in model.weights:
            expected = PartitionSpec(None, "model") if weight.name == "kernel" else PartitionSpec(None)
            assert weight.value.sharding.is_equivalent_to(
                NamedSharding(distribution.device_mesh.backend_mesh, expected), weight.ndim
            )
        model.compile(loss="mse")
        model.fit(X[:8, :, 0, 0], Y[:8, :2], batch_size=8, verbose=0)
    expected = NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec("batch", None))
    assert seen[-1].is_equivalent_to(expected, 2)


def test_weights_of_a_layer_by_itself_keep_their_layout_when_they_are_loaded() -> None:
    with model_parallel((4, 2), RULES).scope():
        layer = kd.layers.Dense(8)
        layer.build((16, 16))
    for _ in range(2):
        assert layer.kernel.value.sharding.spec == PartitionSpec(None, "model")
        assert layer.bias.value.sharding.spec == PartitionSpec("model")
        layer.kernel.assign(np.ones((16, 8)))
        layer.bias.assign(np.ones(8))
    np.testing.assert_array_equal(layer(np.ones((2, 16), "float32")), np.full((2, 8), 17.0))


@pytest.mark.parametrize("as_format", [False, True], ids=["sharding", "format"])
def test_tensors_take_layouts_of_jax_inside_and_outside_of_jit(as_format: bool) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("batch", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("batch", None))
    layout = jax.experimental.layout.Format(sharding=sharding) if as_format else sharding
    inside = jax.jit(lambda tensor: kd.distribution.distribute_tensor(tensor, layout))(np.ones((8, 2)))
    outside = kd.distribution.distribute_tensor(np.ones((8, 2)), layout)
    assert inside.sharding.is_equivalent_to(sharding, 2) and outside.sharding.is_equivalent_to(sharding, 2)


def test_a_layout_learns_its_mesh_later_and_is_checked_then() -> None:
    mesh = kd.DeviceMesh((4, 2), ["data", "model"])
    layout = kd.TensorLayout(("data", None))
    assert layout.device_mesh is None
    layout.device_mesh = mesh
    assert layout.device_mesh == mesh
    with pytest.raises(ValueError, match="Invalid axis names for Layout"):
        kd.TensorLayout(("data", "unknown")).device_mesh = mesh


def test_scopes_nest() -> None:
    one, other = model_parallel((4, 2), {}), kd.DataParallel()
    assert kd.distribution.distribution() is None
    with one.scope():
        with other.scope():
            assert kd.distribution.distribution() is other
        assert kd.distribution.distribution() is one
    assert kd.distribution.distribution() is None
