"""Losses, weights and metrics of one output and of several: what belongs to which, and what it is logged as."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import errors, losses, metrics
from keras_dist.training.accumulators import accumulator_of, add
from keras_dist.training.objective import resolve_objective
from keras_dist.training.outputs import Outputs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2)).astype("f4")
A_TRUE, A_PRED = RNG.normal(size=(2, 6, 3)).astype("f4")
B_TRUE, B_PRED = RNG.integers(0, 4, 6), RNG.dirichlet(np.ones(4), 6).astype("f4")
WEIGHT = RNG.uniform(0, 2, 6).astype("f4")
A_LOSS = float(np.mean((A_TRUE - A_PRED) ** 2))
B_LOSS = float(np.mean(-np.log(B_PRED[np.arange(6), B_TRUE])))
SPARSE = "sparse_categorical_crossentropy"


def logged(y: Any, y_pred: Any, weight: Any = None, mask: Any = None, names: Any = None, **options: Any) -> dict:
    objective = resolve_objective(output_names=names, **options)
    batch = (X, y, weight)
    found = objective.logs(objective.losses(batch, y_pred, mask), batch, y_pred, mask)
    read: dict[str, Any] = {}
    for name, value in found.items():
        accumulator = accumulator_of(name, value)
        values = accumulator.read(add(accumulator.start(), value, len(X)))
        assert tuple(values) == accumulator.names
        read |= values
    return read


DICTS = ({"a": A_TRUE, "b": B_TRUE}, {"b": B_PRED, "a": A_PRED})
LISTS = ([A_TRUE, B_TRUE], (A_PRED, B_PRED))
NAMED = {"a": "mse", "b": SPARSE}


class TestSeveralOutputs:
    @pytest.mark.parametrize(
        ("pair", "names", "loss"),
        [
            (DICTS, None, NAMED),
            (DICTS, None, ["mse", SPARSE]),
            (DICTS, None, {name: [loss] for name, loss in NAMED.items()}),
            (LISTS, ["a", "b"], NAMED),
            (LISTS, ["a", "b"], ["mse", SPARSE]),
            (LISTS, ["a", "b"], (losses.MeanSquaredError(), losses.SparseCategoricalCrossentropy())),
            ((DICTS[0], LISTS[1]), ["a", "b"], NAMED),
            ((LISTS[0], DICTS[1]), None, NAMED),
            ((tuple(LISTS[0]), list(LISTS[1])), ["a", "b"], NAMED),
        ],
    )
    def test_losses_by_output_are_summed_and_logged_beside_their_sum(self, pair, names, loss):
        found = logged(*pair, names=names, loss=loss)
        assert found == pytest.approx({"loss": A_LOSS + B_LOSS, "a_loss": A_LOSS, "b_loss": B_LOSS}, rel=1e-5)

    @pytest.mark.parametrize("weights", [{"a": 0.5, "b": 2.0}, [0.5, 2.0], {"a": 0.5, "b": 2}])
    def test_weights_count_in_the_sum_alone(self, weights):
        found = logged(*DICTS, loss=NAMED, loss_weights=weights)
        expected = {"loss": 0.5 * A_LOSS + 2 * B_LOSS, "a_loss": A_LOSS, "b_loss": B_LOSS}
        assert found == pytest.approx(expected, rel=1e-5)

    def test_one_loss_is_meant_for_all(self):
        found = logged([A_TRUE, A_TRUE + 1], [A_PRED, A_PRED + 1], loss="mse")
        assert found == pytest.approx({"loss": 2 * A_LOSS, "output_1_loss": A_LOSS, "output_2_loss": A_LOSS}, rel=1e-5)
        found = logged([A_TRUE, A_TRUE], [A_PRED, A_PRED], loss=lambda y, z: jnp.mean((y - z) ** 2, -1))
        assert found["output_2_loss"] == pytest.approx(A_LOSS, rel=1e-5)

    @pytest.mark.parametrize("y", [DICTS[0], {"b": B_TRUE}])
    @pytest.mark.parametrize("loss", [{"b": SPARSE}, {"a": None, "b": SPARSE}, [None, SPARSE]])
    def test_an_output_may_do_without_a_loss_and_then_without_targets(self, y, loss):
        assert logged(y, DICTS[1], loss=loss) == pytest.approx({"loss": B_LOSS}, rel=1e-5)

    def test_targets_may_be_a_list_of_those_needed(self):
        found = logged([B_TRUE], LISTS[1], names=["a", "b"], loss={"a": None, "b": SPARSE})
        assert found == pytest.approx({"loss": B_LOSS}, rel=1e-5)

    @pytest.mark.parametrize(
        "measured",
        [{"a": ["mse", "mae"], "b": "accuracy"}, [["mse", "mae"], ["accuracy"]], [["mse", "mae"], "accuracy"]],
    )
    def test_metrics_are_logged_under_their_output_in_the_order_of_keras(self, measured):
        found = logged(*DICTS, loss=NAMED, metrics=measured)
        assert list(found) == ["loss", "a_loss", "b_loss", "a_mae", "a_mse", "b_accuracy"]
        assert found["a_mae"] == pytest.approx(np.mean(np.abs(A_TRUE - A_PRED)), rel=1e-5)
        assert found["b_accuracy"] == pytest.approx(np.mean(B_PRED.argmax(-1) == B_TRUE))

    def test_a_list_as_long_as_the_outputs_has_an_entry_for_each(self):
        assert list(logged(*DICTS, loss=NAMED, metrics=["mse", "acc"]))[3:] == ["a_mse", "b_acc"]
        assert list(logged(*DICTS, loss=NAMED, metrics=[None, "acc"]))[3:] == ["b_acc"]

    def test_weights_of_examples_are_for_all_outputs_or_by_output(self):
        found = logged(*DICTS, weight=WEIGHT, loss=NAMED, metrics={"a": "mse"}, weighted_metrics={"a": "mse"})
        values = np.mean((A_TRUE - A_PRED) ** 2, -1)
        assert found["a_loss"] == pytest.approx(np.mean(values * WEIGHT), rel=1e-5)
        assert found["a_mse"] == pytest.approx(A_LOSS, rel=1e-5)
        assert found["a_weighted_mse"] == pytest.approx(np.average(values, weights=WEIGHT), rel=1e-5)
        by_output = logged(*DICTS, weight={"a": WEIGHT}, loss=NAMED)
        assert by_output["a_loss"] == pytest.approx(found["a_loss"]) and by_output["b_loss"] == pytest.approx(B_LOSS)
        assert logged(*DICTS, weight={"a": WEIGHT, "b": WEIGHT}, loss=NAMED) == pytest.approx(
            logged(*DICTS, weight=WEIGHT, loss=NAMED)
        )

    @pytest.mark.parametrize(
        ("y_pred", "loss", "names"),
        [
            ([A_PRED, [B_PRED]], ["mse", [SPARSE]], ("output_1_loss", "output_2_loss")),
            ([A_PRED, B_PRED], [["mse"], [SPARSE]], ("output_1_loss", "output_2_loss")),
            ({"n": {"b": B_PRED}, "a": A_PRED}, {"a": "mse", "n": {"b": SPARSE}}, ("a_loss", "n/b_loss")),
            ({"n": [B_PRED], "a": A_PRED}, {"a": "mse", "n": [SPARSE]}, ("a_loss", "n/0_loss")),
        ],
    )
    def test_losses_may_be_nested(self, y_pred, loss, names):
        y = jax.tree.map(lambda one: A_TRUE if one is A_PRED else B_TRUE, y_pred)
        found = logged(y, y_pred, loss=loss)
        assert [*found] == ["loss", *names]
        np.testing.assert_allclose([*found.values()], [A_LOSS + B_LOSS, A_LOSS, B_LOSS], rtol=1e-6)


class TestOneOutput:
    @pytest.mark.parametrize(
        ("y_pred", "loss", "measured"),
        [
            (A_PRED, "mse", "mae"),
            ([A_PRED], ["mse"], {"a": ["mae"]}),
            ({"a": A_PRED}, {"a": "mse"}, [["mae"]]),
            (A_PRED, {"a": "mse"}, ["mae"]),
        ],
    )
    def test_it_is_logged_without_its_name(self, y_pred, loss, measured):
        assert list(logged(A_TRUE, y_pred, names=["a"], loss=loss, metrics=measured)) == ["loss", "mae"]

    def test_names_that_are_taken_are_numbered(self):
        found = logged(A_TRUE, A_PRED, loss="mse", metrics=["mse", "mse", metrics.MeanAbsoluteError("mse")])
        assert list(found) == ["loss", "mse", "mse_1", "mse_2"]
        found = logged(A_TRUE, A_PRED, loss="mse", metrics=["mae"], weighted_metrics=["mae", "mae", "mse"])
        assert list(found) == ["loss", "mae", "weighted_mae", "weighted_mae_1", "mse"]

    def test_a_callable_may_take_targets_and_outputs_apart(self):
        def both(y_true, y_pred):
            return jnp.abs(y_true - y_pred["a"]).mean(-1) + y_pred["b"].sum(-1)

        found = logged(A_TRUE, DICTS[1], loss=both, metrics=[both])
        assert found == pytest.approx(dict.fromkeys(["loss", "both"], np.mean(np.abs(A_TRUE - A_PRED)) + 1), rel=1e-5)
        assert logged(None, DICTS[1], loss=lambda y, z: z["b"].sum(-1))["loss"] == pytest.approx(1, rel=1e-5)


MASK = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0], [1, 0, 0]], bool)
TOKENS, LOGITS = RNG.integers(0, 4, (6, 3)), RNG.normal(size=(6, 3, 4)).astype("f4")


class TestLossWithItsOwnCall:
    class Own(losses.Loss):
        def __call__(self, t, p, sample_weight=None):
            return jnp.mean((t - p) ** 2) * (1 if sample_weight is None else 2)

    def test_it_is_given_what_it_takes(self):
        objective = resolve_objective(self.Own())
        for weight, factor in ((None, 1), (WEIGHT, 2)):
            batch = (X, A_TRUE, weight)
            found = objective.losses(batch, A_PRED, np.ones(6, bool))["loss"]
            assert float(found) == pytest.approx(factor * A_LOSS, rel=1e-6)
            assert objective.batch_weight(batch, A_PRED) == 6.0

    def test_one_without_weights_is_refused(self):
        class TakesTwo(losses.Loss):
            def __call__(self, t, p):
                return 0.0

        with pytest.raises(errors.ModelError, match=r"TakesTwo.__call__ must be a method[^~]*define call\(self"):
            resolve_objective(TakesTwo())


class TestMask:
    @pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
    def test_what_it_leaves_out_counts_nowhere(self, weight):
        options = {"loss": "mae", "metrics": [metrics.SparseCategoricalAccuracy("right")], "weighted_metrics": ["acc"]}
        counts = MASK * (1 if weight is None else weight[:, None])
        right = LOGITS.argmax(-1) == TOKENS
        objective = resolve_objective(loss=losses.SparseCategoricalCrossentropy(from_logits=True))
        batch = (X, TOKENS, weight)
        other = np.where(MASK, TOKENS, 3 - TOKENS)
        assert float(objective.losses(batch, LOGITS, MASK)["loss"]) == pytest.approx(
            float(objective.losses((X, other, weight), LOGITS, MASK)["loss"])
        )
        options["loss"] = losses.SparseCategoricalCrossentropy(from_logits=True)
        found = logged(TOKENS, LOGITS, weight, MASK, **options)
        assert found["right"] == pytest.approx(np.sum(right * MASK) / MASK.sum(), rel=1e-5)
        assert found["acc"] == pytest.approx(np.sum(right * counts) / counts.sum(), rel=1e-5)

    def test_metrics_that_take_no_weights_see_all(self):
        class Rows(metrics.Sum):
            def update_state(self, y_true, y_pred):  # pyright: ignore[reportIncompatibleMethodOverride]
                super().update_state(jnp.ones(len(y_pred)))

        def mean_logit(y_true, y_pred):
            return jnp.mean(y_pred)

        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
        found = logged(TOKENS, LOGITS, None, MASK, loss=loss, metrics=[mean_logit, Rows("rows")])
        assert found["mean_logit"] == pytest.approx(LOGITS.mean(), rel=1e-5) and found["rows"] == 6
        with pytest.raises(errors.ModelError, match="'mean_logit': `sample_weight` does not fit"):
            logged(TOKENS, LOGITS, WEIGHT, MASK, loss=loss, weighted_metrics=[mean_logit])

    def test_it_may_be_of_one_output_alone(self):
        y, y_pred = {"a": A_TRUE, "t": TOKENS}, {"a": A_PRED, "t": LOGITS}
        loss = {"a": "mse", "t": losses.SparseCategoricalCrossentropy(from_logits=True)}
        found, plain = (logged(y, y_pred, None, mask, loss=loss) for mask in ({"a": None, "t": MASK}, None))
        assert found["a_loss"] == plain["a_loss"] and found["t_loss"] != plain["t_loss"]


WRONG = {
    "unknown output of a loss": (lambda: logged(*DICTS, loss={"c": "mse"}), "`loss`.*'c'.*'a', 'b'"),
    "too many losses": (lambda: logged(*DICTS, loss=["mse"] * 3), "`loss` does not match.*a list of 3"),
    "losses of one output": (lambda: logged(A_TRUE, A_PRED, loss=["mse", "mae"]), "`loss` does not match.*one output"),
    "no loss at all": (lambda: resolve_objective({"a": None}), "`loss` holds no loss"),
    "weights that are names": (
        lambda: resolve_objective("mse", loss_weights="a"),
        "`loss_weights` must be a finite number",
    ),
    "weight of no output": (lambda: logged(*DICTS, loss=NAMED, loss_weights={"c": 1}), "`loss_weights`.*'c'"),
    "one metric for two": (lambda: logged(*DICTS, loss=NAMED, metrics="acc"), "`metrics` does not match"),
    "metric of no output": (lambda: logged(*DICTS, loss=NAMED, metrics={"c": "acc"}), "`metrics`.*'c'"),
    "one target for two": (lambda: logged(A_TRUE, DICTS[1], loss=NAMED), "`y` does not match.*one array.*'a', 'b'"),
    "three targets for two": (lambda: logged([A_TRUE] * 3, LISTS[1], loss="mse"), "`y` does not match.*'output_1'"),
    "two targets for one": (lambda: logged([A_TRUE] * 2, A_PRED, loss="mse"), "`y` does not match.*one array"),
    "target of another name": (lambda: logged({"c": A_TRUE, "b": B_TRUE}, DICTS[1], loss=NAMED), "`y`.*'c', 'b'"),
    "a target too few": (lambda: logged({"b": B_TRUE}, DICTS[1], loss=NAMED), "`y` does not match"),
    "weights of another name": (lambda: logged(*DICTS, {"c": WEIGHT}, loss=NAMED), "`sample_weight`.*'c'"),
    "more names than outputs": (lambda: Outputs(LISTS[1], ["a"]), "other outputs than names"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_the_outputs_is_told_with_their_names(wrong, message):
    with pytest.raises(errors.ModelError, match=f"(?s){message}") as caught:
        wrong()
    assert caught.value.given and caught.value.fix


def test_a_metric_cannot_be_logged_as_a_loss():
    mean = metrics.MeanMetricWrapper(lambda y, z: z[:, 0], "loss")
    with pytest.raises(errors.ModelError, match="logged as 'loss'"):
        resolve_objective("mse", metrics=[mean])
    clash = {"a": metrics.MeanMetricWrapper(lambda y, z: z[:, 0], "x_loss")}
    y, y_pred = {"a": A_TRUE, "a_x": A_TRUE}, {"a": A_PRED, "a_x": A_PRED}
    with pytest.raises(errors.ModelError, match="two values would be logged as 'a_x_loss'"):
        logged(y, y_pred, loss="mse", metrics=clash)
