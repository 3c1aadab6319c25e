"""What the user holds, the model never changes or deletes; what the model hands out, training never changes."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests import layouts
from tests.networks import LOSS, Buffered, Noisy, Plain, blobs


def data_of(array):
    return np.asarray(jax.random.key_data(array) if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key) else array)


def bytes_of(tree):
    return [data_of(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def built(module, name="data=2,model=4", optimizer="adam"):
    model = layouts.model_on(name, module)
    model.compile(optimizer, loss=LOSS)
    return model


def test_the_users_module_survives_training():
    module = Noisy(nnx.Rngs(0))
    before = bytes_of(nnx.state(module))
    modes = (module.drop.deterministic, module.norm.use_running_average)
    model = built(module)
    for _ in range(2):
        model.train_on_batch(*blobs(8))
    assert bytes_of(nnx.state(module)) == before
    assert (module.drop.deterministic, module.norm.use_running_average) == modes


@pytest.mark.parametrize("name", ["one device", "data=2,model=4"])
def test_a_module_that_lives_where_the_plan_says_already_is_copied_too(name):
    module = Plain(nnx.Rngs(0))
    placed = jax.device_put(nnx.state(module), layouts.on(name).plan(nnx.state(module)).shardings)
    nnx.update(module, placed)
    before = bytes_of(placed)
    model = built(module, name)
    model.train_on_batch(*blobs(8))
    assert bytes_of(placed) == before
    assert bytes_of(nnx.state(module)) == before


@pytest.mark.filterwarnings("ignore:raw floating arrays")
def test_raw_numpy_buffers_of_the_user_are_copied():
    module: Any = Buffered(nnx.Rngs(0))
    buffer = np.linspace(0.5, 1.5, 8, dtype="f4")
    module.scale = nnx.data(buffer)
    model = built(module, "one device")
    buffer[:] = 0
    assert {v.path: v.numpy() for v in model.variables}["scale"].tolist() == pytest.approx(np.linspace(0.5, 1.5, 8))
    assert model.predict_on_batch(blobs(4)[0]).std() > 0


def test_what_is_assigned_is_copied():
    model = built(Plain, "one device")
    kernel = jax.numpy.ones((8, 16))
    buffer = np.ones((16, 4), "f4")
    by_path = {v.path: v for v in model.variables}
    by_path["d1/kernel"].assign(kernel)
    by_path["d2/kernel"].assign(buffer)
    buffer[:] = 5
    assert by_path["d2/kernel"].numpy().tolist() == np.ones((16, 4)).tolist()
    model.train_on_batch(*blobs(8))
    assert np.asarray(kernel).tolist() == np.ones((8, 16)).tolist()
    module = model.module
    model.module = module
    model.train_on_batch(*blobs(8))
    assert all(not leaf.is_deleted() for leaf in jax.tree.leaves(nnx.state(module)))


@pytest.mark.parametrize("name", ["one device", "data=2,model=4"])
def test_values_handed_out_survive_later_training(name):
    model = built(Noisy, name)
    handles = model.variables
    module = nnx.to_pure_dict(nnx.state(model.module))
    held = {"values": [v.value for v in handles], "module": module, "state": model.state}
    host = [v.numpy() for v in handles]
    before = {key: bytes_of(tree) for key, tree in held.items()}
    host_before = [value.tobytes() for value in host]
    model.fit(*blobs(32), batch_size=8, verbose=0)
    assert {key: bytes_of(tree) for key, tree in held.items()} == before
    assert [value.tobytes() for value in host] == host_before
    kernel = [v.path for v in handles].index("d2/kernel")
    assert handles[kernel].numpy().tobytes() != host_before[kernel], "a handle shows the current value"


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ["one device", "data=8,model=1"])
def test_rows_overwritten_as_soon_as_their_step_was_dispatched_do_not_change_it(name):
    class Spoil(kd.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            x_all[batch * 64 : (batch + 1) * 64] = np.nan

    steps = [blobs(64, seed=seed) for seed in range(12)]
    x_all, y_all = (np.concatenate(parts) for parts in zip(*steps, strict=True))
    spoilt, refilled = built(Plain, name), built(Plain, name)
    spoilt.fit(x_all, y_all, batch_size=64, shuffle=False, verbose=0, callbacks=[Spoil()])
    assert np.isnan(x_all).all()
    x_buffer, y_buffer = np.empty((64, 8), "f4"), np.empty(64, "i4")
    for x, y in steps:
        x_buffer[:], y_buffer[:] = x, y
        refilled.train_on_batch(x_buffer, y_buffer)
        x_buffer[:], y_buffer[:] = np.nan, 0
    assert bytes_of(refilled.state) == bytes_of(spoilt.state)
    assert all(np.isfinite(variable.numpy()).all() for variable in refilled.variables)


def test_predictions_are_the_callers_own():
    model = built(Plain, "one device")
    x, _ = blobs(8)
    first = model.predict(x, verbose=0)
    copy = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(model.predict(x, verbose=0), copy)
    np.testing.assert_allclose(model.predict_on_batch(x), copy, atol=1e-6)
