"""What other libraries make, handed to us: the error names it, and what it advises works."""

import jax
import numpy as np
import pytest
from flax import linen, nnx

import keras_dist as kd
from keras_dist.errors import ModelError

keras = pytest.importorskip("keras")

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)

ToEquinox = type("Module", (), {"__module__": "equinox._module"})


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(2)(linen.relu(linen.Dense(4)(x)))


class OwnLayer(keras.layers.Layer):
    pass


def apply(params, x):
    return x @ params


KERAS_LAYER = "is a layer of keras, which keras_dist does not use"
CASES = {
    "Linen, from_nnx": (kd.Model.from_nnx, Net, "is a module of flax.linen", "lambda rngs: flax.nnx.bridge.ToNNX"),
    "a factory of Linen": (kd.Model.from_nnx, lambda: lambda rngs: Net(), "is a module of flax.linen", "lambda rngs: "),
    "Linen, a layer": (lambda x: kd.Sequential([x]), Net, "is a module of flax.linen", "layers.NNXLayer"),
    "Equinox": (kd.Model.from_nnx, ToEquinox, "is a module of equinox", "plan(jax.eval_shape"),
    "Keras's layer, a layer": (
        lambda x: kd.Sequential([x]),
        lambda: keras.layers.Dense(3),
        KERAS_LAYER,
        "keras_dist.layers.Dense(...)",
    ),
    "a layer derived from Keras's": (lambda x: kd.Sequential([x]), OwnLayer, KERAS_LAYER, "derive OwnLayer from"),
    "Keras's layer, wrapped": (kd.layers.TimeDistributed, lambda: keras.layers.Dense(3), KERAS_LAYER, "layers.Dense"),
    "Keras's cell": (kd.layers.RNN, lambda: keras.layers.LSTMCell(3), KERAS_LAYER, "layers.LSTMCell"),
    "Keras's model": (
        kd.Model.from_nnx,
        lambda: keras.Sequential(),
        "is a model of keras",
        "kd.models.model_from_json",
    ),
    "Keras's model, cloned": (kd.models.clone_model, lambda: keras.Sequential(), "is a model of keras", "json"),
    "Keras's tensor": (lambda x: kd.Model(x, x), lambda: keras.Input((3,)), "is a symbolic tensor of keras", "Input"),
    "a function": (kd.Model.from_nnx, lambda: apply, "is a function of weights and inputs", "plan(jax.eval_shape"),
    "a compiled function": (kd.Model.from_nnx, lambda: jax.jit(apply), "is a function of weights", "plan("),
    "two functions": (kd.Model.from_nnx, lambda: (np.ones, apply), "is a pair of functions", "plan(jax.eval_shape"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_it_and_its_door(case):
    use, make, what, fix = CASES[case]
    with pytest.raises(ModelError) as error:
        use(make())
    assert what in error.value.summary and fix in error.value.fix


def trained(model):
    model.compile("sgd", loss="mse")
    before = [weight.numpy() for weight in model.weights]
    model.fit(X, np.ones((3, 2)), verbose=0)
    return [not np.array_equal(one, weight.numpy()) for one, weight in zip(before, model.weights, strict=True)]


def test_linen_wrapped_as_the_error_advises(tmp_path):
    model = kd.Model.from_nnx(lambda rngs: nnx.bridge.ToNNX(Net(), rngs=rngs).lazy_init(X), seed=0)
    assert [weight.path for weight in model.weights] == [
        f"Dense_{number}/{name}" for number in range(2) for name in ("bias", "kernel")
    ]
    assert all(trained(model))
    params = {"params": model.module.to_nnx__module and nnx.to_pure_dict(nnx.state(model.module, nnx.Param))}
    np.testing.assert_allclose(model.predict(X, verbose=0), Net().apply(params, X), atol=1e-6)


def test_linen_among_layers_as_the_error_advises(tmp_path):
    layer = kd.layers.NNXLayer(nnx.bridge.ToNNX(Net(), rngs=nnx.Rngs(0)).lazy_init(X), name="net")
    model = kd.Sequential([kd.Input((8,)), layer, kd.layers.Dense(2, name="d")])
    names = [f"net/Dense_{number}/{name}" for number in range(2) for name in ("bias", "kernel")]
    assert [weight.path for weight in model.weights] == [*names, "d/kernel", "d/bias"]
    assert all(weight.trainable for weight in model.weights) and any(trained(model)[:4])
    model.save_weights(tmp_path / "x.safetensors")
    assert model.load_weights(tmp_path / "x.safetensors").loaded[:4] == tuple(names)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")  # of Keras
def test_a_model_of_keras_made_anew_from_its_config_or_its_file(tmp_path):
    theirs = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, name="d")])
    ours = kd.models.model_from_json(theirs.to_json())
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours.predict(X, verbose=0), theirs.predict(X, verbose=0), atol=1e-6)
    theirs.save(tmp_path / "x.keras")
    again = kd.models.load_model(tmp_path / "x.keras")
    np.testing.assert_array_equal(again.predict(X, verbose=0), ours.predict(X, verbose=0))
    (tmp_path / "x").touch()
    with pytest.raises(ModelError, match="is a file\n"):
        kd.models.load_model(tmp_path / "x")


def test_objects_of_keras_that_would_not_be_trained_are_refused():
    class Mixed(kd.Model):
        def __init__(self, layer):
            super().__init__()
            self.inner = layer

    for given in (keras.layers.Dense(2), [keras.layers.Dense(2)], {"a": keras.layers.Dense(2)}):
        with pytest.raises(ModelError, match="attribute 'inner' of layer 'mixed' is a layer of keras"):
            Mixed(given)
    with pytest.raises(ModelError, match="its input is a symbolic tensor of keras"):
        kd.layers.Dense(3)(keras.Input((3,)))
    model = kd.Sequential([kd.layers.Dense(1)])
    for options in ({"metrics": [keras.metrics.MeanSquaredError()]}, {"optimizer": keras.optimizers.SGD()}):
        with pytest.raises(ModelError, match="of keras; that of keras_dist is another class"):
            model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    with pytest.raises(ModelError, match="SeedGenerator of keras"):
        kd.layers.Dropout(0.5, seed=keras.random.SeedGenerator(1))
