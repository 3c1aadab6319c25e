"""Trainings that are interrupted go on, on other meshes: with the same numbers, and as if nothing had been."""

import contextlib
import functools

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import callbacks, checkpoint, layers
from keras_dist.errors import CheckpointError, CheckpointWarning, ModelError
from tests import layouts, sources
from tests.networks import CLASSES, FEATURES, HIDDEN, LOSS, blobs
from tests.soak import LARGE, ROUNDS, few

X, Y = blobs(30)  # three batches: what these tests cost is their saves
EPOCHS = 3


class Stop(Exception):
    """What interrupts a training."""


class Stopper(callbacks.Callback):
    """Interrupts a training at the n-th call of a hook; keeps the states before the first step and after each."""

    def __init__(self, hook=None, count=0):
        super().__init__()
        self.hook, self.left = hook, count
        self.states, self.batches = [], []

    def _count(self, hook):
        self.left -= hook == self.hook
        if hook == self.hook and not self.left:
            raise Stop

    def _look(self):
        arrays = self.model.snapshot().arrays
        arrays = {name: array for name, array in arrays.items() if not name.startswith("training/")}
        return {name: np.asarray(jax.random.key_data(a) if "key<" in str(a.dtype) else a) for name, a in arrays.items()}

    def on_epoch_begin(self, epoch, logs=None):
        self._count("epoch begin")

    def on_train_batch_begin(self, batch, logs=None):
        self.batches.append(batch)
        if not self.states:
            self.states.append(self._look())

    def on_train_batch_end(self, batch, logs=None):
        self.states.append(self._look())
        self._count("batch")

    def on_test_begin(self, logs=None):
        self._count("test")

    def on_epoch_end(self, epoch, logs=None):
        self._count("epoch end")

    def on_train_end(self, logs=None):
        self._count("end")


def born(where, seed=7, hidden=HIDDEN, metrics=("accuracy",)):
    layout = kd.DataParallel(devices=kd.list_devices()[:4]) if where == "four devices" else layouts.on(where)
    kd.set_random_seed(seed)
    with layout.scope():
        model = kd.Sequential(
            [
                kd.Input((FEATURES,)),
                layers.Dense(hidden, "tanh", name="d1"),
                layers.Dropout(0.25),
                layers.Dense(CLASSES, name="d2"),
            ]
        )
    model.compile(kd.optimizers.Adam(0.01), loss=LOSS, metrics=list(metrics))
    return model


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Makes models: those of one mesh and seed are one object, each time with the state in which it was born."""

    @functools.cache
    def kept(where, seed):
        model, folder = born(where, seed), tmp_path_factory.mktemp("born") / "model"
        model.save(folder)
        return model, checkpoint.Stored(folder)

    def reborn(where, seed=7):
        model, stored = kept(where, seed)
        model.restore(stored)
        return model

    return reborn


def life(model, folder, data, hook=None, count=0, watching=(), save_freq=2, **options):
    """Train until an interruption, if there is any: what has watched it, and the history."""
    args, given = data()
    stopper = Stopper(hook, count)
    backup = callbacks.BackupAndRestore(folder, save_freq, **options.pop("backup", {}))
    expected = pytest.raises(Stop) if hook else contextlib.nullcontext()
    options = {"epochs": EPOCHS, "verbose": 0, **given, **options}
    with expected:
        model.fit(*args, callbacks=[backup, *watching, stopper], **options)
    return stopper, model.history


def arrays():
    return (X, Y, 10), {}


def validated():
    return (X, Y, 10), {"validation_data": (X[:13], Y[:13]), "validation_batch_size": 13}


def endless():
    while True:
        yield from sources.cut((X, Y), 10)


IN_PARTS = {"steps_per_epoch": 2}
KINDS = {
    "arrays": validated,
    "PyDataset": lambda: ((sources.Batches((X, Y), 10),), {}),
    "generator": lambda: ((endless(),), IN_PARTS),
}
WAY = [("data=8,model=1", 3), ("four devices", 2), ("data=2,model=4", 3), ("one device", None)]
"""The meshes, and after how many batches a life there is interrupted, before the last one of them is saved."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory, network):
    """The history of a training that was not interrupted, and how many batches it had."""

    @functools.cache
    def train(kind):
        folder = tmp_path_factory.mktemp("whole")
        stopper, history = life(network("four devices"), folder, KINDS[kind], save_freq="epoch")
        return history.history, len(stopper.batches)

    return train


@pytest.mark.soak  # last bits
@pytest.mark.parametrize("kind", ["arrays"] if ROUNDS == 1 else few(KINDS, "arrays"))
def test_a_training_wanders_over_meshes(kind, whole, network, tmp_path):
    expected, batches = whole(kind)
    state, steps = None, []
    way = WAY if LARGE else WAY[1:] if kind == "arrays" else WAY[2:]
    for index, (where, count) in enumerate(way):
        model = network(where, 7 + index)
        hook = ("batch", count) if count else (None, 0)
        stopper, found = life(model, tmp_path / "backup", KINDS[kind], *hook, save_freq=1)
        if state is not None:
            for name, value in state.items():
                np.testing.assert_array_equal(stopper.states[0][name], value, err_msg=name)
        state = stopper.states[-2]  # the last one that was saved
        steps.append(len(stopper.batches))
    assert sum(steps) == batches + len(way) - 1
    assert found.epoch == list(range(EPOCHS)) and found.history.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found.history[name], values, atol=1e-5, rtol=0, err_msg=name)
    assert not (tmp_path / "backup").exists()


class Own(callbacks.Callback):
    """A callback of a user, with a memory."""

    def __init__(self):
        super().__init__()
        self.seen, self.total = [], np.zeros(2)

    def get_state(self):
        return {"seen": self.seen, "total": self.total}

    def set_state(self, state):
        self.seen, self.total = state["seen"], state["total"]

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch)
        self.total = self.total + np.array([logs["loss"], 1])


def watchers(folder):
    """Callbacks with a memory, by name."""
    folder.mkdir(exist_ok=True)
    return {
        "stopping": callbacks.EarlyStopping("loss", patience=2, min_delta=0.3, restore_best_weights=True),
        "plateau": callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=1.0, cooldown=1),
        "schedule": callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
        "best": callbacks.ModelCheckpoint(
            folder / "best-{epoch}.safetensors", "val_loss", save_best_only=True, save_weights_only=True
        ),
        "every": callbacks.ModelCheckpoint(
            folder / "every-{epoch}-{batch}.safetensors", save_weights_only=True, save_freq=4
        ),
        "csv": callbacks.CSVLogger(folder / "log.csv"),
        "board": callbacks.TensorBoard(folder / "board", update_freq=2),
        "own": Own(),
    }


def memory_of(watching, folder, model, history):
    """What is left of a training."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix == ".safetensors"]
    stopping, plateau = watching["stopping"], watching["plateau"]
    return {
        "stopping": [stopping.wait, stopping.best, stopping.best_epoch, stopping.stopped_epoch],
        "plateau": [plateau.wait, plateau.best, plateau.cooldown_counter],
        "best": watching["best"].best,
        "files": {path.name: path.read_bytes() for path in files if path.name.startswith("best")},
        "names": [path.name for path in files],
        "csv": (folder / "log.csv").read_text(),
        "board": watching["board"].get_state(),
        "own": [watching["own"].seen, watching["own"].total.tolist()],
        "history": history.history,
        "epochs": history.epoch,
        "rate": float(model.optimizer.learning_rate),
        "weights": [value.tobytes() for value in model.get_weights()],
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, network):
    folder = tmp_path_factory.mktemp("uninterrupted")
    model, watching = network("data=2,model=4"), watchers(folder / "seen")
    _, history = life(model, folder / "backup", validated, watching=watching.values(), save_freq=10**6, epochs=9)
    memory = memory_of(watching, folder / "seen", model, history)
    assert 3 < len(memory["epochs"]) < 9 and memory["rate"] < 0.005 and len(memory["files"]) > 1
    return memory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save_freq", "interruptions"),
    [(1, [("batch", 1), ("test", 1), ("end", 1)]), ("epoch", [("batch", 5), ("epoch end", 2), ("epoch begin", 2)])],
    ids=lambda value: str(value) if not isinstance(value, list) else " ".join(hook for hook, _ in value),
)
def test_callbacks_remember(interruptions, save_freq, uninterrupted, network, tmp_path):
    for hook, count in [*interruptions, (None, 0)]:
        has_begun = any((tmp_path / "backup").glob("step_*"))
        model = network("data=2,model=4", 8 if has_begun else 7)
        watching = watchers(tmp_path / "seen")
        options = {"watching": watching.values(), "save_freq": save_freq, "epochs": 9}
        _, history = life(model, tmp_path / "backup", validated, hook, count, **options)
    assert memory_of(watching, tmp_path / "seen", model, history) == uninterrupted


class TestOnceMore:
    @pytest.fixture(scope="class")
    @classmethod
    def two_fits(cls, tmp_path_factory, network):
        """The histories of two trainings in a row."""
        model = network("one device")
        folder = tmp_path_factory.mktemp("two_fits")
        return [life(model, folder / "backup", arrays)[1].history for _ in range(2)]

    @pytest.mark.slow
    def test_a_training_that_had_ended_has_nothing_left(self, tmp_path, two_fits, network):
        keep = {"backup": {"delete_checkpoint": False}, "save_freq": 3}
        first, model = network("one device"), network("four devices", 8)
        life(first, tmp_path, arrays, **keep)
        stopper, history = life(model, tmp_path, arrays, **keep)
        assert not stopper.batches and history.history == two_fits[0]
        for mine, theirs in zip(model.get_weights(), first.get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        longer, history = life(model, tmp_path, arrays, **keep, epochs=EPOCHS + 1)
        assert longer.batches == [0, 1, 2] and history.epoch == list(range(EPOCHS + 1))

    def test_one_callback_serves_several_trainings(self, tmp_path, two_fits, network):
        model = network("one device")
        backup, histories = callbacks.BackupAndRestore(tmp_path / "backup", 2), []
        for _ in range(2):
            stopper = Stopper("batch", 5)
            with pytest.raises(Stop):
                model.fit(*arrays()[0], epochs=EPOCHS, verbose=0, callbacks=[backup, stopper])
            histories.append(model.fit(*arrays()[0], epochs=EPOCHS, verbose=0, callbacks=backup).history)
        assert histories == two_fits

    def test_the_next_training_is_the_next_one_in_another_process_too(self, tmp_path, two_fits, network):
        life(network("one device"), tmp_path, arrays, "batch", 5)
        model = network("one device", 8)
        life(model, tmp_path, arrays)
        assert life(model, tmp_path, arrays)[1].history == two_fits[1]


class TestWhatDoesNotFit:
    @pytest.fixture(scope="class")
    @classmethod
    def interrupted(cls, tmp_path_factory, network):
        """The backup of a training in the middle of an epoch."""
        folder = tmp_path_factory.mktemp("interrupted") / "backup"
        life(network("one device"), folder, arrays, "batch", 5)
        return folder

    @pytest.mark.parametrize(
        ("data", "named"),
        [
            (lambda: ((X, Y, 9), {}), "batch_size=10"),
            (lambda: ((X[:20], Y[:20], 10), {}), "rows=30"),
            (lambda: ((X, Y, 10), IN_PARTS), "steps_per_epoch=None"),
            (lambda: ((sources.Batches((X, Y), 10),), {}), "batch_size=10"),
        ],
    )
    def test_other_batches(self, data, named, interrupted, network):
        model = network("one device")
        before = model.get_weights()
        with pytest.raises(ModelError, match="batches differ from the interrupted") as error:
            life(model, interrupted, data)
        assert named in error.value.expected
        for mine, theirs in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(mine, theirs)

    def test_other_metrics(self, interrupted):
        with pytest.raises(ModelError, match="loss and metrics differ from"):
            life(born("one device", metrics=("accuracy", "sparse_top_k_categorical_accuracy")), interrupted, arrays)

    def test_another_architecture(self, interrupted):
        with pytest.raises(CheckpointError, match="does not fit model") as error:
            life(born("one device", hidden=HIDDEN + 8), interrupted, arrays)
        listed = "\n".join(error.value.problems)
        for path in ("variables/d1/kernel", "variables/d1/bias", "variables/d2/kernel", "mu/d1/kernel", "nu/d2/kernel"):
            assert path in listed
        assert len(error.value.problems) == 9

    def test_other_callbacks(self, interrupted, network):
        with pytest.warns(CheckpointWarning, match="had a callback"):
            model = network("one device")
            folder = interrupted.with_name("callbacks")
            life(model, folder, arrays, "batch", 3, watching=[Own()])
            life(model, folder, arrays)

    def test_the_backup_is_still_there(self, interrupted):
        assert sorted(path.name for path in interrupted.iterdir()) == ["step_00000002", "step_00000004"]

    def test_it_is_no_model(self, interrupted):
        for path in (interrupted / "step_00000004", interrupted):  # of a directory the newest
            with pytest.raises(CheckpointError, match=r"step_00000004.*state of a training"):
                kd.models.load_model(path)
