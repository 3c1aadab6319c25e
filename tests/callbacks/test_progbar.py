"""`utils.Progbar`: a bar for loops of one's own."""

import functools
import io
import itertools
import re
import sys

import jax
import numpy as np
import pytest

from keras_dist.callbacks import progbar
from keras_dist.errors import ModelError
from keras_dist.utils import Progbar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Standard output that is a terminal, and time that goes on by a second with each look at it."""
    monkeypatch.setenv("TERM", "xterm")
    terminal, ticks = Terminal(), itertools.count()
    monkeypatch.setattr(progbar, "console_of", functools.partial(progbar.console_of, terminal))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    return terminal


def description(bar):
    (task,) = bar._drawing._progress.tasks
    return task.description


def test_a_loop_whose_number_of_steps_is_unknown(capsys):
    bar = Progbar(target=None, stateful_metrics=[], width=4)
    results = {}
    for step in range(3):
        results["loss"] = jax.numpy.float32(step)
        bar.update(step, values=results.items(), finalize=False)
    assert capsys.readouterr().out == "", "no bar where nothing can move"
    bar.update(3, values=results.items(), finalize=True)
    assert re.fullmatch(r"3/Unknown ━━━━ \d+s - .* - loss: 2.0000\n", capsys.readouterr().out)


def test_reaching_the_target_is_the_end_and_the_unit_has_a_name(capsys):
    bar = Progbar(4, unit_name="sample", verbose=2)
    bar.add(3, {"loss": 1.0})
    bar.add(1)
    assert re.fullmatch(r"4/4 - \d+s - .* samples/s \(.* [mu]s/sample\) - loss: 1.0000\n", capsys.readouterr().out)
    bar = Progbar(4, verbose=0)
    bar.update(4, [("loss", 1.0)])
    assert capsys.readouterr().out == ""


def test_on_a_terminal_it_moves_and_waits_for_no_value_of_the_newest_step(terminal):
    class Pending:
        def __array__(self, dtype=None, copy=None):
            raise AssertionError("the newest value was read")

    bar = Progbar(None)
    bar.update(1, [("loss", jax.numpy.float32(1.0))])
    bar.update(4, [("loss", np.float32(3.0))])
    bar.update(5, [("loss", Pending())])
    assert description(bar).endswith("(600 ms/step) - loss: 2.5000")
    bar._drawing._progress.refresh()
    assert "5/Unknown" in terminal.getvalue()
    bar.update(6, [("loss", 0.5)], finalize=True)
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1


def test_a_bar_stays_as_it_is_for_the_interval(terminal):
    bar = Progbar(100, interval=10.0)
    for step in range(1, 20):
        bar.update(step, [("loss", 1.0)])
    (task,) = bar._drawing._progress.tasks
    assert task.completed == 10
    bar._drawing.stop()


def test_only_the_first_process_shows_it_and_reads_values(monkeypatch, terminal):
    class Unread:
        def __array__(self, *_):
            raise AssertionError("the value was read")

    monkeypatch.setattr(jax, "process_index", lambda: 1)
    bar = Progbar(2)
    bar.add(1, [("loss", Unread())])
    bar.add(1, [("loss", Unread())])
    assert terminal.getvalue() == ""


def test_where_nothing_is_shown_meanwhile_few_values_are_kept():
    bar = Progbar(None)
    for step in range(1, 1001):
        bar.update(step, [("loss", float(step))])
    assert len(bar._values["loss"]) <= 64
    assert bar._means() == {"loss": pytest.approx(500.5)}


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: Progbar("10"), "`target` "),
        (lambda: Progbar(10, verbose=3), "`verbose` must be one of"),
        (lambda: Progbar(10, width=0), "`width` "),
        (lambda: Progbar(10, interval=-1), "`interval` must be a finite number"),
        (lambda: Progbar(10).update(1.5), "`current` "),
        (lambda: Progbar(10).add(-1), "`n` "),
        (lambda: Progbar(10).update(1, 0.5), "(?s)`values` must be pairs of a name and a number.*given: +values=0.5"),
        (lambda: Progbar(10).update(1, [("a", "x")]), "`values` must be pairs of a name and a number"),
    ],
)
def test_errors_name_the_argument(use, message):
    with pytest.raises(ModelError, match=message):
        use()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_line_where_the_locale_is_not_utf_8(encoding, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", output)
    Progbar(target=1, width=4).update(1, values=[("loss", 1.0)], finalize=True)
    output.flush()
    assert output.buffer.getvalue().startswith(b"1/1 ---- ")
