"""Saved positions: each is checked before an iterator is set to it, and other data never continue silently."""

import copy
import functools
import shutil

import grain
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.data import DataLoader, mix, pack
from keras_dist.errors import DataError, ModelError


def few(first):
    return [[first + number] * 4 for number in range(20)]


def mixed(names="ab", weights=(2, 1), seed=0):
    sources = {name: functools.partial(iter, few(100 * place)) for place, name in enumerate(names)}
    return mix(sources, weights, seed=seed)


SEQUENCES = {"list": few(0), "grain": grain.MapDataset.source(few(0)).to_iter_dataset()}
DATA = {
    "mixture": lambda kind: mix({"a": lambda: iter(few(0)), "b": SEQUENCES[kind]}, seed=None),
    "packed": lambda kind: pack(lambda: iter(SEQUENCES[kind]), 8, batch_size=2),
    "packed mixture": lambda kind: pack(DATA["mixture"](kind), 3, batch_size=1),
    "rows": lambda kind: DataLoader(np.arange(9), batch_size=2, shuffle=True),
    "numbered mixture": lambda kind: DataLoader(mix({"a": np.arange(9), "b": np.arange(4)}, seed=None), batch_size=2),
    "loader": lambda kind: DataLoader(pack(DATA["mixture"](kind), 8, batch_size=2)),
}
ODD = (None, "x", -1, 2**70, 1.5, {"a": 1}, 10**6)


def places(state, at=()):
    """Yield the paths to all entries of nested dicts."""
    yield at
    for name, value in state.items() if isinstance(state, dict) else ():
        yield from places(value, (*at, name))


def forged(state):
    """Yield states with another value in one place, or without it."""
    for *path, last in filter(None, places(state)):
        for value in (*ODD, "missing"):
            other = copy.deepcopy(state)
            inner = functools.reduce(lambda one, name: one[name], path, other)
            if value == "missing":
                del inner[last]
            else:
                inner[last] = value
            if other != state:
                yield (*path, last), value, other
    yield from (((), value, value) for value in ODD)


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize("name", DATA)
def test_forged_states_are_refused(name, kind):
    begun = iter(DATA[name](kind))
    for _ in range(3):
        next(begun)
    state = begun.get_state()
    following = next(begun)
    again = iter(DATA[name](kind))
    again.set_state(copy.deepcopy(state))
    np.testing.assert_equal(next(again), following)
    free = {"seed", "epoch", "counter", "next_index"}  # numbers that are positions, too
    free |= {"batch", "rows"} if name == "loader" else set()  # the state of the iterator is the position
    for path, value, other in forged(state):
        with pytest.raises((DataError, StopIteration)) as error:
            later = iter(DATA[name](kind))
            later.set_state(other)
            next(later)
            is_none = path[-1] == "source" and not value  # the batches are read again
            assert is_none or (path[-1] in free and (isinstance(value, int) or path[-1] == "seed")), (path, value)
            raise StopIteration
        assert error.type is DataError or type(value) is int or not value, (path, value)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"names": "ac"}, r"source 1 \(b\): missing, .*\(c\): 1,.*\n.*\(b\): 1,.* source 1 \(c\): missing"),
        ({"names": "abc", "weights": (2, 1, 1)}, r"given: +weight of source 2 \(c\): 1, "),
        ({"names": "a", "weights": (1,)}, r"weight of source 1 \(b\): missing"),
        ({"names": "ba"}, r"source 0 \(b\): 2"),
        ({"weights": (1, 5)}, r"source 1 \(b\): 5\n.*source 1 \(b\): 1"),
        ({"seed": 1}, "seed: 1\n.*seed: 0"),
    ],
)
def test_another_mixture_is_named(other, words, packs):
    make = (lambda data: pack(data, 8, batch_size=2)) if packs else lambda data: data
    begun = iter(make(mixed()))
    next(begun)
    with pytest.raises(DataError, match=words) as error:
        iter(make(mixed(**other))).set_state(begun.get_state())
    assert "same sources, weights" in error.value.fix


class Stop(kd.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("is_stream", [False, True])
def test_fit_does_not_resume_with_another_mixture(is_stream, tmp_path):
    """The number of rows is the same: 12."""

    def data(weights):
        parts = {name: [(np.ones(2, "f4"), np.ones(1, "f4"))] * 8 for name in "ab"}
        mixture = mix(parts, weights)
        return DataLoader(mixture, batch_size=4) if is_stream else mixture

    def fit(weights, *callbacks):
        model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)])
        model.compile("sgd", "mse")
        backup = kd.callbacks.BackupAndRestore(tmp_path / ("1" if callbacks else "2"), save_freq=1, asynchronous=False)
        options = {} if is_stream else {"batch_size": 4}
        model.fit(data(weights), verbose=0, callbacks=[backup, *callbacks], **options)

    with pytest.raises(KeyboardInterrupt):
        fit((2, 1), Stop())
    shutil.copytree(tmp_path / "1", tmp_path / "2", ignore=shutil.ignore_patterns("*lock*"))
    with pytest.raises(ModelError, match=r"the batches differ.*\n.*\(a\)=1.*\n.*\(a\)=2"):
        fit((1, 2))
