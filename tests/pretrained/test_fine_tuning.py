"""Training on real text, with packing, accumulation, remat and mixed precision, as a hand-written loop in JAX trains.

`tests/resuming/program.py` kills this training.
"""

import numpy as np
import pytest

from tests import processes
from tests.pretrained import python_source

MESHES = ["data=8,model=1", "data=2,model=4", "fully data=2,model=4"]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("where", MESHES[::-1])
def test_the_loss_curve_is_that_of_a_loop_by_hand(where):
    losses, expected = python_source.curves(where, "float32")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert expected[-1] < expected[0] - 0.3


MIXED = """
import os
os.environ["XLA_FLAGS"] += " --xla_allow_excess_precision=false"
from tests.pretrained import python_source
losses, expected = python_source.curves(sys.argv[4], "mixed_bfloat16")
np.testing.assert_allclose(losses, expected, rtol=1e-5)
assert expected[-1] < expected[0] - 0.3
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("where", MESHES)
def test_so_it_is_in_bfloat16_where_xla_rounds_as_written(where):
    """XLA keeps results in float32 within fused operations, unless told not to, and fuses those of two programs
    otherwise: 1e-4 between the losses after some updates."""
    processes.run(MIXED, where, processes=1, devices=8)


def test_packed_sequences_leave_little_padding():
    assert python_source.packed().efficiency > 0.97


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
