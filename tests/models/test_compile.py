"""compile: what it takes, and what it refuses, saying what was given, what is expected and the way out."""

import functools
from typing import Any

import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import ConfigError, DataError, ModelError, UnknownNameError
from tests import layouts
from tests.networks import LOSS, Plain, TwoInputs, blobs

X, Y = blobs(32)


def built(**options) -> Any:
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile(**{"optimizer": "sgd", "loss": LOSS, **options})
    return model


@functools.cache
def born(factory) -> Any:
    """A model that several cases compile, each as it likes."""
    return kd.Model.from_nnx(factory, seed=0)


def again(**options) -> Any:
    born(Plain).compile(**{"optimizer": "sgd", "loss": LOSS, **options})
    return born(Plain)


@functools.cache
def compiled() -> Any:
    return built()


@functools.cache
def uncompiled() -> Any:
    return kd.Model.from_nnx(Plain, seed=0)


TWO = {"a": X, "b": X[:, :2]}


def of_dicts(loss, **options) -> Any:
    born(TwoInputs).compile("sgd", loss=loss, **options)
    return born(TwoInputs)


def one_step(state, batch, rngs):
    return state, {}


MISUSE = {
    "fit before compile": (lambda: uncompiled().fit(X, Y), ModelError, "fit needs it"),
    "no loss": (lambda: again(loss=None), ModelError, "`loss` is missing"),
    "loss typo": (lambda: again(loss="msee"), UnknownNameError, "unknown loss 'msee'.*'mse'"),
    "optimizer typo": (lambda: again(optimizer="adamm"), UnknownNameError, "unknown optimizer 'adamm'.*'adam'"),
    "no optimizers": (lambda: again(optimizer={}), ModelError, "`optimizer` is an empty dict"),
    "optimizer of no expression": (lambda: again(optimizer={"a": ("sgd", "d1/(")}), ModelError, r"optimizer\['a'\]"),
    "optimizer of nothing": (lambda: again(optimizer={"d3": "sgd"}), ModelError, "optimizer 'd3' updates no variable"),
    "metric typo": (lambda: again(metrics=["acc", "accurcy"]), UnknownNameError, "unknown metric 'accurcy'"),
    "metric called loss": (lambda: again(metrics=[kd.metrics.Mean("loss")]), ModelError, "'loss'"),
    "empty data": (lambda: compiled().fit(X[:0], Y[:0]), DataError, "the dataset is empty"),
    "empty prediction": (lambda: compiled().predict(X[:0]), DataError, "the dataset is empty"),
    "targets of the wrong shape": (lambda: again(loss="mse").fit(X, X), ModelError, "must have the shape"),
    "validation that is no pair": (lambda: compiled().fit(X, Y, validation_data=X), DataError, "`validation_data`"),
    "batch_size of zero": (lambda: compiled().fit(X, Y, batch_size=0), DataError, "`batch_size`"),
    "epochs as text": (lambda: compiled().fit(X, Y, epochs="3"), ModelError, "`epochs`"),
    "a generator": (lambda: compiled().fit(row for row in X), DataError, "y is missing"),
    "weights for a scalar loss": (
        lambda: again(loss=lambda y, z: z.mean()).fit(X, Y, sample_weight=np.ones(32)),
        ModelError,
        "`sample_weight` does not fit the loss",
    ),
    "seed of fit": (lambda: compiled().fit(X, Y, seed="x"), ModelError, "`seed`"),
    "no callback": (lambda: compiled().fit(X, Y, callbacks=[print]), ModelError, "`callbacks`"),
    "callback class": (lambda: compiled().fit(X, Y, callbacks=[kd.callbacks.Callback]), ModelError, "`callbacks`"),
    "evaluate without a loss": (
        lambda: again(loss=None, train_step=one_step).evaluate(X, Y),
        ModelError,
        "evaluate needs a loss",
    ),
    "trainable of nothing": (
        lambda: kd.Model.from_nnx(Plain, trainable="d1/kernl"),
        ModelError,
        "`trainable` selects no variable",
    ),
    "a pair as x": (lambda: compiled().fit((X, Y)), DataError, r"(?s)x is a tuple of 2.*pass y separately"),
    "one array for several outputs": (
        lambda: of_dicts("mse").fit(TWO, Y),
        ModelError,
        r"(?s)`y` does not match the outputs.*'parts/0', 'parts/1', 'sum'",
    ),
    "outputs that are dicts, metric": (
        lambda: of_dicts(lambda y, z: z["sum"].mean(-1), metrics=["accuracy"]).fit(TWO, Y),
        ModelError,
        "accuracy: `y_pred` must be one array",
    ),
    "loss of one parameter": (lambda: again(loss=lambda y: y), ModelError, "`loss` cannot be called"),
    "loss class of arguments": (lambda: again(loss=kd.losses.LossFunctionWrapper), ConfigError, "`loss` is a class"),
    "loss of None": (lambda: again(loss=lambda y, z: None).fit(X, Y), ModelError, "`loss` did not return an array"),
    "loss of another length": (
        lambda: again(loss=lambda y, z: z[:3, 0]).fit(X, Y),
        ModelError,
        r"(?s)no value for each example.*\(3,\)",
    ),
    "metric that is a layer": (
        lambda: again(metrics=[kd.layers.Dense(1)]),
        ModelError,
        r"(?s)`metrics` holds a layer.*fix: .* lambda y_true, y_pred",
    ),
    "metrics that nothing updates": (
        lambda: again(loss=None, train_step=lambda state, batch, rngs: (state, {}), metrics=["mse"]),
        ModelError,
        "nothing would update the metrics",
    ),
    "two losses for one output": (
        lambda: again(loss=["mse", "mse"]).fit(X, Y),
        ModelError,
        "a single one of `loss`, for the model has one output",
    ),
    "train_step that is none": (lambda: again(train_step=3), ModelError, "`train_step` cannot be called"),
    "train_step that logs rows": (
        lambda: again(train_step=lambda state, batch, rngs: (state, {"rows": batch[0]})).fit(X, Y),
        ModelError,
        r"(?s)logs 'rows'.*\(32, 8\)",
    ),
    "call that is none": (lambda: kd.Model.from_nnx(Plain, call=3), ModelError, "`call` cannot be called"),
    "class that needs more": (lambda: kd.Model.from_nnx(nnx.Linear), ModelError, "the factory cannot be called"),
    "trainable of no kind": (lambda: kd.Model.from_nnx(Plain, trainable=3), ModelError, "`trainable` is not a filter"),
    "verbose of no kind": (lambda: compiled().fit(X, Y, verbose="loud"), ModelError, "`verbose`"),
    "shuffle of no kind": (lambda: compiled().fit(X, Y, shuffle="batch"), ModelError, "`shuffle`"),
    "two optimizers of one variable": (
        lambda: again(optimizer={"a": ("sgd", "d1/.*"), "b": ("adam", ".*/kernel")}),
        ModelError,
        "'a' and 'b' both update 'd1/kernel'",
    ),
}


@pytest.mark.parametrize(("misuse", "error", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_ends_in_an_error_with_given_expected_and_remedy(misuse, error, message):
    with pytest.raises(error, match=message) as caught:
        misuse()
    assert caught.value.given and caught.value.fix


def test_a_refused_compile_leaves_the_model_as_it_was():
    model = built(optimizer="adam")
    model.train_on_batch(X, Y)
    for options in ({"optimizer": "adamm"}, {"loss": "msee"}, {"metrics": ["accurcy"]}):
        with pytest.raises(UnknownNameError):
            model.compile(**{"optimizer": "sgd", "loss": LOSS, **options})
    assert int(model.state.step) == 1
    model.train_on_batch(X, Y)
    assert int(model.state.step) == 2


def test_a_refused_batch_leaves_the_state_usable():
    with layouts.on("data=2,model=4").scope():
        model = built()
    with pytest.raises(ModelError):
        model.train_on_batch(X, np.eye(4)[Y])
    assert np.isfinite(model.train_on_batch(X, Y))


def test_an_error_of_the_module_says_on_which_batch_it_arose():
    model = built()
    with pytest.raises(Exception, match="dot_general") as caught:
        model.fit(X, Y, validation_data=(X[:, :3], Y), verbose=0)
    assert "in a step on validation x float32(32, 3), validation y int32(32,)" in caught.value.__notes__


def test_a_config_of_an_optimizer_is_one_optimizer():
    model = built()
    model.compile({"class_name": "SGD", "config": {"learning_rate": 0.25}}, "mse")
    assert (model.optimizer.name, model.optimizer.learning_rate) == ("sgd", 0.25)


class TestDictsByOutput:
    """Outputs of a list are told apart by names alone: a dict of losses names them all, as in Keras."""

    @staticmethod
    def model(is_dict=False):
        x = kd.Input((2,))
        outputs = [kd.layers.Dense(2, name=name)(x) for name in "ab"]
        return kd.Model(x, dict(zip("ab", outputs, strict=True)) if is_dict else outputs)

    def test_no_loss_and_no_weight_may_be_missing(self):
        model = self.model()
        model.compile("sgd", loss={"a": "mse"})
        with pytest.raises(ModelError, match="`loss` has no entry for") as caught:
            model.fit(np.ones((2, 2)), [np.ones((2, 2))] * 2, verbose=0)
        assert "'b': None" in caught.value.fix
        model.compile("sgd", loss={"a": "mse", "b": None})
        self.model(is_dict=True).compile("sgd", loss={"a": "mse"})
        for loss in (["mse", "mse"], {"a": "mse", "b": "mse"}):
            with pytest.raises(ModelError, match="`loss_weights` has no entry for output 'b'"):
                model.compile("sgd", loss=loss, loss_weights={"a": 2.0})
            model.compile("sgd", loss=loss, loss_weights={"a": 2.0, "b": 1.0})
