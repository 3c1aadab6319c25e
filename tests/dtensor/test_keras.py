"""The Keras 2 face: models under a `LayoutMap`, optimizers and metrics with a mesh, seeds."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import dtensor, errors
from keras_dist._support import safe_patterns
from keras_dist.dtensor.keras import LayoutMap

OF_THE_TUTORIAL = (
    "Layout.from_string(sharding_specs:batch,unsharded, mesh:|batch=8|0,1,2,3,4,5,6,7|0,1,2,3,4,5,6,7|"
    + ",".join(f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(8))
    + ")"
)
X = np.random.default_rng(0).normal(size=(16, 16)).astype("float32")
Y = X[:, :1] > 0


class Subclassed(kd.Model):
    """As in the tutorial."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.feature = kd.layers.Dense(16)
        self.feature_2 = kd.layers.Dense(24)
        self.dropout = kd.layers.Dropout(0.1)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x = self.feature(inputs)
        x = self.dropout(x, training=training)
        return self.feature_2(x)


def functional() -> kd.Model:
    inputs = kd.Input((16,), batch_size=16)
    x = kd.layers.Dense(16, name="feature")(inputs)
    x = kd.layers.Dropout(0.1)(x)
    output = kd.layers.Dense(32, name="feature_2")(x)
    return kd.Model(inputs, output)


def sequential() -> kd.Model:
    return kd.Sequential(
        [
            kd.layers.Dense(16, name="feature", input_shape=(16,)),
            kd.layers.Dropout(0.1),
            kd.layers.Dense(32, name="feature_2"),
        ]
    )


@pytest.fixture(scope="module")
def mesh() -> dtensor.Mesh:
    return dtensor.create_mesh([("batch", 8)], devices=[f"CPU:{i}" for i in range(8)])


@pytest.fixture
def layout_map(mesh: dtensor.Mesh) -> LayoutMap:
    layout_map = LayoutMap(mesh=mesh)
    layout_map["feature.*kernel"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=2)
    layout_map["feature.*bias"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
    return layout_map


def fit(model: kd.Model, mesh: dtensor.Mesh) -> None:
    """Train, evaluate and predict with the optimizer and metric of the tutorial."""
    optimizer = dtensor.keras.optimizers.Adam(0.01, mesh=mesh)
    metric = kd.metrics.SparseCategoricalAccuracy(mesh=mesh)
    model.compile(optimizer, kd.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[metric])
    losses = model.fit(X, Y, epochs=3, batch_size=16, verbose=0).history["loss"]
    assert losses[2] < losses[0]
    loss, _ = model.evaluate(X, Y, verbose=0)
    assert loss < losses[0] and model.predict(X, verbose=0).shape[0] == 16


class TestTutorial:
    """The three models of the tutorial of Keras and DTensor."""

    def test_subclassed(self, layout_map: LayoutMap, mesh: dtensor.Mesh, capsys: pytest.CaptureFixture[str]) -> None:
        dtensor.keras.backend.experimental.enable_tf_random_generator()
        kd.utils.set_random_seed(1337)
        with layout_map.scope():
            subclassed_model = Subclassed()
        dtensor_input = dtensor.copy_to_mesh(jnp.zeros((16, 16)), layout=dtensor.Layout.replicated(mesh, rank=2))
        subclassed_model(dtensor_input)
        print(subclassed_model.feature.kernel.layout)
        assert capsys.readouterr().out == OF_THE_TUTORIAL + "\n"
        fit(subclassed_model, mesh)
        assert {weight.layout.sharding_specs[0] for weight in subclassed_model.trainable_weights} == {"batch"}
        slots = [slot for slot in subclassed_model.optimizer.variables if slot.shape == (16, 24)]
        assert [slot.layout.sharding_specs for slot in slots] == [["batch", "unsharded"]] * 2

    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize("make", [functional, sequential])
    def test_functional_and_sequential(self, make: Any, layout_map: LayoutMap, mesh: dtensor.Mesh) -> None:
        with layout_map.scope():
            model = make()
        assert str(model.layers[1 if make is functional else 2].kernel.layout) == OF_THE_TUTORIAL
        assert str(model.get_layer("feature").kernel.layout) == OF_THE_TUTORIAL
        assert model.get_layer("feature_2").bias.layout.sharding_specs == ["batch"]
        fit(model, mesh)

    def test_an_empty_map_replicates_on_its_mesh(self, mesh: dtensor.Mesh) -> None:
        with LayoutMap(mesh=mesh).scope():
            model = functional()
        fit(model, mesh)
        assert {weight.layout for weight in model.weights if weight.trainable} == {
            dtensor.Layout.replicated(mesh, rank) for rank in (1, 2)
        }


class Nested(kd.Model):
    """Layers in a list, in a model, and one that knows where its weights live."""

    def __init__(self, own: dtensor.Layout) -> None:
        super().__init__(name="lists")
        self.blocks = [kd.layers.Dense(8), kd.layers.Dense(8)]
        self.inner = kd.Sequential([kd.layers.Dense(8, name="last")])
        self.given = kd.layers.Dense(8, kernel_layout=own)
        self.norm = kd.layers.BatchNormalization()

    def call(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return self.norm(self.given(self.inner(inputs)))


@pytest.fixture(scope="module")
def two_dims() -> dtensor.Mesh:
    return dtensor.create_mesh([("model", 4), ("batch", 2)])


@pytest.fixture(scope="module")
def nested_rules(two_dims: dtensor.Mesh) -> LayoutMap:
    rules = LayoutMap(two_dims)
    rules["blocks.1"] = ["model"]
    rules["blocks.1.kernel"] = dtensor.Layout.inner_sharded(two_dims, "model", rank=2)
    rules[r"(?!given)[^.]*\.\w*\.k"] = kd.TensorLayout((("model", "batch"), None))
    rules["inner.*"] = [dtensor.UNSHARDED]
    rules["given.kernel"] = (None, "model")
    rules["norm.gamma"] = ["model"]
    return rules


@pytest.fixture(scope="module")
def nested(nested_rules: LayoutMap, two_dims: dtensor.Mesh) -> kd.Model:
    with nested_rules.scope():
        model = Nested(dtensor.Layout.batch_sharded(two_dims, "batch", rank=2))
    model(X[:, :8])
    return model


EXPECTED = {
    "blocks/0/kernel": (("model", "batch"), None),
    "blocks/0/bias": (None,),
    "blocks/1/kernel": (None, "model"),
    "blocks/1/bias": ("model",),
    "inner/last/kernel": (("model", "batch"), None),
    "inner/last/bias": (None,),
    "given/kernel": ("batch", None),
    "given/bias": (None,),
    "norm/gamma": ("model",),
    "norm/beta": (None,),
    "norm/moving_mean": (None,),
    "norm/moving_variance": (None,),
}


class TestPlaces:
    """What decides where a weight lies."""

    def test_an_exact_rule_wins_then_the_first_and_a_layers_own_layout_over_both(self, nested: kd.Model) -> None:
        assert {row.path: row.axes for row in nested.layout_plan.rows} == EXPECTED
        assert nested.layout_plan.row("blocks/1/bias").rule == "blocks.1"
        assert nested.layout_plan.row("lists/dense/bias").path == "blocks/0/bias"

    def test_the_batch_lies_along_the_dim_called_batch(self, nested: kd.Model) -> None:
        assert nested.distribution.batch_dim_name == "batch"
        with LayoutMap(kd.DeviceMesh({"rows": 4, "columns": 2})).scope():
            assert kd.distribution.distribution().batch_dim_name == "rows"

    def test_rules_match_the_beginning_of_paths_and_never_names_of_models_or_outputs(self, mesh: dtensor.Mesh) -> None:
        rules = LayoutMap(mesh)
        rules["feature"], rules["model.*"], rules["kernel"] = ["batch", None], ["batch"], ["batch"]
        with rules.scope():
            model = kd.Sequential(
                [kd.layers.Dense(2, name="feature", use_bias=False), kd.layers.Reshape((2, 1))], name="model"
            )
        with pytest.warns(errors.LayoutWarning, match=r"2 layout rule.*\n.*'model\..*\n.*write 'feature.kernel', or"):
            model.build((None, 16))
        assert str(model.layers[0].kernel.layout) == OF_THE_TUTORIAL
        assert model.layout_plan.row("feature/kernel").rule == "feature"
        assert model.distribution.get_tensor_layout("feature/output") is None

    def test_a_rule_that_never_comes_first_is_told(self, mesh: dtensor.Mesh) -> None:
        rules = LayoutMap(mesh)
        rules["f"], rules["fe"] = ["batch", None], ["batch", None]
        with rules.scope():
            model = kd.Sequential([kd.layers.Dense(16, name="feature", use_bias=False)])
        with pytest.warns(
            errors.LayoutWarning, match="'fe' decided nothing: remove it: 'f' comes first for 'feature.k"
        ):
            model.build((None, 16))

    def test_a_layout_that_does_not_fit_is_an_error_with_the_path_of_rules(self, mesh: dtensor.Mesh) -> None:
        rules = LayoutMap(mesh)
        rules["feature.bias"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
        with rules.scope():
            model = kd.Sequential([kd.layers.Dense(12, name="feature")])
        with pytest.raises(errors.LayoutError, match=r"cannot shard dim 0 of 'feature\.bias'"):
            model.build((None, 16))


class TestLayoutMap:
    """The mapping itself."""

    def test_look_up(self, layout_map: LayoutMap, mesh: dtensor.Mesh) -> None:
        layout_map["feature_2.kernel"] = (dtensor.UNSHARDED, "batch")
        layout_map["feature_2"] = [None]
        assert layout_map["feature.kernel.more"].sharding_specs == ["batch", "unsharded"]
        assert layout_map["feature_2.kernel"].sharding_specs == ["unsharded", "batch"]
        assert isinstance(layout_map["feature_2.kernel"], dtensor.Layout)
        assert layout_map["my.feature.kernel"] is layout_map.get("nothing") is None
        assert (len(layout_map), next(iter(layout_map))) == (4, "feature.*kernel")
        assert layout_map.get_default_mesh() is layout_map.mesh is mesh
        del layout_map["feature.*kernel"]
        assert layout_map["feature.kernel"] is None

    def test_its_mesh_is_that_of_the_first_layout(self, mesh: dtensor.Mesh) -> None:
        layout_map = LayoutMap()
        assert layout_map.get_default_mesh() is None
        with pytest.raises(errors.DistributionError, match="the layout map must have a mesh"):
            layout_map.scope()
        with pytest.raises(errors.LayoutError, match="`layout` must be a Layout"):
            layout_map["kernel"] = ["batch"]
        layout_map["kernel"] = dtensor.Layout(["batch"], mesh)
        assert layout_map.mesh is mesh
        assert LayoutMap(kd.DeviceMesh({"batch": 8})).mesh == mesh

    def test_what_is_refused(
        self, layout_map: LayoutMap, two_dims: dtensor.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for key, value, message in (
            ("feature.*bias", ["batch"], r"feature\.\*bias already exist in the LayoutMap"),
            ("(", ["batch"], "is not a regular expression"),
            ("other", dtensor.Layout(["batch"], two_dims), "belongs to a different mesh"),
            ("other", ["model"], "Invalid axis names for Layout: 'model'"),
            ("other", "batch", "should be a TensorLayout"),
        ):
            with pytest.raises(errors.LayoutError, match=message):
                layout_map[key] = value
        with pytest.raises(errors.LayoutError, match="`mesh` must be a Mesh"):
            LayoutMap(mesh=["batch"])
        monkeypatch.setattr(safe_patterns, "LIMIT_SECONDS", 0.05)
        layout_map["(a|a)*b"] = ["batch"]
        with pytest.raises(errors.RuleTimeoutError):
            layout_map["a" * 60 + "cb"]


class TestOptimizers:
    def test_another_mesh_than_the_models_is_an_error(self, nested: kd.Model, mesh: dtensor.Mesh) -> None:
        with pytest.raises(errors.ModelError, match="'sgd' has another mesh than the variables"):
            nested.compile(dtensor.keras.optimizers.SGD(0.1, mesh=mesh), "mse")
        with pytest.raises(errors.ModelError, match="'sgd' has another mesh"):
            dtensor.keras.optimizers.SGD(0.1, mesh=mesh).build(nested.trainable_variables)


class TestToLayoutMap:
    """The same placement by today's rules."""

    def test_all_weights_get_the_same_axes(self, nested: kd.Model, nested_rules: LayoutMap) -> None:
        report: list[str] = []
        new = dtensor.to_layout_map(nested_rules, nested, print_fn=report.append)
        assert type(new) is kd.LayoutMap
        assert list(new) == [
            *("blocks/1/bias", "blocks/1/kernel"),  # `blocks.1.*` would be a rule for an output, too
            *("blocks/0/kernel", "inner/last/kernel"),  # a rule for both would match a name of the given layer
            "inner/last/bias",
            "norm/gamma",
            *("norm/moving_mean", "norm/moving_variance"),  # which would follow `gamma`
        ]
        with kd.ModelParallel(new).scope():
            model = Nested(dtensor.Layout.batch_sharded(nested_rules.mesh, "batch", rank=2))
        model(X[:, :8])
        assert {row.path: row.axes for row in model.layout_plan.rows} == EXPECTED
        assert "blocks.1" in report[0]

    def test_rules_stay_where_they_mean_the_same(self, layout_map: LayoutMap, capsys: Any) -> None:
        layout_map["feature"] = ["batch"]
        model = functional()
        with pytest.warns(errors.LayoutWarning, match="'feature' decided nothing"):
            new = dtensor.to_layout_map(layout_map, model)
        assert list(new) == ["feature.*kernel", "feature.*bias"]
        told = capsys.readouterr().out
        assert "'feature.*kernel' -> 'feature.*kernel'; decides for feature/kernel, " in told
        assert "'feature' -> left out; decides for nothing" in told

    def test_what_is_no_map_of_keras_2_is_refused(self, nested: kd.Model) -> None:
        with pytest.raises(errors.LayoutError, match=r"`old_map` must be a dtensor\.keras\.LayoutMap"):
            dtensor.to_layout_map(kd.LayoutMap(nested.distribution.device_mesh), nested)
