"""Processes that are meant to have the same data are compared before they train."""

import ml_dtypes
import numpy as np
import pytest

from keras_dist.jobs.same_rows import SameRows, _digests
from tests.processes import run

PROGRAM = """
import keras_dist as kd
from keras_dist.jobs import rendezvous, same_rows

X, Y = np.arange(300, dtype="f4").reshape(100, 3) / 300, np.zeros((100, 1), "f4")
changed = X.copy()
changed[40] += process


def model_on(distribution):
    with distribution.scope():
        kd.set_random_seed(1)
        model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(1, name="d1")])
        model.compile("sgd", "mse")
        model.build()
    return model


def exchanges(call, *arguments, **options):
    before = count[0]
    call(*arguments, **options)
    return count[0] - before


def counting(self, number, mine, gathered=rendezvous.Rendezvous._gathered):
    count[0] += self._about.startswith("a comparison")
    return gathered(self, number, mine)


count, rendezvous.Rendezvous._gathered = [0], counting
model = model_on(kd.DataParallel())


def differ(told, call, *arguments, **options):
    before = model.get_weights()
    try:
        call(*arguments, **options)
    except kd.errors.ClusterError as error:
        assert "do not have the same data" in str(error) and all(one in str(error) for one in told), error
    else:
        raise AssertionError(told)
    np.testing.assert_equal(model.get_weights(), before)


def fit(x, y=Y, **options):
    return model.fit(x, y, batch_size=20, verbose=0, **options)


class Reads:
    def __init__(self, x):
        self.x = x
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index], Y[index]


class Stream:
    def __init__(self, x):
        self.batches = batches(x)
    def __iter__(self):
        return iter(self.batches)


def batches(x, size=20):
    return [(x[start : start + size], Y[start : start + size]) for start in range(0, 100, size)]
"""

SAMPLE = """
order = X[:: 1 - 2 * process]
both = "in process 0 but CRC-32C ", "in process 1"
differ(["data of fit", "row 0 of 100, the first of ", *both], fit, order)
differ(["row 6 of 100, the first of 30 that", *both], fit, np.concatenate([X[:1], X[1:] + process]))
differ(["row 0 of 100", *both], fit, X, Y + process)
differ(["row 0 of 100", *both], fit, X, sample_weight=np.ones(100, "f4") + process)
differ(["row 0 of 100", *both], model.fit, Reads(order), batch_size=20, verbose=0)
differ(["row 0 of batch 0", *both], model.fit, iter(batches(order)), verbose=0)
differ(["row 0 of batch 0", *both], model.evaluate, iter(batches(X + process)), verbose=0)
differ(["data of evaluate", "row 0 of 100", *both], model.evaluate, order, Y, verbose=0)
differ(["data of predict", "row 0 of 100", *both], model.predict, order, verbose=0)
differ(["batches of train_on_batch", "row 0 of batch 0", *both], model.train_on_batch, order, Y)
differ(["batches of test_on_batch", "row 0 of batch 0", *both], model.test_on_batch, order, Y)
differ(["batches of predict_on_batch", "row 0 of batch 0", *both], model.predict_on_batch, order)
rows = 20 + 20 * process
differ(["float32(20, 3)", "in process 0 but x float32(40, 3)"], model.test_on_batch, X[:rows], Y[:rows])
try:
    fit(X, validation_data=(order, Y))
except kd.errors.ClusterError as error:
    assert "validation data of fit" in str(error) and "row 0 of 100" in str(error), error
else:
    raise AssertionError("other validation data")

assert exchanges(fit, X, epochs=3) == 3
assert exchanges(fit, X, epochs=3, validation_data=(X, Y), validation_freq=2) == 4
assert exchanges(model.fit, Stream(X), epochs=3, verbose=0) == 3
assert exchanges(model.fit, iter(batches(X)), epochs=2, steps_per_epoch=2, verbose=0) == 2
assert exchanges(model.evaluate, X, Y, verbose=0) == exchanges(model.predict, X, verbose=0) == 1
model = model_on(kd.DataParallel())
assert [exchanges(model.train_on_batch, *batch) for batch in batches(X, 10)] == [1, 1, 0, 1, 0, 0, 0, 1, 0, 0]
"""

FULL = """
same_rows.choose_check("full")
differ(["row 40 of 100: CRC-32C ", *both], fit, changed)
differ(["row 40 of 100: CRC-32C ", *both], model.fit, Reads(changed), batch_size=20, verbose=0)
differ(["row 40 of 100: CRC-32C ", *both], model.predict, changed, verbose=0)
differ(["row 40 of batch 0", *both], model.test_on_batch, changed, Y)
assert exchanges(fit, X, epochs=2) == 2 and exchanges(model.fit, Stream(X), epochs=2, verbose=0) == 10
try:
    model.fit(iter(batches(changed)), verbose=0)
except kd.errors.ClusterError as error:
    assert "row 0 of batch 2" in str(error), error
else:
    raise AssertionError("one changed row")
"""

NOT_MEANT = """
same_rows.choose_check(False)
assert exchanges(fit, changed) == exchanges(model.train_on_batch, changed[:20], Y[:20]) == 0
same_rows.choose_check("full")
names = kd.list_devices()
model = model_on(kd.DataParallel(devices=names[2 * process : 2 * process + 2]))
assert exchanges(fit, X + process) == 0
model = model_on(kd.DataParallel(auto_shard_dataset=False))
assert exchanges(fit, X + process) == exchanges(model.fit, Stream(X + process), verbose=0) == 0
rules = kd.LayoutMap(kd.DeviceMesh((2, 2), ("data", "model"), [names[0], names[2], names[1], names[3]]))
model = model_on(kd.ModelParallel(rules, "data", auto_shard_dataset=False))  # both own the same rows
differ(["row 40 of 100: CRC-32C ", *both], fit, changed)
"""


@pytest.mark.multiprocess
def test_other_orders_and_values_are_found_in_samples_one_changed_row_by_a_full_comparison_and_own_rows_are_free():
    run("\n".join([PROGRAM, SAMPLE, FULL, NOT_MEANT]))


@pytest.mark.parametrize("dtype", ["int8", "float32", bool, ml_dtypes.bfloat16])
def test_a_digest_of_a_row_is_of_all_its_arrays(dtype):
    x, y = np.eye(4, 6, dtype=dtype).reshape(4, 3, 2), np.arange(4)
    alone, whole = _digests([x.copy(order="F"), y]), [_digests([x[i : i + 1], y[i : i + 1]]) for i in range(4)]
    assert [[one] for one in alone] == whole and len({*alone}) == 4
    assert _digests([x, y[::-1]])[0] != alone[0] == _digests([x, y, np.empty((4, 0))])[0]


def test_samples_are_the_same_in_all_processes_and_others_each_time():
    first, second = SameRows("fit", [(0, 1)]), SameRows("fit", [(0, 1)])
    samples = [first._sample(10**9) for _ in range(2)]
    np.testing.assert_equal([second._sample(10**9) for _ in range(2)], samples)
    assert {*samples[0]} & {*samples[1]} == {0, 10**9 - 1} and len(samples[0]) == 32
    assert first._sample(32).tolist() == list(range(32))
