"""Files of Keras in a job of several processes: the first writes, each reads its parts, and all raise alike."""

import pytest

from tests import processes

PROGRAM = """
import os
import pathlib
import keras_dist as kd
from keras_dist.distribution import sharded_init
from keras_dist.errors import ModelError
from keras_dist.storage import h5_files

if "SOAK" not in os.environ:
    sharded_init._CPU_OPTIONS["xla_backend_optimization_level"] = 0
folder = pathlib.Path(sys.argv[4])
draws = np.random.default_rng(0)
X, Y = draws.normal(size=(8, 4)).astype("f4"), draws.normal(size=(8, 2)).astype("f4")


def scope():
    return kd.FullySharded(kd.DeviceMesh((4,), ("data",))).scope()


def network():
    kd.random.set_random_seed(1)
    return kd.Sequential([kd.Input((4,)), kd.layers.Dense(4, "relu"), kd.layers.Dropout(0.3), kd.layers.Dense(2)])


def check_raises(kind, text, run):
    try:
        run()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"{text!r} was not told")


with scope():
    model = network()
    model.compile("adam", "mse")
    assert not model.weights[0].value.is_fully_addressable
    model.fit(X, Y, 8, verbose=0)
    model.save(folder / "m.keras")
    read = []
    whole = h5_files.H5Reader.read
    h5_files.H5Reader.read = lambda self, name, index=(): read.append(found := whole(self, name, index)) or found
    again = kd.models.load_model(folder / "m.keras")
    other = network()
    for path, size in (("w.weights.h5", None), ("w.weights.json", 100 / 1024**3)):
        model.save_weights(folder / path, max_shard_size=size)
        other.set_weights([np.zeros_like(value) for value in model.get_weights()])
        read.clear()
        other.load_weights(folder / path)
        np.testing.assert_equal(other.get_weights(), model.get_weights())
        assert sum(part.size for part in read) < sum(value.size for value in model.get_weights())
for one in (model, again):
    one.fit(X, Y, 8, verbose=0)
np.testing.assert_equal(again.get_weights(), model.get_weights())
slots = [[slot.numpy() for slot in one.optimizer.variables] for one in (again, model)]
np.testing.assert_equal(*slots)

def fails(*args):
    raise OSError(28, "No space left on device")
if process == 0:
    h5_files.H5Writer.write = fails
check_raises(OSError, "No space left", lambda: model.save_weights(folder / "w.weights.h5"))
check_raises(OSError, "No space left", lambda: model.save(folder / "m.keras"))
check_raises(ModelError, "exists", lambda: model.save_weights(folder / "w.weights.h5", overwrite=False))
other.load_weights(folder / "w.weights.h5")
assert len([path for path in folder.iterdir() if path.name.startswith(".")]) == 0
"""


@pytest.mark.multiprocess
def test_all_write_and_read_together(tmp_path):
    pytest.importorskip("h5py")
    processes.run(PROGRAM, tmp_path)
