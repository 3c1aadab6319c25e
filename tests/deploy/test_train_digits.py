"""The script that users copy, in one process and in several."""

import json
import re
import socket

import numpy as np
import pytest

import keras_dist as kd
from tests.forks import ROOT, Python
from tests.layouts import one_device
from tests.processes import environment

SCRIPT = ROOT / "deploy" / "train_digits.py"


def printed(process):
    """What the script has printed in a process: the line about the process, and numbers by name."""
    code, output, errors = process.outcome(120)
    assert code == 0, errors[-3000:]
    place = re.search(r"^process \d of \d.*", output, re.MULTILINE)
    numbers = {name: values.split() for name, values in re.findall(r"^(\w+): (.*)", output, re.MULTILINE)}
    return place and place[0], numbers, output


@pytest.mark.multiprocess
def test_two_processes_print_what_one_does_and_save_what_goes_on(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    workers = {"worker": [address, "127.0.0.1:1"]}
    tf_configs = [{"cluster": workers, "task": {"type": "worker", "index": index}} for index in range(2)]
    options = ["--batch-size", 32, "--folder"]
    job = [
        Python(SCRIPT, *options, tmp_path / "job", env=environment(1) | {"TF_CONFIG": json.dumps(tf_config)})
        for tf_config in tf_configs
    ]
    alone = Python(SCRIPT, "--alone", *options, tmp_path / "alone", env=environment(1))
    (first, numbers, shown), (second, others, hidden) = map(printed, job)
    assert first == f"process 0 of 2, coordinator {address}, 1 of 2 cpu devices"
    assert second == f"process 1 of 2, coordinator {address}, 1 of 2 cpu devices"
    assert numbers == others and "Epoch 1/3" in shown and "Epoch" not in hidden
    _, expected, _ = printed(alone)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        values = np.array(numbers[name], float)
        np.testing.assert_allclose(values, np.array(expected[name], float), atol=1e-5, rtol=0, err_msg=name)
        assert len(values) == 3
    assert float(numbers["val_accuracy"][-1]) > 0.9
    assert float(numbers["test"][1].rstrip(",")) == float(numbers["val_loss"][-1])
    assert not (tmp_path / "job" / "backup").exists()

    model = kd.models.load_model(tmp_path / "job" / "model", distribution=one_device())
    (x, y), _ = kd.datasets.digits.load_data()
    losses = model.fit(x / np.float32(16), y, 32, epochs=2, steps_per_epoch=20, verbose=0).history["loss"]
    assert losses[1] < losses[0] < float(numbers["loss"][-1])
