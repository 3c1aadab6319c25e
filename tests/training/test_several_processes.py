"""Training in a job of two real processes, with two fake devices each, as in one process alone."""

import pytest

from tests import processes

SETUP = """
import keras_dist as kd
from keras_dist import layers
from keras_dist.data import PyDataset
from keras_dist.errors import DataError

names = kd.list_devices()
alone = kd.DataParallel(devices=names[2 * process : 2 * process + 1])
interleaved = [names[0], names[2], names[1], names[3]]
draws = np.random.default_rng(0)
X, Y = draws.normal(size=(22, 3)).astype("f4"), draws.normal(size=(22, 2)).astype("f4")  # batches of 8, 8 and 6


def on(devices, data=4, **options):
    mesh = kd.DeviceMesh((data, 4 // data), ("data", "model"), devices)
    rules = kd.LayoutMap(mesh)
    rules["d1/kernel"] = (None, "model")
    return kd.ModelParallel(rules, "data", **options)


def model_on(distribution, **options):
    with distribution.scope():
        kd.random.set_random_seed(1)
        model = kd.Sequential([layers.Input((3,)), layers.Dense(4, "relu", name="d1"), layers.Dense(2)])
        model.compile("sgd", "mse", **options)
    return model


def results(distribution, x=X, y=Y, batch_size=8, steps="auto", test=(X, Y), **arguments):
    model = model_on(distribution, steps_per_execution=steps)
    history = model.fit(x, y, batch_size, 2, verbose=0, **arguments).history
    losses = model.evaluate(*test, batch_size=batch_size, verbose=0)
    return [*history.values(), losses, model.predict(test[0], batch_size, verbose=0)]


def check_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def reads(rows):
    # examples by number that note what is read
    class Reads:
        def __init__(self):
            self.numbers = []
        def __len__(self):
            return rows
        def __getitem__(self, index):
            self.numbers.append(index)
            return X[index], Y[index]
    return Reads()


class Batches(PyDataset):
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]
"""

SHARES = """
expected = results(alone, validation_data=(X, Y))
for distribution, steps in ((on(interleaved), 2), (on(interleaved, 2), "auto")):
    check_same(results(distribution, steps=steps, validation_data=(X, Y)), expected)
own = {0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}[process]  # of each 8 rows
examples = reads(22)
expected = results(alone, shuffle=False)
check_same(results(on(interleaved), examples, None, shuffle=False), expected)
of_epoch = [row for start in (0, 8) for row in [start + n for n in own]] + [16 + n for n in own if n < 6]
of_epoch += [21] * (process == 1)  # stands for the padding, which is all of rows 6 and 7
assert examples.numbers[-len(of_epoch):] == of_epoch, examples.numbers
model, reference = model_on(on(names)), model_on(alone)
history = model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history
check_same(history.values(), expected[:1])
for rows, size in ((20 + process, 8), (20, 8 * (1 + process))):
    try:
        model.fit(X[:rows], Y[:rows], size, verbose=0)
    except DataError as error:
        assert "do not go through their data alike" in str(error), error
    else:
        raise AssertionError("other rows or batches were not noticed")
"""

OWN = """
mine = np.arange(16).reshape(4, 2, 2)[:, process].reshape(-1)  # two rows of each four
*history, losses, outputs = results(alone, X[:16], Y[:16], 4, shuffle=False, test=(X[:16], Y[:16]))
found = results(
    on(interleaved, auto_shard_dataset=False), X[mine], Y[mine], 2, shuffle=False, test=(X[mine], Y[mine])
)
check_same(found, [*history, losses, outputs[mine]])
batches = ((X[mine[start : start + 2]], Y[mine[start : start + 2]]) for start in range(0, 8, 2))
model = model_on(on(names, auto_shard_dataset=False))
model.fit(batches, verbose=0)
reference = model_on(alone)
reference.fit(X[:16], Y[:16], 4, shuffle=False, verbose=0)
check_same([model.predict_on_batch(X[mine])], [reference.predict_on_batch(X[mine])])
check_same([model.train_on_batch(X[mine], Y[mine])], [reference.train_on_batch(X[:16], Y[:16])])
try:
    model.fit(X[:7], Y[:7], 4, verbose=0)
except DataError as error:
    assert "multiple of 2 rows" in str(error), error
else:
    raise AssertionError("uneven batches were not noticed")
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("program", [SHARES, OWN], ids=["shares of the same rows", "rows of their own"])
def test_two_processes_train_as_one(program):
    processes.run(f"{SETUP}\n{program}")
