"""Training in a job of two real processes, with two fake devices each, as in one process alone."""

import pytest

from tests import processes

SETUP = """
import tempfile
import keras_dist as kd
from flax import nnx
from keras_dist import layers
from keras_dist.data import PyDataset
from keras_dist.errors import ClusterError, DataError

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


def model_on(distribution, steps="auto"):
    with distribution.scope():
        kd.random.set_random_seed(1)
        model = kd.Sequential([layers.Input((3,)), layers.Dense(4, "relu", name="d1"), layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=steps)
    return model


reference = model_on(alone)
initial = reference.get_weights()


def results(model, x=X, y=Y, batch_size=8, test=(X, Y), **arguments):
    model.set_weights(initial)
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
expected = results(reference, validation_data=(X, Y), seed=0)
model = model_on(on(interleaved), 2)
for distributed in (model, model_on(on(interleaved, 2)), model_on(kd.FullySharded(kd.DeviceMesh("data=4")))):
    check_same(results(distributed, validation_data=(X, Y), seed=0), expected)
own = {0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}[process]  # of each 8 rows
examples = reads(22)
expected = results(reference, shuffle=False)
check_same(results(model, examples, None, shuffle=False), expected)
of_epoch = [row for start in (0, 8) for row in [start + n for n in own]] + [16 + n for n in own if n < 6]
of_epoch += [21] * (process == 1)  # stands for the padding, which is all of rows 6 and 7
assert examples.numbers[-len(of_epoch):] == of_epoch, examples.numbers
model = model_on(on(names))
history = model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history
check_same(history.values(), expected[:1])
for rows, size in ((20 + process, 8), (20, 8 * (1 + process))):
    try:
        model.fit(X[:rows], Y[:rows], size, verbose=0)
    except ClusterError as error:
        assert "must run the same program" in str(error), error
    else:
        raise AssertionError("other rows or batches were not noticed")
"""

ON_OWN_DEVICES = """
own = model_on(kd.DataParallel(devices=names[2 * process : 2 * process + 2]))
own.set_weights(initial)
reference.set_weights(initial)
x, y = X[:7], Y[:7]
for of in (lambda m: m.train_on_batch(x, y), lambda m: m.test_on_batch(x, y), lambda m: m.predict_on_batch(x)):
    check_same([of(own)], [of(reference)])
check_same([own.predict(x, 4, verbose=0)], [reference.predict(x, 4, verbose=0)])
first = model_on(kd.DataParallel(devices=names[:1]))
with tempfile.TemporaryDirectory() as folder:
    manager = kd.checkpoint.CheckpointManager(first, folder + "/states")
    for save in (manager.save, lambda: first.save(folder + "/model")):
        try:
            save()
        except ClusterError as error:
            assert "a mesh without a device of process 1" in str(error), error
        else:
            raise AssertionError("process 1 has no part of what was saved")
    manager.close()
"""

OWN = """
X, Y = X[:16], Y[:16]
mine = np.arange(16).reshape(4, 2, 2)[:, process].reshape(-1)  # two rows of each four
mine_x, mine_y = X[mine], Y[mine]
*history, losses, outputs = results(reference, X, Y, shuffle=False, test=(X, Y))
model = model_on(on(interleaved, auto_shard_dataset=False))
found = results(model, mine_x, mine_y, 4, shuffle=False, test=(mine_x, mine_y))
check_same(found, [*history, losses, outputs])
check_same([model.predict(mine_x, 4, verbose=0, local=True)], [outputs[mine]])
batches = ((mine_x[start : start + 4], mine_y[start : start + 4]) for start in range(0, 8, 4))
model.fit(batches, verbose=0)
reference.fit(X, Y, 8, shuffle=False, verbose=0)
outputs = reference.predict_on_batch(X)
placed = np.arange(16).reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).reshape(-1)  # a batch of 16 rows has shards of four
check_same([model.predict_on_batch(mine_x)], [outputs[placed]])
check_same([model.predict_on_batch(mine_x, local=True)], [outputs[mine]])
check_same([model.train_on_batch(mine_x, mine_y)], [reference.train_on_batch(X, Y)])
try:
    model.fit(X[:7], Y[:7], 4, verbose=0)
except DataError as error:
    assert "must be a multiple of 2" in str(error), error
else:
    raise AssertionError("uneven batches were not noticed")
"""

OUTPUTS = """
class Sums(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(3, 2, rngs=rngs)
    def __call__(self, x):
        return {"sum": self.dense(x), "both": (x[:, 0], x * 2)}


def outputs_of(distribution, x, **arguments):
    with distribution.scope():
        kd.random.set_random_seed(1)
        model = kd.Model.from_nnx(Sums)
    seen = []
    watch = kd.callbacks.LambdaCallback(on_predict_batch_end=lambda batch, logs: seen.append(logs["outputs"]))
    outputs = jax.tree.leaves(model.predict(x, verbose=0, callbacks=[watch], **arguments))
    for output, *parts in zip(outputs, *map(jax.tree.leaves, seen), strict=True):
        np.testing.assert_array_equal(output, np.concatenate(parts))
    return outputs


x = X[:21]  # batches of 8, 8 and 5 rows
expected = outputs_of(alone, x)
assert [output.shape for output in expected] == [(21,), (21, 3), (21, 2)]
for distribution, own in (
    (on(interleaved), ([0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20], [2, 3, 6, 7, 10, 11, 14, 15, 18, 19])[process]),
    (on(names, 2), ([0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18], [4, 5, 6, 7, 12, 13, 14, 15, 19, 20])[process]),
    (on(interleaved, 2), [*range(21)]),
):
    check_same(outputs_of(distribution, x, batch_size=8), expected)
    check_same(outputs_of(distribution, x, batch_size=8, local=True), [output[own] for output in expected])
batches = (x[start : start + 8] for start in range(0, 21, 8))
own = [row for row in range(16) if row // 2 % 2 == process]
check_same(outputs_of(on(interleaved), batches, steps=2, local=True), [output[own] for output in expected])
try:
    outputs_of(on(interleaved), x, local=process == 0)
except ClusterError as error:
    assert "local: True in process 0 but False in process 1" in str(error), error
else:
    raise AssertionError("that the processes want other rows was not noticed")
"""

WITHOUT_ROWS = """
class Aux(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(3, 2, rngs=rngs)
    def __call__(self, x):
        return {"aux": jax.numpy.mean(x), "table": self.dense.kernel[...], "y": x * 2}


for distribution in (on(interleaved), on(interleaved, 2)):
    with distribution.scope():
        model = kd.Model.from_nnx(Aux)
    for local in (False, True):
        found = model.predict(X, 8, verbose=0, local=local)
        check_same([found["aux"]], [[X[:8].mean(), X[8:16].mean(), X[16:].mean()]])
        assert found["table"].shape == (3, 3, 2)
        assert found["y"].shape[0] == 22 or local
    assert model.predict_on_batch(X[:8])["aux"].shape == ()
"""


@pytest.mark.multiprocess
def test_two_processes_train_as_one_on_shares_of_the_same_rows_and_on_rows_of_their_own():
    processes.run(f"{SETUP}\n{SHARES}\n{OUTPUTS}\n{WITHOUT_ROWS}\n{ON_OWN_DEVICES}\n{OWN}")
