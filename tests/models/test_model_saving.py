"""Models in folders and back: the same numbers, the same training, on any mesh."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers, saving
from keras_dist.errors import CheckpointError, CheckpointWarning, ConfigError, ModelError
from tests import layouts
from tests.networks import CLASSES, FEATURES, HIDDEN, LOSS, Noisy, blobs
from tests.soak import LARGE, often

X, LABELS = blobs(24)
Y = np.eye(CLASSES, dtype=np.float32)[LABELS]
load_model = kd.models.load_model


@saving.register_keras_serializable("saving")
class Net(kd.Model):
    """Its weights are born by the first call."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.d1 = layers.Dense(width, activation="relu")
        self.d2 = layers.Dense(CLASSES)

    def call(self, inputs):
        return self.d2(self.d1(inputs))


@saving.register_keras_serializable("saving")
class Counting(layers.Layer):
    """Weights of other types than float32, which training changes."""

    def build(self, input_shape):
        self.count = self.add_weight((), "zeros", "int32", trainable=False, name="count")
        self.half = self.add_weight((3,), "ones", "bfloat16", trainable=False, name="half")

    def call(self, inputs, training=None):
        if training:
            self.count.assign(self.count + 1)
        return inputs


def functional():
    a, b = kd.Input((FEATURES,), name="a"), kd.Input((FEATURES,), name="b")
    shared = layers.Dense(HIDDEN, "tanh", name="d1")
    inner = kd.Sequential([kd.Input((HIDDEN,)), layers.BatchNormalization(), layers.Dropout(0.25)], name="inner")
    hidden = inner(shared(a)) + shared(b)
    outputs = {"one": layers.Dense(CLASSES, name="d2")(hidden), "two": layers.Dense(1, name="score")(hidden)}
    model = kd.Model([a, b], outputs, name="two_heads")
    losses = {"one": LOSS, "two": "mse"}
    model.compile("adam", loss=losses, loss_weights={"one": 1.0, "two": 0.5}, metrics={"one": ["accuracy"]})
    return model, [X, X[::-1].copy()], {"one": LABELS, "two": X[:, :1]}


def sequential():
    model = kd.Sequential(
        [
            kd.Input((FEATURES,)),
            layers.Dense(HIDDEN, use_bias=False, name="d1"),
            layers.BatchNormalization(),
            layers.GaussianNoise(0.1, seed=3),
            layers.Dropout(0.25),
            layers.Dense(CLASSES, name="d2"),
        ]
    )
    rate = kd.optimizers.schedules.CosineDecay(0.01, 20)
    model.compile(kd.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0), loss=LOSS, metrics=["accuracy"])
    return model, X, LABELS


def subclassed():
    model = Net(HIDDEN)
    model(X)
    model.compile(kd.optimizers.SGD(0.05, momentum=0.9), loss=LOSS)
    return model, X, LABELS


def mixed():
    """Weights of other types, layers of another policy, frozen ones; several optimizers."""
    dense = layers.Dense(HIDDEN, name="d1", dtype="mixed_bfloat16")
    members = [Counting(name="odd"), dense, layers.Dense(HIDDEN), layers.Dense(CLASSES, name="d2")]
    model = kd.Sequential([kd.Input((FEATURES,)), *members])
    model.get_layer("dense").trainable = False
    optimizers = {"one": (kd.optimizers.Adam(0.01), "d1/.*"), "two": (kd.optimizers.SGD(0.1, momentum=0.5), "d2/.*")}
    model.compile(optimizers, loss="mse")
    return model, X, Y


def scaled_loss():
    """Of a model without targets, whose layers add the loss; gradients are accumulated and weights averaged."""
    kd.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = kd.Sequential([kd.Input((FEATURES,)), layers.Dense(CLASSES, name="d1", activity_regularizer="l2")])
    finally:
        kd.mixed_precision.set_dtype_policy("float32")
    model.compile(kd.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2))
    return model, X, None


KERNELS = {"d1/kernel": (None, "model"), "d2/kernel": ("model", None)}
FORMS = [
    (functional, "one device", {}),
    (sequential, "one device", {}),
    (subclassed, "data=2,model=4", KERNELS),
    (mixed, "fully data=2,model=4", KERNELS),
    (scaled_loss, "data=4,model=2", {}),
]


def fit(model, x, y, **options):
    return model.fit(x, y, batch_size=12, verbose=0, **options)


def assert_same_arrays(model, again):
    """All of two models' states, bit for bit."""
    expected, found = model.snapshot().arrays, again.snapshot().arrays
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype), name
        pair = [jax.random.key_data(one) if "key<" in str(value.dtype) else one for one in (found[name], value)]
        assert np.asarray(pair[0]).tobytes() == np.asarray(pair[1]).tobytes(), name


def assert_same_training(model, again, x, y, layout):
    """The next epoch of both is the same, bit for bit."""
    with layout.scope():
        expected, found = fit(model, x, y).history, fit(again, x, y).history
    assert found == expected
    assert_same_arrays(model, again)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("form", "where", "rules"), FORMS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_model_comes_back_and_goes_on(form, where, rules, tmp_path):
    layout = layouts.on(where, rules)
    with layout.scope():
        model, x, y = form()
        fit(model, x, y)
        model.save(tmp_path / "model")
        kd.set_random_seed(99)
        again = load_model(tmp_path / "model")
    assert type(again) is type(model) and again.name == model.name
    assert [weight.layout.axes for weight in again.weights] == [weight.layout.axes for weight in model.weights]
    assert [weight.path for weight in again.trainable_weights] == [weight.path for weight in model.trainable_weights]
    assert again.get_config() == model.get_config()
    assert again.get_compile_config() == model.get_compile_config()
    assert again.dtype_policy.name == model.dtype_policy.name
    assert_same_arrays(model, again)
    assert_same_training(model, again, x, y, layout)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model that was trained and saved on a mesh, and its folder."""
    path = tmp_path_factory.mktemp("saved") / "model"
    with layouts.on("data=2,model=4").scope():
        model, x, y = sequential()
        fit(model, x, y)
        model.save(path)
    return model, path


@pytest.fixture(scope="module")
def continued(saved):
    """The losses of the next epochs on the mesh."""
    with layouts.on("data=2,model=4").scope():
        return fit(load_model(saved[1]), X, LABELS, epochs=2).history["loss"]


@pytest.mark.slow
@often
@pytest.mark.parametrize("where", ["four devices", *["fully data=8", "one device"] * LARGE])
def test_a_model_comes_to_other_meshes(where, saved, continued):
    layout = kd.DataParallel(devices=kd.list_devices()[2:6]) if where == "four devices" else layouts.on(where)
    model = load_model(saved[1], distribution=layout)
    assert model.distribution == layout
    assert_same_arrays(saved[0], model)
    with layout.scope():
        found = fit(model, X, LABELS, epochs=2).history
    np.testing.assert_allclose(found["loss"], continued, atol=1e-5, rtol=0)


def test_it_is_left_uncompiled_if_one_likes(saved):
    model = load_model(saved[1], compile=False)
    np.testing.assert_equal(model.get_weights(), saved[0].get_weights())
    with pytest.raises(ModelError, match="compile"):
        fit(model, X, LABELS)


def test_one_that_was_never_compiled(tmp_path):
    model = kd.Sequential([kd.Input((FEATURES,)), layers.Dense(2)])
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    np.testing.assert_equal(again.get_weights(), model.get_weights())
    assert again.get_compile_config() == {}
    with pytest.raises(ModelError, match=r"not built|born|build"):
        kd.Sequential([layers.Dense(2)]).save(tmp_path / "unborn")
    assert not (tmp_path / "unborn").exists()


class TestFromNNX:
    @pytest.fixture(scope="class")
    @classmethod
    def module(cls, tmp_path_factory):
        """A model of a module, trained for an epoch, and its folder."""
        path = tmp_path_factory.mktemp("nnx") / "model"
        with layouts.on("data=2,model=4").scope():
            model = kd.Model.from_nnx(Noisy, trainable=nnx.Param)
            model.compile("adam", loss=LOSS)
            fit(model, X, LABELS)
            model.save(path)
        return model, path

    def test_a_factory_makes_it_again(self, module):
        model, path = module
        layout = layouts.on("data=2,model=4")
        kd.set_random_seed(99)
        again = load_model(path, factory=Noisy, trainable=nnx.Param, distribution=layout)
        assert_same_arrays(model, again)
        assert_same_training(model, again, X, LABELS, layout)

    def test_what_does_not_fit(self, module, saved):
        with pytest.raises(CheckpointError, match=r"of a flax\.nnx module") as error:
            load_model(module[1])
        assert "factory" in error.value.fix
        with pytest.raises(CheckpointError, match="model of layers"):
            load_model(saved[1], factory=Noisy)
        with pytest.raises(CheckpointError, match="does not fit") as error:
            load_model(module[1], factory=lambda rngs: nnx.Linear(FEATURES, CLASSES, rngs=rngs))
        assert any("missing in the checkpoint: variables/kernel" in one for one in error.value.problems)
        assert any("not in the model: variables/d1/kernel" in one for one in error.value.problems)


class TestCustomObjects:
    @pytest.fixture(scope="class")
    @classmethod
    def custom(cls, tmp_path_factory):
        """A class and a loss that are not registered, and the folder of their model."""
        path = tmp_path_factory.mktemp("custom") / "model"

        class Twice(layers.Layer):
            def call(self, inputs):
                return 2 * inputs

        def distance(y_true, y_pred):
            return jnp.abs(y_true - y_pred).mean(-1)

        objects = {"Twice": Twice, "distance": distance}
        model = kd.Sequential([kd.Input((FEATURES,)), Twice(), layers.Dense(2)])
        with saving.custom_object_scope(objects):
            model.compile("sgd", loss=distance)
            model.save(path)
        return model, path, objects

    def test_they_are_told(self, custom):
        model, path, objects = custom
        again = load_model(path, custom_objects=objects)
        assert again.evaluate(X, X[:, :2], verbose=0) == model.evaluate(X, X[:, :2], verbose=0)
        with saving.custom_object_scope(objects):
            assert type(load_model(path).layers[0]) is objects["Twice"]

    @pytest.mark.parametrize("left_out", ["Twice", "distance"])
    def test_what_is_not_told_is_named(self, left_out, custom):
        objects = {name: one for name, one in custom[2].items() if name != left_out}
        with pytest.raises(ConfigError, match=f"mentions '{left_out}'"):
            load_model(custom[1], objects)

    def test_compile_arguments_that_cannot_be_written(self, tmp_path):
        model = kd.Sequential([kd.Input((FEATURES,)), layers.Dense(2)])
        model.compile("sgd", loss=lambda y_true, y_pred: abs(y_true - y_pred))
        with pytest.warns(CheckpointWarning, match="saved without what `compile` was given.*`loss`"):
            model.save(tmp_path / "model")
        again = load_model(tmp_path / "model")
        np.testing.assert_equal(again.get_weights(), model.get_weights())
        assert again.get_compile_config() == {}

    @pytest.mark.parametrize("name", ["model", "model.keras"])
    def test_a_lambda_as_an_argument_is_told_by_argument_and_layer(self, name, tmp_path):
        by_three = layers.Lambda(lambda x: 3 * x, name="by_three")
        model = kd.Sequential([kd.Input((FEATURES,)), layers.Dense(2, activation=lambda x: 2 * x, name="d1"), by_three])
        with pytest.warns(CheckpointWarning, match="the model is saved without the code of") as caught:
            model.save(tmp_path / name)
        told = str(caught[0].message)
        assert "`activation` of Dense 'd1'" in told and "`function` of Lambda 'by_three'" in told
        assert "load_model will refuse it" in told and "custom_objects" not in told
        assert "register_keras_serializable" in told
        for objects in (None, {"d1": abs, "by_three": abs, "<lambda>": abs}):
            with pytest.raises(ConfigError, match=r"holds a lambda: .*, for `activation` of Dense 'd1'") as error:
                load_model(tmp_path / name, objects)
            assert "register_keras_serializable" in error.value.fix and "model.load_weights(path)" in error.value.fix

    def test_lambdas_are_saved_without_their_code(self, tmp_path):
        model = kd.Sequential([kd.Input((FEATURES,)), layers.Lambda(lambda x: 3 * x, name="by_three")])
        needs = (
            r"code of `function` of Lambda 'by_three' \(.*<lambda>\): .* needs custom_objects=\{'by_three': function\}"
        )
        with pytest.warns(CheckpointWarning, match=needs):
            model.save(tmp_path / "model")
        for safe_mode in (True, False):
            with pytest.raises(ConfigError, match="holds a lambda: the function of the layer 'by_three'"):
                load_model(tmp_path / "model", safe_mode=safe_mode)
        again = load_model(tmp_path / "model", {"by_three": lambda x: 3 * x})
        np.testing.assert_array_equal(again.predict(X, verbose=0), 3 * X)


class TestFolders:
    def test_one_over_another(self, saved, tmp_path):
        first = kd.Sequential([kd.Input((FEATURES,)), layers.Dense(3)])
        first.save(tmp_path / "model")
        with pytest.raises(CheckpointError, match="exists"):
            saved[0].save(tmp_path / "model", overwrite=False)
        assert len(load_model(tmp_path / "model").weights) == 2
        (tmp_path / "link").symlink_to(tmp_path / "model")
        saved[0].save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model"]
        assert_same_arrays(saved[0], load_model(tmp_path / "model"))

    def test_places_that_cannot_hold_it(self, saved, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("x")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "thing").write_text("x")
        for place, said in (("file", "is a file"), ("file/model", "is a file"), ("other", "folder of other things")):
            with pytest.raises(CheckpointError, match=said):
                saved[0].save(tmp_path / place)
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "other", "thing"]
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        with pytest.raises(CheckpointError, match="is where the program runs"):
            saved[0].save(".")

    def test_what_holds_no_model(self, saved, tmp_path):
        (tmp_path / "empty").mkdir()
        (tmp_path / "others").mkdir()
        (tmp_path / "others" / "readme.txt").write_text("")
        said = {"none": "none does not exist", "empty": "the folder is empty", "others": r"holds \['readme.txt'\]"}
        for load in (load_model, saved[0].load_weights):
            for name in ("empty", "others", *["none"] * (load is load_model)):
                with pytest.raises(CheckpointError, match=f"is not a checkpoint(.|\n)*{said[name]}") as caught:
                    load(tmp_path / name)
                assert "damaged" not in str(caught.value)
                assert caught.value.fix.startswith("the path of a folder")
        with kd.checkpoint.CheckpointManager(saved[0], tmp_path / "states") as manager:
            state = manager.save()
        for name in ("config.json", "compile.json"):  # the manifest does not list them: they are not read
            shutil.copy(saved[1] / name, state)
        for path in (tmp_path / "states", state):  # of a directory the newest one
            with pytest.raises(CheckpointError, match="state of a training"):
                load_model(path)

    @pytest.mark.parametrize("name", ["manifest.json", "record.json", "config.json", "compile.json", "array"])
    def test_damage_is_named(self, name, saved, tmp_path):
        folder = shutil.copytree(saved[1], tmp_path / "model")
        path = folder / name if name != "array" else max(folder.rglob("*"), key=lambda one: one.stat().st_size)
        content = path.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for harmed in (content[:middle], flipped, None):
            path.unlink()
            if harmed is not None:
                path.write_bytes(harmed)
            with pytest.raises(CheckpointError, match="damaged") as error:
                load_model(folder)
            assert len(error.value.problems) == 1 and path.name in error.value.problems[0]
            path.write_bytes(content)
