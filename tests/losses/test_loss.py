"""The base of losses: what users subclass, and what a loss makes of a batch."""

import inspect
import pickle
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import losses
from keras_dist.errors import ModelError
from keras_dist.losses.loss import FunctionLoss


class AbsoluteError(losses.Loss):
    def call(self, y_true, y_pred):
        return jnp.abs(y_true - y_pred).mean(-1)


class TwoHeadedLoss(losses.Loss):
    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, y_true, y_pred):
        return self.factor * jnp.abs(y_true["a"] - y_pred["a"]) + jnp.abs(y_true["b"] - y_pred["b"])


def test_a_subclass_needs_nothing_but_call():
    loss = AbsoluteError()
    assert (loss.name, loss.reduction, loss.dtype, loss.needs_targets) == (
        "absolute_error",
        "sum_over_batch_size",
        "float32",
        True,
    )
    assert loss(jnp.zeros((2, 2)), jnp.array([[1, 1], [2, 4]])) == 2.0


def test_targets_and_predictions_may_be_trees():
    y_true, y_pred = {"a": jnp.zeros(2), "b": np.zeros(2)}, {"a": jnp.ones(2), "b": np.ones(2)}
    assert TwoHeadedLoss(3)(y_true, y_pred, sample_weight=[1.0, 0.0]) == 2.0


def test_configs_hold_the_arguments_of_subclasses():
    loss = TwoHeadedLoss(3, name="it", reduction="sum")
    assert loss.get_config() == {"factor": 3, "name": "it", "reduction": "sum"}
    again = TwoHeadedLoss.from_config(loss.get_config())
    assert (again.factor, again.name, again.reduction) == (3, "it", "sum")


def test_it_computes_in_its_dtype():
    class Spy(losses.Loss):
        def call(self, y_true, y_pred):
            assert y_true.dtype == y_pred.dtype == self.dtype
            return y_pred

    for dtype in ("bfloat16", jnp.float16, types.SimpleNamespace(compute_dtype="bfloat16")):
        loss = Spy(dtype=dtype)
        assert loss.dtype in ("bfloat16", "float16")
        assert loss(np.array([1, 0], "u1"), jnp.ones(2)).dtype == loss.dtype


def test_lists_of_numbers_are_arrays():
    assert losses.MeanSquaredError()([[0.0, 1.0], [0, 1]], [[1.0, 1.0], [1, 1]]) == 0.5
    assert losses.mean_squared_error([0, 1], (1, 3)) == 2.5


def test_vectors_of_predictions_have_a_value_and_a_weight_each():
    y_true, y_pred = jnp.zeros(4), jnp.array([1.0, 2.0, 3.0, 4.0])
    for options, expected in [({}, 7.5), ({"reduction": None}, [1, 4, 9, 16]), ({"reduction": "sum"}, 30.0)]:
        np.testing.assert_allclose(losses.MeanSquaredError(**options)(y_true, y_pred), expected)
    assert losses.MeanSquaredError()(y_true, y_pred, sample_weight=jnp.array([0, 0, 0, 1])) == 4.0
    assert losses.BinaryCrossentropy(from_logits=True, reduction=None)(y_true, y_pred).shape == (4,)


def test_its_operations_go_by_its_name():
    text = jax.jit(losses.MeanSquaredError(name="distance")).lower(jnp.ones(2), jnp.ones(2)).as_text(debug_info=True)
    assert "distance" in text


def quantile_error(y_true, y_pred, q=0.5):
    return jnp.maximum(q * (y_true - y_pred), (q - 1) * (y_true - y_pred)).mean(-1)


class QuantileError(FunctionLoss, function=quantile_error):
    pass


class NamedQuantileError(QuantileError):
    def __init__(self, q=0.5, reduction="sum", name="quantile", dtype=None):
        super().__init__(reduction, name, dtype)
        self.q = q

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred, self.q)


def test_a_function_makes_a_class():
    assert str(inspect.signature(QuantileError)).startswith("(reduction: 'str | None' = 'sum_over_batch_size', name:")
    loss = pickle.loads(pickle.dumps(QuantileError("sum")))
    assert type(loss) is QuantileError and (loss.name, loss.reduction) == ("quantile_error", "sum")
    assert loss(jnp.zeros((2, 2)), jnp.full((2, 2), 2.0)) == 2.0
    again = NamedQuantileError.from_config(NamedQuantileError(0.25).get_config())
    assert (again.name, again.q, again(jnp.zeros((2, 2)), jnp.full((2, 2), 2.0))) == ("quantile", 0.25, 3.0)
    with pytest.raises(TypeError, match="`QuantileError` has no argument 'p'"):
        QuantileError(p=1)  # type: ignore[call-arg]


def pairwise(self, y_true, y_pred):
    return y_true[:, None] - y_pred[None, :, 0]


MISUSE = {
    "reduction": (lambda: losses.Loss(reduction="sun"), r"one of .* \(did you mean 'sum'\?\)"),
    "reduction of no kind": (lambda: losses.MeanSquaredError(3), "`reduction` must be one of"),
    "dtype of integers": (lambda: losses.Loss(dtype="int32"), "dtype"),
    "dtype of no kind": (lambda: losses.Loss(dtype="flaot32"), "dtype"),
    "no call": (lambda: losses.Loss()(jnp.ones(2), jnp.ones(2)), r"(?s)Loss has no values.*call\(self"),
    "no array": (lambda: losses.MeanSquaredError()(None, jnp.ones(2)), "`y_true` must be one array"),
    "no array at all": (lambda: losses.MeanSquaredError().call(jnp.ones(2), object()), "`y_pred` must be one array"),
    "trees": (
        lambda: losses.MeanSquaredError()(jnp.ones(2), {"a": jnp.ones(2)}),
        r"(?s)`y_pred` must be one array.*'a'",
    ),
    "all pairs": (
        lambda: type("Pairs", (losses.Loss,), {"call": pairwise})()(jnp.ones(3), jnp.ones((3, 1))),
        r"(?s)no value for each example.*\(3, 3\)",
    ),
    "another length": (
        lambda: type("Two", (losses.Loss,), {"call": lambda *_: jnp.ones(2)})()(jnp.ones(3), jnp.ones(3)),
        r"(?s)no value for each example.*\(2,\).*\(3, ...\)",
    ),
}


@pytest.mark.parametrize(("misuse", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_ends_in_an_error_with_given_expected_and_remedy(misuse, message):
    with pytest.raises(ModelError, match=message) as caught:
        misuse()
    assert caught.value.given and caught.value.fix
