"""`ProgbarLogger`: bars on terminals, lines elsewhere, and what they cost."""

import contextlib
import gc
import io
import itertools
import re

import jax
import pytest

from keras_dist.callbacks import LambdaCallback, ProgbarLogger
from tests.networks import blobs

X, Y = blobs(24)
NAMES = ["loss", "accuracy", "val_loss", "val_accuracy"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestProgress:
    @pytest.fixture
    def clock(self, monkeypatch):
        """Time goes on by this many seconds with each look at it."""
        ticks = itertools.count()
        seconds = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: next(ticks) * seconds[0])
        return seconds

    @pytest.fixture
    def terminal(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        return Terminal()

    def drive(self, logger, executions, logs=None, **params):
        """Drive the hooks of one epoch by hand."""
        logger.set_params({"epochs": 1, "steps": 4, "verbose": 1, **params})
        logger.on_train_begin()
        logger.on_epoch_begin(0)
        for last in executions:
            logger.on_train_batch_end(last, logs)
        logger.on_epoch_end(0, {"loss": 0.5})
        logger.on_train_end()

    def test_a_line_for_each_epoch_with_steps_and_logs(self, model):
        out = io.StringIO()
        model.fit(X, Y, batch_size=8, epochs=2, validation_data=(X, Y), verbose=1, callbacks=[ProgbarLogger(out)])
        lines = out.getvalue().splitlines()
        assert [line for line in lines if line.startswith("Epoch")] == ["Epoch 1/2", "Epoch 2/2"]
        (first, _) = [line for line in lines if "3/3" in line]
        assert all(f"{name}: " in first for name in NAMES)
        assert "steps/s" in first and len(lines) == 4

    @pytest.mark.parametrize("verbose", ["auto", 1, 2])
    def test_verbose_writes_to_standard_output(self, model, capsys, verbose):
        model.fit(X, Y, verbose=verbose)
        model.evaluate(X, Y, verbose=verbose)
        model.predict(X, verbose=verbose)
        printed = capsys.readouterr().out
        assert "Epoch" not in printed and printed.count("1/1 ") == 3
        assert printed.count("━" * 20) == (0 if verbose == 2 else 3)

    def test_silence(self, model, capsys):
        model.fit(X, Y, epochs=2, verbose=0, callbacks=[ProgbarLogger()])
        model.evaluate(X, Y, verbose=0)
        model.predict(X, verbose=0)
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("file", [io.StringIO, Terminal])
    def test_only_the_first_process_shows_it(self, monkeypatch, file):
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        monkeypatch.setenv("TERM", "xterm")
        out = file()
        self.drive(ProgbarLogger(out), range(4), epochs=2)
        assert out.getvalue() == ""

    @pytest.mark.parametrize(("verbose", "lines"), [(0, 0), (2, 1)])
    def test_no_bar_on_a_terminal_that_is_to_have_lines(self, terminal, verbose, lines):
        self.drive(ProgbarLogger(terminal), range(4), verbose=verbose)
        assert terminal.getvalue().count("\n") == lines and "\x1b" not in terminal.getvalue()

    def shown(self, clock, executions, seconds, before=0, **params):
        """The speed in the line of an epoch that takes these seconds."""
        out = io.StringIO()
        clock[0] = seconds / (len(executions) + 1)  # a look in each hook
        logger = ProgbarLogger(out)
        logger.set_params({"epochs": 1, "steps": None, "verbose": 2, **params})
        logger.on_train_begin()
        logger.on_epoch_begin(0)
        for last in executions:
            logger.on_train_batch_begin(before)
            logger.on_train_batch_end(last)
        logger.on_epoch_end(0)
        return out.getvalue().rpartition("s - ")[2].rstrip()

    @pytest.mark.parametrize("executions", [[0, 1, 2, 3, 4, 5], [0, 5], [5], [3, 4, 5]])
    def test_steps_per_second_are_all_steps_by_the_time_of_the_epoch(self, clock, executions):
        assert self.shown(clock, executions, seconds=2.0) == "3 steps/s (333 ms/step)"

    def test_steps_per_second_leave_out_what_another_run_has_done(self, clock):
        assert self.shown(clock, [7, 9], seconds=2.0, before=6) == "2 steps/s (500 ms/step)"

    @pytest.mark.parametrize(
        ("steps", "seconds", "shown"),
        [
            (1, 1.05, "0.952 steps/s (1.05 s/step)"),
            (1, 0.9996, "1 steps/s (1 s/step)"),
            (2, 1.998, "1 steps/s (999 ms/step)"),
            (1000, 1.0, "1,000 steps/s (1 ms/step)"),
            (12476, 1.0, "12,476 steps/s (80.2 us/step)"),
            (186, 1.0, "186 steps/s (5.38 ms/step)"),
            (1, 90.0, "0.0111 steps/s (1.5 min/step)"),
            (1, 7200.0, "0.000139 steps/s (2 h/step)"),
            (4_000_000, 1.0, "4,000,000 steps/s (250 ns/step)"),
        ],
    )
    def test_units_in_which_they_can_be_read(self, clock, steps, seconds, shown):
        assert self.shown(clock, [steps - 1], seconds) == shown

    def test_a_terminal_gets_a_bar_with_the_time_that_is_left(self, terminal, clock):
        class Last(dict):
            def items(self):
                raise AssertionError("the newest logs were read")

        clock[0] = 1.0
        logger = ProgbarLogger(terminal)
        logger.set_params({"epochs": 1, "steps": 4, "verbose": 1})
        logger.on_epoch_begin(0)
        for batch, logs in enumerate([{"loss": 0.25}, {"loss": 0.125}, Last()]):
            logger.on_train_batch_end(batch, logs)
        drawing = logger._drawing
        assert drawing is not None
        progress = drawing._progress
        assert progress is not None
        (task,) = progress.tasks
        assert (task.completed, task.total) == (3, 4) and task.description == "1 steps/s (1 s/step) - loss: 0.1250"
        progress.refresh()
        shown = terminal.getvalue()
        assert "3/4" in shown and re.search(r"-?\d?-:--|\d\d:\d\d", shown)
        logger.on_epoch_end(0, {"loss": 0.5})
        assert "4/4" not in terminal.getvalue() and drawing._progress is None

    def test_logs_are_read_at_most_ten_times_a_second(self, terminal, clock):
        class Logs(dict):
            def items(self):
                reads.append(1)
                return super().items()

        reads: list[int] = []
        clock[0] = 0.01
        self.drive(ProgbarLogger(terminal), range(40), Logs(loss=1.0), steps=40)
        assert 0 < len(reads) <= 40 * 0.02 / 0.1

    def test_a_line_does_not_read_the_logs_of_batches(self):
        class Logs(dict):
            def items(self):
                raise AssertionError("logs were read")

        self.drive(ProgbarLogger(io.StringIO()), range(4), Logs(loss=1.0))

    def test_when_training_fails_the_terminal_gets_its_cursor_back(self, model, terminal):
        def fail(batch, logs):
            raise RuntimeError

        with contextlib.suppress(RuntimeError):
            model.fit(X, Y, verbose=1, callbacks=[ProgbarLogger(terminal), LambdaCallback(on_train_batch_end=fail)])
        gc.collect()
        assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1
