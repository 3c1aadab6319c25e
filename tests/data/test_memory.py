"""Data that is larger than what training may take: a memory-mapped file is read, and not kept."""

import sys
import textwrap

import pytest

from tests import forks
from tests.soak import LARGE, repeated

SCRIPT = """
    import sys
    import keras_dist as kd
    kd.use_cpu_devices(2)
    import numpy as np

    def own_bytes():
        '''What the process has, without the pages of files.'''
        with open("/proc/self/status") as status:
            kib = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
        return kib * 1024

    x = np.memmap(sys.argv[1], np.float32, "w+", shape=(int(sys.argv[2]), 256))
    y = np.zeros(len(x), np.float32)
    with kd.DataParallel().scope():
        model = kd.Sequential([kd.Input((256,)), kd.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x[:16384], y[:16384], batch_size=8192, verbose=0)

    peak = before = own_bytes()

    class Look(kd.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            global peak
            peak = max(peak, own_bytes())

    history = model.fit(x, y, batch_size=8192, verbose=0, callbacks=[Look()])
    print(round((peak - before) / 2**20))
"""


ROWS = 2**20 if LARGE else 2**18  # of 1 KiB


@repeated
@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells of a process's memory in another way")
def test_an_epoch_over_a_large_file_takes_less_than_150_mebibytes(tmp_path):
    done = forks.python("-c", textwrap.dedent(SCRIPT), tmp_path / "x", ROWS)
    assert done.returncode == 0, done.stderr
    assert 0 <= int(done.stdout) < 150
