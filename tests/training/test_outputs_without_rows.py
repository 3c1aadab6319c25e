"""`predict` of models with outputs that have no row for each example."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers

X = np.random.default_rng(0).normal(size=(22, 4)).astype("float32")
TABLE = np.arange(12, dtype="float32").reshape(6, 2)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.d1 = nnx.Linear(4, 3, rngs=rngs)
        self.table = nnx.Param(jnp.asarray(TABLE))

    def __call__(self, x: Any) -> Any:
        return {"y": self.d1(x), "aux": jnp.mean(x), "table": self.table[...], "rows": jnp.asarray(len(x))}


def net_on(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    mesh = kd.DeviceMesh(shape, names, jax.devices()[: int(np.prod(shape))])
    with kd.ModelParallel(kd.LayoutMap(mesh), batch_dim_name=names[0]).scope():
        return kd.Model.from_nnx(lambda rngs: Net(rngs))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [
        (((8,), ("data",)), [8, 8, 6]),
        (((1,), ("data",)), [22]),
        (((4, 2), ("data", "model")), [11, 11]),
        (((8,), ("data",)), [6, 6, 6, 4]),
    ],
)
def test_they_have_an_entry_for_each_batch(mesh: Any, sizes: list[int]) -> None:
    # the table is as long as the last batch, or as the first ones
    model = net_on(*mesh)
    found = model.predict(X, batch_size=sizes[0], verbose=0)
    np.testing.assert_allclose(found["y"], model.predict(X, verbose=0)["y"], rtol=1e-5, atol=1e-6)
    assert found["y"].shape == (22, 3)
    edges = np.cumsum([0, *sizes])
    means = [X[start:end].mean() for start, end in itertools.pairwise(edges)]
    np.testing.assert_allclose(found["aux"], means, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["table"], np.stack([TABLE] * len(sizes)))
    np.testing.assert_array_equal(found["rows"], sizes)


def test_of_one_batch_they_come_as_they_are() -> None:
    found = net_on((8,), ("data",)).predict_on_batch(X[:5])
    assert found["y"].shape == (5, 3)
    assert found["aux"].shape == ()
    np.testing.assert_array_equal(found["table"], TABLE)
    assert found["rows"] == 5


def test_callbacks_see_them() -> None:
    seen: list[Any] = []

    class Sees(kd.callbacks.Callback):
        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(logs["outputs"]["rows"])

    net_on((8,), ("data",)).predict(X, batch_size=8, verbose=0, callbacks=[Sees()])
    np.testing.assert_array_equal(seen, [[8], [8], [6]])


class MixtureOfExperts(layers.Layer):
    """A layer whose second output is its auxiliary loss."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight((input_shape[-1], 2), name="kernel")

    def call(self, x: Any) -> Any:
        gates = jax.nn.softmax(x @ self.kernel.value)
        return gates, jnp.sum(jnp.mean(gates, 0) ** 2)


def test_a_functional_model_with_an_auxiliary_output_trains_and_predicts() -> None:
    inputs = kd.Input((4,))
    model = kd.Model(inputs, list(MixtureOfExperts(name="moe")(inputs)))
    model.compile("sgd", loss=["mse", lambda y, aux: aux])
    targets = np.zeros((22, 2), "float32")
    history = model.fit(X, [targets, np.zeros(22, "float32")], batch_size=8, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    gates, aux = model.predict(X, batch_size=8, verbose=0)
    assert gates.shape == (22, 2)
    expected = [(gates[rows].mean(0) ** 2).sum() for rows in (slice(0, 8), slice(8, 16), slice(16, 22))]
    np.testing.assert_allclose(aux, expected, rtol=1e-5)
