"""Pictures of histories: what is in them, and what they need."""

import re
import sys

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.callbacks import History
from keras_dist.errors import MissingExtraError, ModelError
from keras_dist.visualization import plot_history
from tests.networks import Plain, blobs


def lines(axes):
    return {line.get_label(): [*map(list, (line.get_xdata(), line.get_ydata()))] for line in axes.get_lines()}


def test_a_panel_for_each_value_with_training_and_validation():
    figure = plot_history({"loss": [3.0, 2.0], "accuracy": [0.5, 1.0], "val_loss": [4.0, 3.0], "rate": [1.0, 1.0]})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy", "rate"]
    assert figure._repr_png_().startswith(b"\x89PNG")  # for notebooks
    assert lines(figure.axes[0]) == {"training": [[1, 2], [3.0, 2.0]], "validation": [[1, 2], [4.0, 3.0]]}
    assert lines(figure.axes[1]) == {"training": [[1, 2], [0.5, 1.0]]}


def test_values_of_every_second_epoch_and_of_several_elements():
    figure = plot_history({"f1": [np.array([0.0, 1.0])] * 4, "val_f1": [0.5, 0.75]})
    assert lines(figure.axes[0]) == {
        "training [0]": [[1, 2, 3, 4], [0.0] * 4],
        "training [1]": [[1, 2, 3, 4], [1.0] * 4],
        "validation": [[2, 4], [0.5, 0.75]],
    }


def test_values_of_validation_are_at_their_epochs():
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = blobs(8)
    history = model.fit(x, y, epochs=5, validation_data=(x, y), validation_freq=[1, 4], verbose=0)
    drawn = lines(history.plot().axes[0])
    assert (drawn["training"][0], drawn["validation"][0]) == ([1, 2, 3, 4, 5], [1, 4])
    rows = re.findall(r"<tr><td[^>]*>(.*?)</tr>", history._repr_html_())
    assert [len(re.findall(r"<td[^>]*>[0-9.]", row)) for row in rows] == [2, 1, 1, 2, 1]


def test_what_fit_returns_is_drawn_and_saved(tmp_path):
    model = kd.Model.from_nnx(Plain, seed=0)
    model.compile("sgd", loss=kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(*blobs(8), epochs=4, initial_epoch=2, verbose=0)
    figure = history.plot(tmp_path / "history.svg")
    assert lines(figure.axes[0]) == {"training": [[3, 4], history.history["loss"]]}
    assert (tmp_path / "history.svg").read_bytes().startswith(b"<?xml")


def test_nothing_to_draw():
    for history in ({}, History(), [1.0], None):
        with pytest.raises(ModelError, match="nothing to plot") as error:
            plot_history(history)
        assert type(history).__name__ in error.value.given


def test_a_history_without_matplotlib_is_a_picture_of_curves(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    history = History()
    for epoch, loss in enumerate([2.0, 1.0, 1.5, 0.25]):
        history.on_epoch_end(epoch, {"loss": loss, "per_class": np.ones(3)})
    lines = [[cell.strip() for cell in line.split("│")] for line in repr(history.plot()).splitlines()]
    assert lines[0] == ["", "first", "epochs", "last"] and "<polyline" in history.plot()._repr_html_()
    assert lines[2:] == [["loss", "2", "█▄▆▁", "0.25"], ["per_class", "1", "▁▁▁▁", "1"]]
    for plot in (lambda: plot_history({"loss": [1.0]}), lambda: history.plot(tmp_path / "plot.png")):
        with pytest.raises(MissingExtraError, match="needs the package matplotlib") as error:
            plot()
        assert error.value.fix == "pip install matplotlib" and isinstance(error.value, ImportError)
