"""Trainings that get signals: `python -m tests.resuming.interruptions FOLDER`.

Each life is a fork of a process that has imported everything and started nothing, and ends as Python ends. It prints,
as JSON, what the life of each case has told, its exit code (minus the signal that killed it), and the result of the
life after it in the same directory.
"""

import contextlib
import functools
import io
import json
import os
import pathlib
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import orbax.checkpoint  # noqa: F401  # once, in the process that is forked
from jax.core import Tracer

import keras_dist as kd
from keras_dist import callbacks
from keras_dist.checkpoint.folder import Draft
from keras_dist.errors import CheckpointWarning
from tests import layouts
from tests.resuming.program import BATCH_SIZE, LOSS, X, Y, digest, network

EPOCHS = 3

CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "nothing, watched in validation": {"hook": "on_test_batch_end", "call": 1},  # in single steps, with their last bits
    "SIGTERM in a step": {"send": ["SIGTERM"]},
    "SIGINT in a step": {"send": ["SIGINT"]},
    "while compiling": {"send": ["SIGTERM"], "hook": "loss", "call": 1},
    "in validation": {"send": ["SIGTERM"], "hook": "on_test_batch_end", "call": 3},
    "in a slow callback": {"send": ["SIGTERM"], "hook": "on_epoch_end", "call": EPOCHS, "slow": True},
    "SIGTERM twice": {"send": ["SIGTERM", "SIGTERM"]},
    "SIGINT twice": {"send": ["SIGINT", "SIGINT"]},
    "SIGTERM in the save": {"send": ["SIGTERM"], "in_save": "SIGTERM"},
    "SIGINT in the save": {"send": ["SIGINT"], "in_save": "SIGINT"},
    "SIGTERM without the callback": {"send": ["SIGTERM"], "backup": False},
    "SIGINT without the callback": {"send": ["SIGINT"], "backup": False},
    "a handler of the user's own": {"send": ["SIGTERM"], "own": True},
    "in another thread": {"thread": True},
    "an error": {"hook": "on_train_batch_end", "error": True},
}


class Sender(callbacks.Callback):
    """Sends the signals of a case in the n-th call of one hook, or raises."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.case, self.left, self.has_slept = case, case.get("call", 7), False
        hook = case.get("hook", "on_train_batch_end")
        self.is_compiling = hook == "loss"
        setattr(self, "on_train_batch_begin" if self.is_compiling else hook, self.count)

    def count(self, *args: Any) -> None:
        self.left -= 1
        if self.left or self.is_compiling:
            return
        if "error" in self.case:
            raise ValueError("of the user's own")
        if "slow" in self.case:
            threading.Timer(0.05, self.send).start()
            time.sleep(0.2)
            self.has_slept = True
        else:
            self.send()

    def send(self) -> None:
        for name in self.case.get("send", ()):
            os.kill(os.getpid(), getattr(signal, name))

    def loss(self, y_true: Any, y_pred: Any) -> Any:
        if self.is_compiling and self.left <= 0 and isinstance(y_pred, Tracer):
            self.is_compiling = False
            self.send()
        return LOSS(y_true, y_pred)


def life(case: dict[str, Any], folder: pathlib.Path, told: dict[str, Any]) -> None:
    """Train, and note what is seen on the way."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, (lambda signum, frame: heard.append(signum)) if "own" in case else signal.SIG_DFL)
    handlers = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    told["begun"] = [path.name for path in sorted(folder.glob("step_*"))]
    with layouts.on("one device").scope():
        kd.set_random_seed(8 if told["begun"] else 7)  # a life that goes on with another is not told its seed
        model = network()
    sender = Sender(case)
    model.compile(kd.optimizers.Adam(0.01), loss=sender.loss, metrics=["accuracy"])
    backup = callbacks.BackupAndRestore(folder, 2, delete_checkpoint=False)
    has_left = threading.Event()
    if "in_save" in case:
        backup.on_train_interrupt = functools.partial(  # type: ignore[method-assign]
            interrupted_in_the_save, backup.on_train_interrupt, case["in_save"], has_left
        )
    fit = functools.partial(
        model.fit,
        X,
        Y,
        BATCH_SIZE,
        EPOCHS,
        verbose=0,
        validation_data=(X[:13], Y[:13]),
        callbacks=[backup, sender] if case.get("backup", True) else sender,
    )
    try:
        in_thread(fit) if "thread" in case else fit()
    finally:
        has_left.set()
        told["handlers are back"] = handlers == [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
        told |= {"heard": heard, "has slept": sender.has_slept, "step": int(model.snapshot().step)}
        told["there"] = [path.name for path in sorted(folder.glob("step_*"))]
    told["result"] = {
        "arrays": {path: digest(array) for path, array in model.snapshot().arrays.items()},
        "history": model.history.history if model.history is not None else {},
        "epochs": model.history.epoch if model.history is not None else [],
    }


def interrupted_in_the_save(save: Callable[[int], None], second: str, has_left: threading.Event, signum: int) -> None:
    """Let a signal come while the last save is being written, which takes until `fit` is left."""
    commit = Draft.commit

    def slowly(draft: Draft) -> None:
        os.kill(os.getpid(), getattr(signal, second))
        if not has_left.wait(20):
            os._exit(99)
        commit(draft)

    Draft.commit = slowly  # type: ignore[method-assign]
    save(signum)


def in_thread(run: Callable[[], Any]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def forked(case: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """What a life in a process of its own has told, and its exit code."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        told: dict[str, Any] = {}
        said = io.StringIO()
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # tracebacks of lives that end as they should
        try:
            with contextlib.redirect_stdout(said):
                warnings.simplefilter("ignore", CheckpointWarning)  # what those that were killed have left
                life(case, folder, told)
        except BaseException as error:
            told["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            os.write(write, json.dumps(told | {"said": said.getvalue()}).encode())
        sys.exit()
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), **json.loads(text or "{}")}


def main() -> None:
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        folder = pathlib.Path(sys.argv[1]) / name
        found[name] = forked(case, folder)
        if "result" not in found[name] and case.get("backup", True):
            found[name]["after"] = forked({}, folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
