"""Handles on variables: reading, assigning, and the module with the current values."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from tests import layouts
from tests.networks import LOSS, Noisy, Plain, Sower, blobs

X, Y = blobs(32)


@pytest.fixture(scope="module")
def model():
    model = layouts.model_on("data=2,model=4", Noisy)
    model.compile("sgd", loss=LOSS)
    return model


@pytest.fixture
def by_path(model):
    return {variable.path: variable for variable in model.variables}


def test_a_handle_knows_path_shape_dtype_layout_and_value(by_path):
    kernel = by_path["d1/kernel"]
    assert (kernel.path, kernel.shape, kernel.dtype) == ("d1/kernel", (8, 16), np.float32)
    assert kernel.layout.axes == (None, "model")
    assert kernel.layout.device_mesh == kd.DeviceMesh("data=2,model=4")
    assert kernel.value.sharding == kernel.layout.backend_layout
    np.testing.assert_array_equal(kernel.numpy(), kernel.value)
    np.testing.assert_array_equal(np.asarray(kernel), kernel.value)
    assert np.asarray(kernel, "f8").dtype == np.float64
    assert "d1/kernel" in repr(kernel) and "'model'" in repr(kernel)


class TestAssign:
    def test_it_keeps_layout_and_dtype(self, by_path):
        kernel = by_path["d1/kernel"]
        before, ones = kernel.value, np.ones((8, 16))
        for value in (ones, 2 * ones.astype("i4"), jax.numpy.full((8, 16), 3, "bfloat16"), [[4.0] * 16] * 8):
            kernel.assign(value)
            after = kernel.value
            assert after.dtype == before.dtype and after.sharding == before.sharding
            assert {shard.data.shape for shard in after.addressable_shards} == {(8, 4)}
            np.testing.assert_array_equal(after, np.asarray(value, "f4"))

    def test_it_counts_from_the_next_step_and_from_the_next_prediction(self, model, by_path):
        by_path["d2/kernel"].assign(np.zeros((16, 4)))
        by_path["d2/bias"].assign(np.array([1.0, 2, 3, 4]))
        np.testing.assert_allclose(model.predict(X, verbose=0), np.tile([1.0, 2, 3, 4], (32, 1)), atol=1e-6)
        scores = np.array([1.0, 2, 3, 4])
        expected = float(np.log(np.exp(scores).sum()) - scores[Y].mean())
        assert model.train_on_batch(X, Y) == pytest.approx(expected, abs=1e-6)

    def test_from_within_a_callback_it_counts_from_the_next_step_of_the_epoch(self, model):
        class Zero(kd.callbacks.Callback):
            def on_train_batch_end(self, batch, logs: Any = None):
                totals.append(logs["loss"] * (batch + 1))
                if batch == 1:
                    for variable in self.model.trainable_variables:
                        variable.assign(np.zeros(variable.shape))

        totals = [0.0]
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[Zero()])
        losses = np.diff(totals)
        assert losses[2] == pytest.approx(np.log(4), abs=1e-5), "uniform predictions"
        assert losses[1] != pytest.approx(np.log(4), abs=1e-3)

    def test_another_shape_is_refused(self, by_path):
        with pytest.raises(kd.errors.ModelError, match="cannot assign to 'd1/kernel'") as caught:
            by_path["d1/kernel"].assign(np.ones((16, 8)))
        assert caught.value.given == "shape (16, 8)" and "differs from (8, 16)" in caught.value.summary


class TestModule:
    def test_changing_it_changes_the_model(self, model, by_path):
        before = by_path["d2/bias"].numpy()
        module = model.module
        assert type(module) is Noisy and module.d1.kernel[...].sharding == by_path["d1/kernel"].value.sharding
        module.d2.bias[...] = before + 1
        np.testing.assert_array_equal(by_path["d2/bias"].numpy(), before + 1)
        model.train_on_batch(X, Y)
        np.testing.assert_array_equal(by_path["d2/bias"].numpy(), module.d2.bias[...])
        assert np.any(by_path["d2/bias"].numpy() != before + 1)

    def test_one_of_another_structure_or_shape_is_refused(self, model):
        with pytest.raises(kd.errors.ModelError, match=r"lost variables: .*'norm/mean'"):
            model.module = Plain(nnx.Rngs(0))
        wide = Noisy(nnx.Rngs(0))
        wide.d2 = nnx.Linear(16, 5, rngs=nnx.Rngs(0))
        before = [v.numpy().tobytes() for v in model.variables]
        with pytest.raises(kd.errors.ModelError, match="cannot assign to 'd2/bias'"):
            model.module = wide
        with pytest.raises(kd.errors.ModelError, match=r"must be a flax\.nnx.Module"):
            model.module = {"d1": 1}
        assert [v.numpy().tobytes() for v in model.variables] == before

    @pytest.mark.filterwarnings("ignore:Using 'Module.sow")
    def test_what_a_module_has_sown_is_left_out(self):
        model = kd.Model.from_nnx(Sower, seed=0)
        module = model.module
        module(X)
        model.module = module
        assert [v.path for v in model.variables] == ["d1/bias", "d1/kernel"]


def test_what_is_no_real_array_cannot_be_assigned_and_no_value_be_set(by_path):
    for value in (None, "a", np.full((16, 4), 1j)):
        with pytest.raises(kd.errors.ModelError, match="cannot assign to 'd2/kernel'") as caught:
            by_path["d2/kernel"].assign(value)
        assert caught.value.given and caught.value.fix
    with pytest.raises(kd.errors.ModelError, match="'d2/kernel'") as caught:
        by_path["d2/kernel"].value = np.zeros((16, 4))
    assert "assign" in caught.value.fix


def test_weights_of_modules_with_random_streams_can_be_set():
    model = kd.Model.from_nnx(Noisy)
    values = model.get_weights()
    model.set_weights([value + 1 for value in values])
    assert all(np.array_equal(a, b + 1) for a, b in zip(model.get_weights(), values, strict=True))
    assert len(model.weights) < len(model.variables)
