"""Models without a distribution, in a job of several processes: each has a copy on its own device."""

import pytest

from tests import processes

PROGRAM = """
import pathlib, warnings
import keras_dist as kd

folder = pathlib.Path(sys.argv[4])
kd.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(12, 3)).astype("f4")


def network():
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2), kd.layers.Dense(1)])
    model.compile(kd.optimizers.Adam(0.1), "mse")
    return model


with kd.DataParallel().scope():
    shared = network()
    shared.fit(x, x[:, :1], verbose=0)
    shared.save(folder / "saved")
    for name in ("saved.keras", "saved.weights.h5", "saved.safetensors"):
        shared.save_weights(folder / name) if "weights" in name or "tensors" in name else shared.save(folder / name)
    expected, loss = shared.predict(x, verbose=0), shared.evaluate(x, x[:, :1], verbose=0)

with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    loaded = [kd.models.load_model(folder / name) for name in ("saved", "saved.keras")]
(text,) = [str(one.message) for one in found if one.category is kd.errors.LayoutWarning]
assert "no distribution is set in a job of 2 processes: each trains a copy" in text and "set_distribution" in text, text
for load in (
    lambda model: model.load_weights(folder / "saved.weights.h5"),
    lambda model: model.load_weights(folder / "saved.safetensors"),
    lambda model: model.restore(kd.checkpoint.Stored(folder / "saved")),
):
    loaded.append(network())
    load(loaded[-1])
for model in loaded:
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5)
    np.testing.assert_allclose(model.evaluate(x, x[:, :1], verbose=0), loss, rtol=1e-5)
    model.save(folder / "again", overwrite=True)
shared.fit(x, x[:, :1], verbose=0)
loaded[0].fit(x, x[:, :1], verbose=0)  # which continues with the slots of the optimizer
np.testing.assert_allclose(loaded[0].predict(x, verbose=0), shared.predict(x, verbose=0), rtol=1e-5)
"""


@pytest.mark.multiprocess
def test_each_process_loads_evaluates_and_trains_its_copy(tmp_path):
    processes.run(PROGRAM, tmp_path)
