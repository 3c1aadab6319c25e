"""Training that resumes with frozen parameters, which BackupAndRestore keeps once."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import layers

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 6)).astype("float32")
Y = RANDOM.normal(size=(24, 2)).astype("float32")

WIDTH = 3000
"""So that a kernel has more than 64 KiB."""


class Stop(Exception):
    """Ends a training at a batch."""


class StopAt(kd.callbacks.Callback):
    def __init__(self, batch: int) -> None:
        super().__init__()
        self.left = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            raise Stop


def with_lora(devices: int = 1) -> kd.Model:
    kd.utils.set_random_seed(0)
    rules = kd.LayoutMap(kd.DeviceMesh((1, devices), ("data", "model"), jax.devices()[:devices]))
    rules["d1/kernel"] = (None, "model")
    with kd.ModelParallel(rules, batch_dim_name="data").scope():
        body, head = layers.Dense(WIDTH, "relu", name="d1"), layers.Dense(2, name="d2")
        model = kd.Sequential([kd.Input((6,)), body, head])
    body.enable_lora(2)
    model.compile("adam", "mse")
    return model


def fit(model: kd.Model, directory: Any, *callbacks: Any, epochs: int = 2) -> list[np.ndarray]:
    backup = kd.callbacks.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[backup, *callbacks])
    return model.get_weights()


def names(directory: Any) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def size(folder: Any) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if "arrays" in path.parts)


@pytest.mark.slow
def test_the_base_of_lora_is_written_once_and_the_result_is_the_same(tmp_path: Any) -> None:
    devices = 4
    expected = fit(with_lora(devices), tmp_path / "whole")
    directory = tmp_path / "states"
    for batch in (2, 2, 1):
        with pytest.raises(Stop):
            fit(with_lora(devices), directory, StopAt(batch))
    base = directory / "base_00000001"
    written = [path.stat().st_mtime_ns for path in sorted(base.rglob("*"))]
    found = fit(with_lora(devices), directory)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert names(directory) == ["base_00000001", "step_00000005", "step_00000006"]
    assert [path.stat().st_mtime_ns for path in sorted(base.rglob("*"))] == written
    stored = kd.checkpoint.Stored(directory / "step_00000006")
    assert {name: [*arrays] for name, arrays in stored.bases.items()} == {"base_00000001": ["variables/d1/kernel"]}
    kernel_bytes = 6 * WIDTH * 4
    with kd.checkpoint.CheckpointManager(restored_from(directory), tmp_path / "alone") as manager:
        alone = size(pathlib.Path(manager.save()))
    assert size(directory / "step_00000006") < alone - 0.9 * kernel_bytes
    assert size(base) > kernel_bytes


def restored_from(directory: Any) -> kd.Model:
    model = with_lora(2)
    with kd.checkpoint.CheckpointManager(model, directory) as manager:
        manager.restore_or_initialize()
    return model
