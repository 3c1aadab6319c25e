"""Losses in a structure of their own: several on one output, and some on several outputs together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import errors
from tests.training.test_objective import logged

RNG = np.random.default_rng(0)
A_TRUE, A_PRED, B_TRUE, B_PRED = RNG.normal(size=(4, 6, 3)).astype("f4")
MAE, MSE = np.mean(np.abs(A_TRUE - A_PRED)), np.mean((B_TRUE - B_PRED) ** 2)


def whole(structure):
    """A loss of both outputs, which come in this structure."""

    def largest(y_true, y_pred):
        assert jax.tree.structure(y_true) == jax.tree.structure(y_pred) == jax.tree.structure(structure)
        return jnp.abs(jax.tree.leaves(y_true)[0] - jax.tree.leaves(y_pred)[1]).max()

    return largest


WHOLE = np.abs(A_TRUE - B_PRED).max()


def test_parts_deep_in_dicts_are_named_by_their_paths_and_layers():
    y_pred = {"p": (A_PRED, B_PRED), "q": {"r": A_PRED, "s": B_PRED}}
    y = {"p": (A_TRUE, B_TRUE), "q": {"r": A_TRUE, "s": B_TRUE}}
    loss = {"p": [whole((0, 0)), (None, "mse")], "q": [whole({"r": 0, "s": 0}), {"r": "mae"}]}
    found = logged(y, y_pred, names=["p/0", "p/1", "q/r", "q/s"], layer_names=["a", "b", "c", "d"], loss=loss)
    expected = {"p_loss": WHOLE, "p/b_loss": MSE, "q_loss": WHOLE, "q/r_loss": MAE}
    assert {*found} == {"loss", *expected}
    np.testing.assert_allclose([found[name] for name in expected], [*expected.values()], rtol=1e-6)


def test_several_losses_of_one_output_are_logged_as_their_sum():
    found = logged([A_TRUE, B_TRUE], [A_PRED, B_PRED], names=["a", "b"], loss=["mae", ["mse", "mse"]])
    assert found == pytest.approx({"loss": MAE + 2 * MSE, "a_loss": MAE, "b_loss": 2 * MSE}, rel=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        ["mae", ["mse", "mse", "mse"], "mse"],
        {"a": ["mae", "mse"], "c": "mse"},
        [{"u": "mse", "v": "mse"}, {"w": "mse"}],
    ],
)
def test_losses_of_what_is_no_output_are_refused(loss):
    with pytest.raises(errors.ModelError, match="`loss` does not match the outputs"):
        logged([A_TRUE, B_TRUE], [A_PRED, B_PRED], names=["a", "b"], loss=loss)


class TakingApart(kd.Model):
    """A model of one output, of which its `compute_loss` makes two."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, [y_pred[:, :1], y_pred[:, 1:]], sample_weight, training)


def test_compute_loss_may_take_outputs_apart():
    inputs = kd.Input((3,))
    model = TakingApart(inputs, kd.layers.Dense(2)(inputs))
    model.compile("sgd", ["mae", "mse"], metrics=[])
    x, y = A_TRUE, (B_TRUE[:, :1], B_TRUE[:, 1:2])
    logs = model.evaluate(x, y, return_dict=True, verbose=0)
    found = np.asarray(model(x))
    expected = [np.mean(np.abs(found[:, :1] - y[0])), np.mean((found[:, 1:] - y[1]) ** 2)]
    assert [*logs] == ["loss", "mean_absolute_error_loss", "mean_squared_error_loss"]
    np.testing.assert_allclose([*logs.values()], [sum(expected), *expected], rtol=1e-5)
