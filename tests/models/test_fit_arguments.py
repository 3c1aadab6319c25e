"""What the arguments of fit, evaluate and predict do that choose rows, weights and steps."""

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import DataError, KerasDistError, ModelError
from tests import layouts

ROWS = 22
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = (np.arange(ROWS) % 3).astype(np.int32)


@pytest.fixture(scope="module")
def model():
    with layouts.on("data=4,model=2", {}).scope():
        model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(3, activation="softmax")])
    model.compile(kd.optimizers.SGD(0.1), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


@pytest.fixture
def weights(model):
    """Its first values, restored afterwards, so that every training begins there."""
    values = model.get_weights()
    yield values
    model.set_weights(values)


def trained(model, weights, *arrays, **options):
    """History and weights after two epochs that began with these weights."""
    model.set_weights(weights)
    history = model.fit(*arrays, epochs=2, verbose=0, seed=1, **options).history
    return history, np.concatenate([weight.ravel() for weight in model.get_weights()])


class Batches(kd.callbacks.Callback):
    """Notes the batches of every epoch and of every evaluation."""

    def __init__(self):
        super().__init__()
        self.trained, self.tested, self.predicted = [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.trained.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.trained[-1].append(batch)

    def on_test_begin(self, logs=None):
        self.tested.append([])

    def on_test_batch_end(self, batch, logs=None):
        self.tested[-1].append(batch)

    def on_predict_batch_end(self, batch, logs=None):
        self.predicted.append(logs)


class TestValidationSplit:
    def test_the_last_rows_are_validated(self, model, weights):
        weight = np.linspace(1, 2, ROWS)
        apart = {"sample_weight": weight[:16], "validation_data": (X[16:], Y[16:], weight[16:])}
        expected, trained_apart = trained(model, weights, X[:16], Y[:16], **apart)
        history, found = trained(model, weights, X, Y, sample_weight=weight, validation_split=0.25)
        assert history == expected and np.array_equal(found, trained_apart)

    @pytest.mark.parametrize("split", [-0.1, 1.0, 1.5, "half", None], ids=str)
    def test_what_is_no_part_is_refused(self, model, split):
        with pytest.raises(DataError, match="`validation_split` must be a finite number of at least 0 and below 1"):
            model.fit(X, Y, validation_split=split)

    def test_no_rows_to_train_on_are_refused(self, model):
        with pytest.raises(DataError, match="`validation_split` leaves no rows to train on") as caught:
            model.fit(X, Y, validation_split=0.99)
        assert caught.value.given == "validation_split=0.99 of 22 rows"


class TestClassWeight:
    def test_classes_weigh_as_their_examples_would(self, model, weights):
        options = {"validation_data": (X, Y)}
        weight = np.array([1.0, 4.0, 0.5])[Y]
        expected, after = trained(model, weights, X, Y, sample_weight=weight, **options)
        history, found = trained(model, weights, X, Y, class_weight={1: 4.0, 2: 0.5}, **options)
        assert history == expected and np.array_equal(found, after)
        assert not np.array_equal(trained(model, weights, X, Y, **options)[1], found)

    @pytest.mark.parametrize("method", ["fit", "train_on_batch"])
    def test_beside_sample_weight_it_is_refused(self, model, method):
        with pytest.raises(DataError, match="`class_weight` and `sample_weight` cannot be used together"):
            getattr(model, method)(X, Y, sample_weight=np.ones(ROWS), class_weight={0: 1.0})


class TestSteps:
    def test_an_epoch_ends_after_so_many_and_the_next_goes_on(self, model, weights):
        seen = Batches()
        with pytest.warns(UserWarning, match="Your input ran out of data: an epoch of 3 steps ends after 2"):
            model.fit(X, Y, 5, epochs=4, steps_per_epoch=3, verbose=0, callbacks=[seen])
        assert seen.trained == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1]]
        assert seen.params["steps"] == 3

    def test_two_epochs_of_one_pass_train_as_one(self, model, weights):
        model.fit(X, Y, 6, epochs=1, verbose=0, seed=3)
        expected = model.get_weights()
        model.set_weights(weights)
        model.fit(X, Y, 6, epochs=2, steps_per_epoch=2, verbose=0, seed=3)
        assert all(map(np.array_equal, model.get_weights(), expected)), "the rows are shuffled once"

    def test_it_is_the_same_however_steps_are_grouped(self, weights, model):
        with layouts.on("data=4,model=2", {}).scope():
            other = kd.models.clone_model(model)
        other.compile(kd.optimizers.SGD(0.1), "sparse_categorical_crossentropy", steps_per_execution=2)
        for each in (model, other):
            each.set_weights(weights)
            with pytest.warns(UserWarning, match="ran out of data"):
                each.fit(
                    X, Y, 5, epochs=3, steps_per_epoch=3, verbose=0, seed=2, callbacks=[Batches()][: each is model]
                )
        assert all(map(np.array_equal, other.get_weights(), model.get_weights()))

    def test_without_a_batch_size_the_steps_are_all(self, model, weights):
        seen = Batches()
        model.fit(X, Y, steps_per_epoch=4, verbose=0, callbacks=[seen], validation_data=(X, Y), validation_steps=3)
        assert (seen.trained, seen.tested) == ([[0, 1, 2, 3]], [[0, 1, 2]])
        assert model.predict(X, steps=4, verbose=0).shape == (ROWS, 3)

    def test_evaluation_and_prediction_stop_after_so_many(self, model):
        assert model.evaluate(X, Y, 5, steps=2, verbose=0) == pytest.approx(model.evaluate(X[:10], Y[:10], verbose=0))
        assert np.allclose(model.predict(X, 5, steps=2, verbose=0), model.predict(X[:10], verbose=0), atol=1e-6)
        with pytest.warns(UserWarning, match="an epoch of 9 steps ends after 5"):
            assert len(model.predict(X, 5, steps=9, verbose=0)) == ROWS

    def test_validation_stops_after_so_many_and_begins_anew(self, model, weights):
        seen = Batches()
        options = {"validation_data": (X, Y), "validation_batch_size": 5, "validation_steps": 2, "callbacks": [seen]}
        history = model.fit(X, Y, epochs=2, verbose=0, **options).history
        assert seen.tested == [[0, 1], [0, 1]]
        assert history["val_loss"][1] == pytest.approx(model.evaluate(X[:10], Y[:10], verbose=0)[0], abs=1e-6)


class TestValidationFreq:
    @pytest.mark.parametrize(("freq", "times"), [(2, 2), ([1, 2, 5], 3), (9, 0)], ids=str)
    def test_it_follows_these_epochs(self, model, weights, freq, times):
        history = model.fit(X, Y, epochs=5, verbose=0, validation_data=(X, Y), validation_freq=freq).history
        assert len(history["loss"]) == 5 and len(history.get("val_loss", [])) == times

    @pytest.mark.parametrize("wrong", [0, True, "often", 1.5, (1,), [0], []], ids=str)
    def test_what_tells_no_epochs_is_refused(self, model, wrong):
        with pytest.raises(ModelError, match="`validation_freq` must be an integer") as caught:
            model.fit(X, Y, validation_data=(X, Y), validation_freq=wrong)
        assert caught.value.given == f"validation_freq={wrong!r}"


class Unshowable:
    """Its repr fails."""

    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be an integer"),
        ({"validation_data": (X, Y), "validation_steps": 1.5}, "`validation_steps` must be an integer"),
        ({"epochs": True}, "`epochs`"),
        ({"sample_weight": np.where(np.arange(ROWS) == 2, np.nan, 1)}, "sample_weight must be finite\n.*nan in row 2"),
        ({"class_weight": {1: float("nan")}}, "`class_weight`"),
        ({"batch_size": Unshowable()}, "whose __repr__ raises RuntimeError"),
    ],
)
def test_arguments_of_fit_that_make_no_sense(model, arguments, words):
    with pytest.raises(KerasDistError, match=words):
        model.fit(X, Y, verbose=0, **arguments)


def test_steps_of_evaluate_and_predict_that_make_no_sense(model):
    for call in (lambda: model.evaluate(X, Y, steps=0), lambda: model.predict(X, steps=1.5)):
        with pytest.raises(ModelError, match="`steps` must be an integer"):
            call()


def test_a_batch_without_rows_midway(model):
    with pytest.raises(KerasDistError, match="the batch is empty") as caught:
        model.fit(iter([(X, Y), (X[:0], Y[:0]), (X, Y)]), verbose=0)
    assert any(note.startswith("in batch 1 of") for note in caught.value.__notes__)


def test_a_history_that_is_used_twice_keeps_all_values_and_the_last_epochs(model, weights):
    history = kd.callbacks.History()
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[history])
    assert model.fit(X, Y, epochs=1, verbose=0, callbacks=[history]) is model.history is history
    assert (history.epoch, len(history.history["loss"])) == ([0], 3)


class TestOutputsOfBatches:
    def test_callbacks_get_them(self, model):
        seen = Batches()
        expected = model.predict(X, batch_size=5, verbose=0, callbacks=[seen])
        assert [list(logs) for logs in seen.predicted] == [["outputs"]] * 5
        assert np.array_equal(np.concatenate([logs["outputs"] for logs in seen.predicted]), expected)
        with pytest.raises(KeyError):
            seen.predicted[0]["loss"]

    def test_what_nobody_reads_is_not_fetched(self, model, monkeypatch):
        fetched = []
        monkeypatch.setattr("keras_dist.training.accumulators.real_outputs", lambda rows, outputs: fetched.append(rows))
        seen = Batches()
        model.predict(X, batch_size=5, verbose=0, callbacks=[seen])
        assert fetched == []
        seen.predicted[-1]["outputs"]
        assert fetched == [2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.fit(X, Y, epoch=3), r"`fit` has no argument 'epoch' \(did you mean 'epochs'\?\)"),
        (lambda model: model.evaluate(X, Y, batchsize=3), "`evaluate` has no argument.*'batch_size'"),
        (lambda model: model.predict(X, batchsize=3), "`predict` has no argument.*'batch_size'"),
        (lambda model: model.compile("sgd", metric=["mae"]), "`compile` has no argument 'metric'.*'metrics'"),
        (lambda model: model.summary(expand=True), "`summary` has no argument 'expand'.*'expand_nested'"),
    ],
)
def test_an_unknown_keyword_is_named_with_the_nearest_one(model, call, message):
    with pytest.raises(TypeError, match=message) as caught:
        call(model)
    assert isinstance(caught.value, ModelError)


def test_a_loss_and_a_metric_that_need_values_are_named():
    def own(y_true, y_pred):
        return np.log(y_pred)

    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(3)])
    for arguments, name in (({"loss": own}, "loss 'own'"), ({"loss": "mse", "metrics": [own]}, "metric 'own'")):
        model.compile("sgd", **arguments)
        with pytest.raises(ModelError, match=f"{name} needs the values(.|\n)*np.log"):
            model.fit(X, X, verbose=0)


def test_a_warning_of_a_step_comes_once_and_points_at_the_call():
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="one prediction is compared") as caught:
        model.fit(X, X, batch_size=ROWS, epochs=2, verbose=0)
    assert [warning.filename for warning in caught] == [__file__]
