"""Training on real text, with packing, accumulation, remat and mixed precision, as a hand-written loop in JAX trains.

`tests/resuming/program.py` kills this training.
"""

import jax
import numpy as np
import pytest

import keras_dist as kd
from tests import layouts, processes
from tests.pretrained import by_hand, python_source

BATCH_SIZE, ACCUMULATED, UPDATES, RATE = 8, 2, 8, 1e-3
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 3e-4}
"""In bfloat16, gradients of programs that add in another order differ in their last bits, as on two meshes, so that
losses differ by 1e-4 after some updates. At the same weights they do not, and each loss is compared so as well."""


@pytest.fixture(scope="module")
def rows():
    rows = python_source.packed()
    print(rows)  # with its efficiency
    assert rows.efficiency > 0.97
    return rows


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("where", ["data=8,model=1", "data=2,model=4", "fully data=2,model=4"])
def test_the_loss_curve_is_that_of_a_loop_by_hand(where, dtype, rows):
    with layouts.on(where, python_source.RULES).scope():
        kd.set_random_seed(0)
        model = python_source.decoder(dtype)
    model.compile(kd.optimizers.Adam(RATE, gradient_accumulation_steps=ACCUMULATED), loss="causal_lm")
    model.build((None, python_source.LENGTH))
    weights = {variable.path: variable.numpy() for variable in model.variables}
    before = []  # the weights before each update: an epoch is one
    keep = kd.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: before.append({each.path: each.value.copy() for each in model.variables})
    )
    options = {"steps_per_epoch": ACCUMULATED, "shuffle": False, "verbose": 0, "callbacks": [keep]}
    history = model.fit(rows, None, BATCH_SIZE, UPDATES, **options).history
    numbers = np.arange(UPDATES * ACCUMULATED * BATCH_SIZE).reshape(UPDATES, -1)
    batches = [jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[number] for number in part)) for part in numbers]
    expected = by_hand.losses(weights, batches, dtype.removeprefix("mixed_"), RATE)
    np.testing.assert_allclose(history["loss"], expected, rtol=TOLERANCES[dtype])
    same = by_hand.losses_at(before, batches, dtype.removeprefix("mixed_"))
    np.testing.assert_allclose(history["loss"], same, rtol=1e-5)
    assert expected[-1] < expected[0] - 0.3


@pytest.mark.parametrize("where", ["data=8,model=1", "data=2,model=4", "fully data=2,model=4"])
def test_in_bfloat16_gradients_are_as_exact_as_those_by_hand(where, rows):
    """The first difference between the curves is here: sums in another order, of values rounded to 8 bits."""
    with layouts.on(where, python_source.RULES).scope():
        kd.set_random_seed(0)
        model = python_source.decoder("mixed_bfloat16")
    model.compile(kd.optimizers.SGD(1.0), loss="causal_lm")
    model.build((None, python_source.LENGTH))
    weights = {variable.path: variable.numpy() for variable in model.variables}
    batch = jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[number] for number in range(BATCH_SIZE)))
    loss = model.train_on_batch(*batch)
    after = {variable.path: variable.numpy() for variable in model.variables}
    by_hands = jax.jit(jax.value_and_grad(by_hand.loss), static_argnums=2)
    (_, exact), (expected, by_them) = (by_hands(weights, batch, dtype) for dtype in ("float32", "bfloat16"))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)

    def error(found):
        return np.sqrt(sum(np.square(found[path] - exact[path]).sum() for path in exact))

    ours, theirs = error({path: weights[path] - after[path] for path in exact}), error(by_them)
    between = np.sqrt(sum(np.square(weights[path] - after[path] - by_them[path]).sum() for path in exact))
    size = error({path: 0 for path in exact})
    print(f"{where}: errors {ours / size:.2e}, by hand {theirs / size:.2e}, between them {between / size:.2e}")
    assert 0 < ours <= 1.1 * theirs < 0.02 * size


PROCESSES = """
import keras_dist as kd
from tests.pretrained import python_source

class Reads(list):
    def __getitem__(self, number):
        read.append(number)
        return super().__getitem__(number)

read, names = [], kd.list_devices()
texts = Reads(text[:python_source.LENGTH] for text in python_source.texts("*.py")[:20])
rows = kd.data.pack(texts, python_source.LENGTH)  # a row each

def losses(devices):
    with kd.DataParallel(devices=devices).scope():
        kd.set_random_seed(0)
        model = python_source.decoder("float32")
    model.compile("sgd", loss="causal_lm")
    read.clear()
    return model.fit(rows, None, 8, 2, shuffle=False, verbose=0).history["loss"]

np.testing.assert_allclose(losses(names), losses(names[2 * process : 2 * process + 1]), rtol=1e-5)
losses(names)
own = [number for start in (0, 8) for number in range(start + 4 * process, start + 4 * process + 4)]
own += [16 + 2 * process, 17 + 2 * process]
assert read[-10:] == own, read  # rows that the processes compare are read before
"""


@pytest.mark.multiprocess
def test_each_process_reads_the_sequences_of_its_rows_once_an_epoch():
    processes.run(PROCESSES)
