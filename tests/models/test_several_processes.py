"""Weights that are sharded over the processes of a job: each reads its part, and the first one writes them."""

import pytest

from tests import processes

WEIGHTS = """
import os
import pathlib
import time
import keras_dist as kd
from keras_dist import layers
from keras_dist.callbacks import EarlyStopping, ModelCheckpoint, TensorBoard
from keras_dist.distribution import sharded_init
from keras_dist.errors import ModelError
from keras_dist.files import tensor_writer
from keras_dist.formats import h5_files

if "SOAK" not in os.environ:
    sharded_init._CPU_OPTIONS["xla_backend_optimization_level"] = 0
folder = pathlib.Path(sys.argv[4])
draws = np.random.default_rng(0)
X, Y = draws.normal(size=(22, 3)).astype("f4"), draws.normal(size=(22, 2)).astype("f4")
ONE_EACH = 1 / 1024**3


def network():
    mesh = kd.DeviceMesh((1, 4), ("data", "model"))
    rules = kd.LayoutMap(mesh)
    rules["d1/kernel"] = (None, "model")
    with kd.ModelParallel(rules, "data").scope():
        kd.random.set_random_seed(1)
        model = kd.Sequential([
            layers.Input((3,)), layers.Dense(4, "relu", name="d1"), layers.Dropout(0.3), layers.Dense(2, name="d2"),
        ])
        model.compile("adam", "mse", metrics=["mae"])
    return model


def check_raises(kind, text, run):
    try:
        run()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"{text!r} was not told")


def late(index, action):
    # whoever does not wait for this process has gone on when it acts
    def acts(*args):
        if process == index:
            time.sleep(0.3)
        return action(*args)
    return acts


# they are whole in every process
model = network()
kernel = model.weights[0]
assert kernel.path == "d1/kernel" and not kernel.value.is_fully_addressable
for shard in kernel.value.addressable_shards:
    np.testing.assert_array_equal(kernel.numpy()[shard.index], shard.data)
stopping = EarlyStopping("loss", patience=1, restore_best_weights=True, baseline=-1.0)
board = TensorBoard(folder / "board", histogram_freq=1)
model.fit(X, Y, 8, 4, verbose=0, callbacks=[stopping, ModelCheckpoint(folder / "last.safetensors"), board])
values = model.get_weights()
np.testing.assert_equal(values, stopping.best_weights)
slots = {slot.path: slot.numpy() for slot in model.optimizer.variables}
assert sum(slot.shape == (3, 4) and bool(slot.any()) for slot in slots.values()) == 2, slots.keys()

# files: whoever is ahead waits, and finds what was written
other = network()
tensor_writer._move = late(0, tensor_writer._move)
for name, options in (
    ("w.safetensors", {}),
    ("w.safetensors", {"max_shard_size": ONE_EACH}),
    ("w.weights.h5", {}),
    ("w.weights.json", {"max_shard_size": 100 * ONE_EACH}),
):
    model.save_weights(folder / name, **options)
    other.set_weights([np.zeros_like(value) for value in values])
    read, whole = [], h5_files.H5Reader.read
    h5_files.H5Reader.read = lambda self, name, index=(): read.append(found := whole(self, name, index)) or found
    other.load_weights(folder / name)
    h5_files.H5Reader.read = whole
    np.testing.assert_equal(values, other.get_weights())
    assert sum(part.size for part in read) < sum(value.size for value in values)
model.save(folder / "m.keras")
with model.distribution.scope():
    again = kd.models.load_model(folder / "m.keras")
for one in (model, again):
    one.fit(X, Y, 8, verbose=0)
np.testing.assert_equal(again.get_weights(), model.get_weights())
np.testing.assert_equal(*([slot.numpy() for slot in one.optimizer.variables] for one in (again, model)))
model.export(folder / "exported")
exported = kd.export.load(folder / "exported")
np.testing.assert_allclose(exported(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)

# factors of LoRA are trained, saved, loaded and merged together
adapted, other = network(), network()
for one in (adapted, other):
    one.enable_lora(2, "d1|d2", dropout=0.5)
adapted.compile("adam", "mse")
adapted.fit(X, Y, 8, verbose=0)
assert not adapted.get_layer("d1").lora_kernel_b.value.is_fully_addressable
adapted.save_adapter(folder / "a")
other.load_adapter(folder / "a")
np.testing.assert_equal(other.get_weights(), adapted.get_weights())
expected = adapted.predict(X, verbose=0)
adapted.merge_lora()
np.testing.assert_allclose(adapted.predict(X, verbose=0), expected, atol=1e-5)

# what is there all are told alike, also those that do not see it yet
seen = os.path.lexists, pathlib.Path.exists
for save in (
    lambda name: model.save_weights(folder / f"{name}.safetensors", overwrite=False),
    lambda name: model.save_weights(folder / f"{name}.orbax", overwrite=False),
    lambda name: model.save_weights(folder / f"{name}.weights.h5", overwrite=False),
    lambda name: model.export(folder / name),
):
    late(1, save)("new")
    if process == 1:
        os.path.lexists = pathlib.Path.exists = lambda path: False
    check_raises(ModelError, "exists", lambda: late(0, save)("new"))
    os.path.lexists, pathlib.Path.exists = seen

# so is what fails in the first process
def fails(*args):
    raise OSError(28, "No space left on device")
if process == 0:
    tensor_writer._header_of = h5_files.H5Writer.write = fails
check_raises(OSError, "No space left", lambda: model.save_weights(folder / "w.safetensors"))
check_raises(OSError, "No space left", lambda: model.export(folder / "none"))
check_raises(OSError, "No space left", lambda: model.save_weights(folder / "w.weights.h5"))
check_raises(OSError, "No space left", lambda: model.save(folder / "m.keras"))
model.load_weights(folder / "w.weights.h5")
model.load_weights(folder / "w.safetensors")
assert not [path.name for path in folder.iterdir() if path.name.startswith(".") or path.name == "none"]
"""


@pytest.mark.multiprocess
def test_each_has_weights_whole_and_all_go_on_when_they_are_written(tmp_path):
    processes.run(WEIGHTS, tmp_path)
