"""`model.predict(x, call=...)`: another method of the same weights."""

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import ModelError

X = np.linspace(-1, 1, 88, dtype=np.float32).reshape(11, 8)


class Autoencoder(nnx.Module):
    def __init__(self, rngs):
        self.encoder, self.decoder = nnx.Linear(8, 2, rngs=rngs), nnx.Linear(2, 8, rngs=rngs)

    def encode(self, x):
        return self.encoder(x)

    def __call__(self, x):
        return self.decoder(self.encode(x))


class Layered(kd.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = kd.layers.Dense(2), kd.layers.Dense(8)

    def encode(self, x):
        return self.encoder(x)

    def call(self, x):
        return self.decoder(self.encode(x))


def encode(module, x, training, rngs):
    assert training is False
    return module.encode(x)


@pytest.mark.parametrize("make", [lambda: kd.Model.from_nnx(Autoencoder), Layered], ids=["nnx", "layers"])
def test_it_is_compiled_once_and_sees_the_weights_of_now(make, compiled_names):
    rules = kd.LayoutMap(kd.DeviceMesh("data=4,model=2"))
    rules["decoder/kernel"] = (None, "model")
    with kd.ModelParallel(rules).scope():
        model = make()
        model.build((None, 8))
    model.compile("sgd", loss="mse")
    whole = model.predict(X, batch_size=11, verbose=0)
    compiled_names.clear()
    for _ in range(2):
        by_shape = {weight.shape: weight.numpy() for weight in model.weights}
        kernel, bias = by_shape[8, 2], by_shape[2,]
        np.testing.assert_allclose(model.predict(X, 11, 0, call=encode), X @ kernel + bias, atol=1e-5)
        assert compiled_names.count("jit(predict)") == 1
        model.train_on_batch(X, X)
    model.compile("sgd", loss="mse")
    assert model.predict(X, 11, 0).shape == whole.shape == (11, 8)


def test_what_cannot_be_called_so():
    with pytest.raises(ModelError, match="call") as error:
        kd.Model.from_nnx(Autoencoder).predict(X, call="encode")
    assert "module, x, training, rngs" in str(error.value)
