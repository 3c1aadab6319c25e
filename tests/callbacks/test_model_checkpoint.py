"""`ModelCheckpoint`: when it saves, where, and what it says."""

import math
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from keras_dist.callbacks import Callback, ModelCheckpoint
from keras_dist.errors import ModelError
from tests import layouts
from tests.networks import Plain, blobs

X, Y = blobs(24)


@pytest.fixture(scope="module")
def model():
    with layouts.on("data=4,model=2").scope():
        model = kd.Model.from_nnx(Plain, seed=0)
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, metrics=["accuracy", first_score])
    return model


def first_score(y_true, y_pred):
    return y_pred[:, 0]


class Weights(Callback):
    """The kernels after each batch and each epoch."""

    def __init__(self):
        super().__init__()
        self.after: dict[Any, np.ndarray] = {}

    def on_epoch_begin(self, epoch, logs: Any = None):
        self.epoch = epoch + 1

    def on_train_batch_end(self, batch, logs: Any = None):
        self.after[self.epoch, batch + 1] = self.kernel()

    def on_epoch_end(self, epoch, logs: Any = None):
        self.after[epoch + 1] = self.kernel()

    def kernel(self):
        return next(weight for weight in self.model.weights if weight.path == "d1/kernel").numpy()


def fit(model, *callbacks, epochs=2, **options):
    options = {"batch_size": 8, "verbose": 0, **options}
    return model.fit(X, Y, epochs=epochs, callbacks=list(callbacks), **options).history


def drive(callback, values, name="loss", model=None):
    """Drive the epochs by hand; which of them were saved."""
    saved: list[int] = []

    class Model:
        metrics: tuple[Any, ...] = ()

        def save_weights(self, path):
            saved.append(int(path.split("-")[-1].split(".")[0]))

    callback.set_model(model or Model())
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {name: value})
    callback.on_train_end()
    return saved


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_each_epoch_under_its_number_and_its_logs(model, tmp_path):
    weights = Weights()
    checkpoint = ModelCheckpoint(tmp_path / "new" / "{epoch:02d}-{val_loss:.2f}.weights.safetensors")
    history = fit(model, weights, checkpoint, validation_data=(X, Y))
    expected = [f"{epoch:02d}-{loss:.2f}.weights.safetensors" for epoch, loss in enumerate(history["val_loss"], 1)]
    assert names(tmp_path / "new") == expected
    for epoch, name in enumerate(expected, 1):
        np.testing.assert_array_equal(load_file(tmp_path / "new" / name)["d1/kernel"], weights.after[epoch])
    saved = model.get_weights()
    model.set_weights([0 * value for value in saved])
    model.load_weights(tmp_path / "new" / expected[-1])
    np.testing.assert_equal(model.get_weights(), saved)


def test_a_path_of_another_kind_is_the_folder_of_the_whole_model(tmp_path):
    small = kd.Sequential([kd.Input((8,)), kd.layers.Dense(4, name="d1")])
    small.compile("adam", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(small, ModelCheckpoint(tmp_path / "at" / "epoch{epoch}"))
    assert names(tmp_path / "at") == ["epoch1", "epoch2"]
    again = kd.models.load_model(tmp_path / "at" / "epoch2")
    for mine, theirs in zip(again.get_weights(), small.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert int(again.snapshot().step) == 6


def test_every_so_many_batches_across_epochs(model, tmp_path):
    weights = Weights()
    checkpoint = ModelCheckpoint(tmp_path / "{epoch}-{batch:02d}-{loss:.1f}.safetensors", save_freq=2)
    fit(model, weights, checkpoint, epochs=3)
    found = sorted(tmp_path.iterdir())
    assert [path.name[:4] for path in found] == ["1-02", "2-01", "2-03", "3-02"]
    for path in found:
        epoch, batch = int(path.name[0]), int(path.name[2:4])
        np.testing.assert_array_equal(load_file(path)["d1/kernel"], weights.after[epoch, batch])


def test_batches_are_counted_by_their_numbers_not_by_calls(tmp_path):
    saved = []
    checkpoint = ModelCheckpoint("{epoch}-{batch}.safetensors", save_freq=4)
    checkpoint._consider = lambda epoch, logs, batch: saved.append((epoch, batch))  # type: ignore[method-assign]
    for epoch in range(2):
        checkpoint.on_epoch_begin(epoch)
        for last in (2, 5, 6):  # executions of 3, 3 and 1 steps
            checkpoint.on_train_batch_end(last, {})
    assert saved == [(0, 6), (1, 3), (1, 7)]


def test_logs_that_the_path_does_not_name_are_not_read(tmp_path):
    class Logs(dict):
        def __getitem__(self, name):
            raise AssertionError(f"{name} was read")

    saved = drive_once(ModelCheckpoint(str(tmp_path / "m-{epoch}.safetensors")), Logs(loss=1.0))
    assert saved == [str(tmp_path / "m-1.safetensors")]


def drive_once(checkpoint, logs):
    class Model:
        def save_weights(self, path):
            saved.append(path)

    saved: list[str] = []
    checkpoint.set_model(Model())
    checkpoint.on_epoch_end(0, logs)
    return saved


class TestSaveBestOnly:
    @pytest.mark.parametrize(
        ("mode", "values", "saved"),
        [("auto", [3, 2, 2, 4, 1], [1, 2, 5]), ("min", [3, 2, 4], [1, 2]), ("max", [3, 2, 3, 4], [1, 4])],
    )
    def test_only_better_values_are_saved(self, mode, values, saved):
        assert drive(ModelCheckpoint("m-{epoch}.safetensors", "loss", save_best_only=True, mode=mode), values) == saved

    def test_what_the_first_must_be_better_than(self):
        checkpoint = ModelCheckpoint("m-{epoch}.safetensors", "loss", save_best_only=True, initial_value_threshold=2.5)
        assert drive(checkpoint, [3, 2, 2.25]) == [2] and checkpoint.best == 2

    def test_the_best_value_is_kept_from_one_fit_to_the_next(self):
        checkpoint = ModelCheckpoint("m-{epoch}.safetensors", "loss", save_best_only=True)
        assert drive(checkpoint, [2.0]) == [1] and drive(checkpoint, [3.0, 1.0]) == [2]

    def test_nan_is_never_the_best(self):
        checkpoint = ModelCheckpoint("m-{epoch}.safetensors", "loss", save_best_only=True)
        assert drive(checkpoint, [math.nan, 2.0, math.nan]) == [2]

    def test_the_direction_of_a_metric(self, model, tmp_path):
        checkpoint = ModelCheckpoint(tmp_path / "m-{epoch}.safetensors", "accuracy", save_best_only=True)
        drive(checkpoint, [0.5, 0.25, 0.75], "accuracy", model)
        assert names(tmp_path) == ["m-1.safetensors", "m-3.safetensors"]

    def test_a_metric_without_direction_is_found_at_the_begin(self, model):
        checkpoint = ModelCheckpoint("m.safetensors", "first_score", save_best_only=True)
        checkpoint.set_model(model)
        with pytest.raises(ModelError, match="the better direction of"):
            checkpoint.on_train_begin()
        ModelCheckpoint("m.safetensors", "first_score").on_train_begin()

    @pytest.mark.parametrize("value", [None, np.ones(2)])
    def test_without_a_value_it_warns_and_saves(self, value):
        checkpoint = ModelCheckpoint("m-{epoch}.safetensors", "loss", save_best_only=True)
        with pytest.warns(UserWarning, match="Can save best model only with loss available"):
            assert drive(checkpoint, [value], "loss" if value is not None else "other") == [1]


def test_what_it_says(capsys):
    drive(ModelCheckpoint("m-{epoch}.safetensors", "loss", verbose=1, save_best_only=True), [2.0, 3.0])
    drive(ModelCheckpoint("m-{epoch}.safetensors", verbose=1), [2.0])
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Epoch 1: loss improved from None to 2.00000, saving model to m-1.safetensors",
        "",
        "Epoch 1: finished saving model to m-1.safetensors",
        "",
        "Epoch 2: loss did not improve from 2.00000",
        "",
        "Epoch 1: saving model to m-1.safetensors",
        "",
        "Epoch 1: finished saving model to m-1.safetensors",
    ]


def test_it_must_see_every_batch_only_to_count_them():
    assert not ModelCheckpoint("m.safetensors").sees_every_batch("train")
    checkpoint = ModelCheckpoint("m.safetensors", save_freq=3)
    assert checkpoint.sees_every_batch("train") and not checkpoint.sees_every_batch("test")


@pytest.mark.parametrize("field", ["{val_loss}", "{batch}", "{0}", "{loss:d}"])
def test_a_path_that_cannot_be_filled_in(field):
    with pytest.raises(ModelError, match="failed to format") as error:
        drive(ModelCheckpoint(f"{field}-{{epoch}}.safetensors"), [1.5])
    assert "epoch, loss" in error.value.fix


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filepath": "model.h5", "save_weights_only": True}, "`filepath` must be .*ends in '.safetensors'"),
        ({"filepath": 3}, "`filepath` must be a path"),
        ({"save_freq": "batch"}, "save_freq"),
        ({"initial_value_threshold": "low"}, "initial_value_threshold"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, message):
    with pytest.raises(ModelError, match=message) as error:
        ModelCheckpoint(**{"filepath": "model.safetensors", **arguments})
    assert repr(next(iter(arguments.values()))) in str(error.value)
