"""`CSVLogger`: what is in the file."""

import csv

import jax
import pytest

import keras_dist as kd
from keras_dist.callbacks import CSVLogger
from keras_dist.errors import ModelError
from tests.networks import Plain, blobs

X, Y = blobs(8)


def write(logger, *epochs, first=0):
    logger.on_train_begin()
    for number, logs in enumerate(epochs, first):
        logger.on_epoch_end(number, logs)
    logger.on_train_end()


def rows(path, separator=","):
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter=separator))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.csv"


def test_the_history_of_fit(path):
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    logger = CSVLogger(path)
    for _ in range(2):  # the second empties the file
        history = model.fit(X, Y, epochs=2, validation_data=(X, Y), verbose=0, callbacks=[logger]).history
    header, *found = rows(path)
    assert header == ["epoch", "accuracy", "loss", "val_accuracy", "val_loss"]
    assert found == [[str(epoch), *(repr(history[name][epoch]) for name in header[1:])] for epoch in range(2)]


def test_each_row_is_there_at_once(path):
    logger = CSVLogger(path)
    logger.on_train_begin()
    assert path.read_text() == ""
    logger.on_epoch_end(0, {"loss": 1.0})
    assert len(rows(path)) == 2


def test_only_the_first_process_writes(path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    write(CSVLogger(path), {"loss": 1.0})
    assert not path.exists()


def test_appending_to_other_columns_is_refused(path):
    write(CSVLogger(path), {"loss": 1.0, "val_loss": 2.0})
    before = path.read_text()
    with pytest.raises(ModelError, match="has other columns") as error:
        write(CSVLogger(path, append=True), {"loss": 1.0, "mse": 2.0})
    assert "val_loss" in error.value.given and "val_mse" in error.value.expected
    assert path.read_text() == before


def test_a_folder_that_does_not_exist_is_found_at_the_begin(tmp_path):
    with pytest.raises(FileNotFoundError):
        CSVLogger(tmp_path / "none" / "log.csv").on_train_begin()


@pytest.mark.parametrize("separator", ["", ", ", 3])
def test_a_separator_is_one_character(path, separator):
    with pytest.raises(ModelError, match="`separator`"):
        CSVLogger(path, separator=separator)
