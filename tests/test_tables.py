"""Tables fit the terminal, notebook or file that shows them, and say what they leave out."""

import fcntl
import os
import pathlib
import re
import struct
import sys
import termios

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers
from keras_dist._support import text_tables
from keras_dist._support.text_tables import Table, available_width, render
from keras_dist.distribution.devices import report_devices
from keras_dist.distribution.render import render_bytes
from tests import layouts

WIDTHS = pytest.mark.parametrize("width", [60, 80, 200, None])
RULES = {
    ".*/(query|key|value)/kernel": (None, "model", None),
    r"transformer_block(_\d+)?/.*feed_forward_in/kernel": (None, "model"),
    r"transformer_block(_\d+)?/.*feed_forward_out/kernel": ("model", None),
}


class TransformerBlock(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.multi_head_attention = layers.MultiHeadAttention(4, 8)
        self.feed_forward_in = layers.Dense(64, "relu", name="feed_forward_in")
        self.feed_forward_out = layers.Dense(32, name="feed_forward_out")

    def call(self, x):
        x = x + self.multi_head_attention(x, x)
        return x + self.feed_forward_out(self.feed_forward_in(x))


@pytest.fixture(scope="module")
def model():
    with layouts.on("data=2,model=4", RULES).scope():
        tokens = kd.Input((16,), dtype="int32", name="tokens")
        embedded = layers.Embedding(100, 32)(tokens)
        model = kd.Model(tokens, TransformerBlock()(TransformerBlock()(embedded)), name="decoder")
    model.compile("adam", "mse")
    return model


@pytest.fixture(scope="module")
def report(model):
    return model.plan(np.zeros((16, 16), "int32"), np.zeros((16, 16, 32)))


@pytest.fixture
def at_width(monkeypatch):
    """Sets the width; None is a pipe."""

    def set_to(width):
        if width is not None:
            monkeypatch.setenv("COLUMNS", str(width))

    return set_to


def check(text, width):
    """Every line fits, what is left out is named, and a terminal of the width that it names shows all."""
    broken = [
        line for line in text.splitlines() if " " in line.strip()
    ]  # words are left whole, such as a folder's path
    assert width is None or max(map(len, broken)) <= width, text
    assert width is not None or "left out" not in text
    return set(re.findall(r"COLUMNS=(\d+)", " ".join(text.split())))


def paths_of(text):
    """What the first columns hold, without the breaks."""
    return re.sub(r"\s+", "", "".join(line.split("│")[0] for line in text.splitlines()))


@WIDTHS
def test_a_layout_plan(model, at_width, width, monkeypatch):
    at_width(width)
    text = str(model.layout_plan)
    needed = check(text, width)
    paths, rows = paths_of(text), model.layout_plan.rows
    assert all(row.path in paths for row in rows), "whole, in the lines of their cells"
    whole, each = (render_bytes(nbytes) for nbytes in (model.layout_plan.nbytes, model.layout_plan.nbytes_per_device))
    assert re.search(rf"total(: bytes {whole}, per device {each}| .*│ +{whole} │ +{each})", text), "with its numbers"
    header = text.splitlines()[1]
    assert all(name in header for name in ("path", "shape", "layout"))
    if width is None or width >= 80:
        assert all(name in " ".join(text.splitlines()[1:3]) for name in ("rule", "device"))
        assert ".*/(query|key|" in text
    if width is None or width >= 200:
        assert not needed and "│ parameter │ (-, model, -) │ .*/(query|key|value)/kernel " in text
    for each in needed:
        monkeypatch.setenv("COLUMNS", each)
        assert "left out" not in str(model.layout_plan)
        monkeypatch.setenv("COLUMNS", str(int(each) - 1))
        assert "left out" in str(model.layout_plan)


@WIDTHS
def test_a_summary(model, at_width, width, capsys):
    at_width(width)
    model.summary()
    text = capsys.readouterr().out
    check(text, width)
    paths = paths_of(text)
    assert all(weight.path in paths for weight in model.weights)
    assert "TransformerBlock)" in paths and "(-, model" in text
    number = f"{model.count_params():,}"
    assert f"Total params: {number} (" in text and "params" in text.partition("Total")[0]


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, None])
def test_reports(model, report, at_width, width, tmp_path):
    at_width(width)
    with layouts.on("data=8", {}).scope():
        other = kd.Sequential([kd.Input((8,)), layers.Dense(4, name="a_layer_with_a_rather_long_name")])
    other.compile("sgd", "mse")
    compared = report.compare(other.plan(np.zeros((16, 8)), np.zeros((16, 4))))
    with kd.checkpoint.CheckpointManager(other, tmp_path / "states") as manager:
        manager.save()
    doctor = kd.checkpoint.examine(tmp_path / "states")
    block = "transformer_block/multi_head_attention/query/kernel"
    texts = [
        str(each) for each in (report, compared, report_devices(), report.explain(block), model.layout_plan.show(block))
    ]
    for text in texts:
        check(text, width)
    check(str(doctor).partition("\n")[2], width)
    assert "bytes of intermediate results" in re.sub(r"\s+", " ", texts[0]) and "all_reduce" in texts[0]
    assert "good" in str(doctor)


def test_nothing_of_a_wrapped_cell_is_lost():
    names = ["a" * 70, "x/y_z" * 20, "漢字" * 30, "[red]kept[/red]", "two\nlines", "  indented/" + "path/" * 20]
    table = Table("", ("name", "more"), rows=[(name, "m" * 30) for name in names])
    text = render(table, line_length=50)
    assert max(map(text_tables._length, text.splitlines())) <= 50
    for name in names:
        assert re.sub(r"\s", "", name) in paths_of(text)
    assert all(line.startswith("  ") for line in text.splitlines() if "path/" in line)


def test_names_do_not_steer_the_terminal():
    text = render(Table("a\x1b[2Jtitle", ("name",), rows=[("red\x1b[31m\x07",)]), "a\rline")
    assert not re.search(r"[\x1b\x07\r]", text) and r"red\x1b[31m\x07" in text


def test_numbers_are_never_wrapped_and_flush_right():
    header = "the number of bytes"
    table = Table("", ("name", header), (header,), rows=[("x" * 60, "123,456,789 B")])
    text = render(table, line_length=40)
    assert "123,456,789 B" in text and max(map(len, text.splitlines())) <= 40
    assert [line.rpartition("│ ")[2] for line in text.splitlines()[:2]] == ["the number of", "        bytes"]


class TestTheWidth:
    @pytest.fixture
    def terminal(self, monkeypatch):
        """Makes stdout, or another stream, a terminal with so many columns."""
        files = []

        def make(columns, name="stdout"):
            master, slave = os.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            files.extend([os.fdopen(slave, "w"), os.fdopen(master, "rb", 0)])
            monkeypatch.setattr(sys, name, files[-2])
            return files[-1]

        yield make
        for file in files:
            file.close()

    def test_of_a_terminal(self, terminal, monkeypatch):
        for columns, expected in ((80, 80), (200, 200), (0, 80)):
            terminal(columns)
            assert available_width() == expected
        monkeypatch.setenv("COLUMNS", "61")
        assert available_width() == 61, "which the user has set"

    def test_of_a_pipe_and_a_file(self, monkeypatch, tmp_path):
        with open(tmp_path / "file", "w") as file:
            monkeypatch.setattr(sys, "stdout", file)
            assert available_width() is None
        monkeypatch.setattr(sys, "stdout", None)  # as of pythonw
        assert available_width() is None

    @pytest.mark.parametrize("text", ["", "0", "-80", "wide", "80.5", "1" * 5000])
    def test_a_variable_that_is_no_width_says_nothing(self, monkeypatch, text):
        monkeypatch.setenv("COLUMNS", text)
        assert available_width() is None


def test_only_progress_and_pictures_need_rich():
    package = pathlib.Path(kd.__file__).parent
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if "\nfrom rich" in file.read_text()}
    assert found <= {"callbacks/progbar.py", "data/streams.py", "visualization/picture.py"}
