"""Trainings that get signals: `python -m tests.resuming.interruptions FOLDER`.

Each chain of cases is a process, a fork of one that has imported everything and started nothing, and ends as its last
case ends. Those that were interrupted are then started again, in a process of their own. It prints, as JSON, what each
case has told, the exit code of the last one of a chain (minus the signal that killed it), and what came of those that
were started again.
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
from keras_dist.checkpoint import Stored
from keras_dist.checkpoint.folder import Draft
from keras_dist.errors import CheckpointWarning
from tests import forks, layouts
from tests.networks import LOSS, blobs
from tests.resuming.program import BATCH_SIZE, digest, network

X, Y = blobs(50)
EPOCHS = 3

CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "an error": {"hook": "on_train_batch_end", "error": True},
    "a handler of the user's own": {"send": ["SIGTERM"], "own": True},
    "in another thread": {"thread": True},
    "SIGTERM in a step": {"send": ["SIGTERM"]},
    "SIGINT in a step": {"send": ["SIGINT"]},
    "while compiling": {"send": ["SIGTERM"], "hook": "loss", "call": 1},
    "in validation": {"send": ["SIGTERM"], "hook": "on_test_batch_end", "call": 2},
    "in a slow callback": {"send": ["SIGTERM"], "hook": "on_epoch_end", "call": EPOCHS, "slow": True},
    "SIGTERM twice": {"send": ["SIGTERM", "SIGTERM"]},
    "SIGINT twice": {"send": ["SIGINT", "SIGINT"]},
    "SIGTERM in the save": {"send": ["SIGTERM"], "in_save": "SIGTERM"},
    "SIGINT in the save": {"send": ["SIGINT"], "in_save": "SIGINT"},
    "SIGTERM without the callback": {"send": ["SIGTERM"], "backup": False},
    "SIGINT without the callback": {"send": ["SIGINT"], "backup": False},
}
CHAINS = [
    ["nothing", "an error", "a handler of the user's own", "in another thread", "in validation", "SIGTERM in a step"],
    ["in a slow callback", "SIGINT twice", "SIGINT in a step", "SIGTERM twice"],
    ["while compiling", "SIGINT without the callback"],
    ["SIGTERM in the save"],
    ["SIGINT in the save"],
    ["SIGTERM without the callback"],
]


class Sender(callbacks.Callback):
    """Sends the signals of a case in the n-th call of one hook, or raises."""

    of_this_life: "Sender"

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.case, self.left, self.has_slept = case, case.get("call", 7), False
        hook = case.get("hook", "on_train_batch_end")
        self.is_compiling = hook == "loss"
        Sender.of_this_life = self
        self.hook = "on_train_batch_begin" if self.is_compiling else hook

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.count("on_train_batch_begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("on_train_batch_end")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("on_test_batch_end")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count("on_epoch_end")

    def count(self, hook: str) -> None:
        self.left -= hook == self.hook
        if hook != self.hook:
            return
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

    def look(self, y_pred: Any) -> None:
        if self.is_compiling and self.left <= 0 and isinstance(y_pred, Tracer):
            self.is_compiling = False
            self.send()


def loss(y_true: Any, y_pred: Any) -> Any:
    Sender.of_this_life.look(y_pred)
    return LOSS(y_true, y_pred)


def compiled(seed: int) -> kd.Model:
    with layouts.on("one device").scope():
        kd.set_random_seed(seed)
        model = network()
    model.compile(kd.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return model


def fit(model: kd.Model, *watching: callbacks.Callback) -> None:
    options = {"validation_data": (X[:13], Y[:13]), "validation_batch_size": 13}
    model.fit(X, Y, BATCH_SIZE, EPOCHS, verbose=0, callbacks=list(watching), **options)


def result_of(model: kd.Model) -> dict[str, Any]:
    history = model.history
    assert history is not None
    arrays = {path: digest(array) for path, array in model.snapshot().arrays.items()}
    return {"arrays": arrays, "history": history.history, "epochs": history.epoch}


def life(model: kd.Model, case: dict[str, Any], folder: pathlib.Path, told: dict[str, Any]) -> None:
    """Train, and note what is seen on the way."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, (lambda signum, frame: heard.append(signum)) if "own" in case else signal.SIG_DFL)
    handlers = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    sender = Sender(case)
    backup = callbacks.BackupAndRestore(folder, 3, delete_checkpoint=False)
    has_left = threading.Event()
    if "in_save" in case:
        backup.on_train_interrupt = functools.partial(  # type: ignore[method-assign]
            interrupted_in_the_save, backup.on_train_interrupt, case["in_save"], has_left
        )
    train = functools.partial(fit, model, *([backup] if case.get("backup", True) else []), sender)
    try:
        in_thread(train) if "thread" in case else train()
    finally:
        has_left.set()
        told["handlers are back"] = handlers == [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
        told |= {"heard": heard, "has slept": sender.has_slept, "step": int(model.snapshot().step)}
        told["there"] = [path.name for path in sorted(folder.glob("step_*"))]
    told["result"] = result_of(model)


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


def lives(chain: list[str], folder: pathlib.Path, tell: Callable[[Any], None]) -> None:
    """Live one life after the other; the last one ends the process."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # tracebacks of lives that end as they should
    model = compiled(seed=7)
    model.save(folder.with_name(f"born {chain[0]}"))
    for name in chain:
        told: dict[str, Any] = {}
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                model.restore(Stored(folder.with_name(f"born {chain[0]}")))
                life(model, CASES[name], folder / name, told)
        except BaseException as error:
            told["error"] = f"{type(error).__name__}: {error}"
            if name == chain[-1]:
                raise
        finally:
            tell([name, told | {"said": said.getvalue()}])


def started_again(names: list[str], folder: pathlib.Path, tell: Callable[[Any], None]) -> None:
    """Let trainings go on, one after the other, in a model that is not told their seed."""
    model = compiled(seed=8)
    for name in names:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)  # what those that were killed have left
            fit(model, callbacks.BackupAndRestore(folder / name, 6), Sender({}))
        tell([name, {"said": said.getvalue(), "result": result_of(model)}])


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    found: dict[str, Any] = {name: {} for name in CASES}
    for chain in CHAINS:
        code, told = forks.run(functools.partial(lives, chain, folder))
        found |= dict(told)
        found[chain[-1]]["code"] = code
    interrupted = [name for name in CASES if (folder / name).exists() and "result" not in found[name]]
    code, told = forks.run(functools.partial(started_again, interrupted, folder))
    assert code == 0
    print(json.dumps({"lives": found, "started again": dict(told)}))


if __name__ == "__main__":
    main()
