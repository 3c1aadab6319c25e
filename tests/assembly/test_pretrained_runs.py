"""Runs that fine-tune a network of a folder on text files, and save it for other programs."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import assembly, config
from tests.assembly import my_run
from tests.assembly.my_run import settings
from tests.pretrained.networks import FOLDER

TEXT = "".join(f"{number} " for number in range(1000))  # bytes of digits are tokens that the network has
TOML = """
[mesh]
shape = {data = 2, model = 4}
[distribution]
strategy = "fully_sharded"
[model]
name = "pretrained"
folder = "base"
[lora]
rank = 2
layers = ".*/(query|down)"
alpha = 4
[data]
name = "text"
files = "[ab].txt"
length = 16
test_files = "c.txt"
[optimizer]
name = "adamw"
learning_rate = 0.01
[training]
loss = "causal_lm"
batch_size = 8
steps_per_epoch = 3
verbose = 0
[save]
adapter = "adapter"
pretrained = "tuned"
"""


@pytest.fixture(autouse=True)
def fine_tuning():
    """A folder of a network, texts, and a config in the working directory."""
    shutil.copytree(FOLDER / "mistral", "base")
    for start, name in enumerate("abc"):
        pathlib.Path(f"{name}.txt").write_text(TEXT[1000 * start : 1000 * start + 800])
    pathlib.Path("run.toml").write_text(TOML)


@pytest.mark.slow
def test_a_run_is_that_of_the_objects_by_hand_and_is_saved():
    run = assembly.build(settings())
    history = run.train().history
    train = kd.data.pack([pathlib.Path(name).read_bytes() for name in ("a.txt", "b.txt")], 16)
    test = kd.data.pack([pathlib.Path("c.txt").read_bytes()], 16)
    kd.set_random_seed(0)
    with kd.FullySharded(kd.DeviceMesh("data=2,model=4")).scope():
        model = kd.pretrained.load("base")
        model.enable_lora(2, ".*/(query|down)", alpha=4)
        model.compile(kd.optimizers.AdamW(0.01), loss="causal_lm")
        expected = model.fit(train, batch_size=8, steps_per_epoch=3, validation_data=test, verbose=0).history
    assert history == expected and len(run.examples) == 1
    tokens = np.arange(10, 20)[None]
    np.testing.assert_allclose(kd.pretrained.load("tuned")(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    again = kd.pretrained.load("base")
    again.load_adapter("adapter")
    np.testing.assert_allclose(again(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    assert run.evaluate()["loss"] == pytest.approx(history["val_loss"][0], rel=1e-4)  # the merged model's


@pytest.mark.slow
def test_a_plan_reads_no_weights():
    pathlib.Path("base/model.safetensors").unlink()
    inputs = assembly.plan_inputs(settings("model.ignore=['other']"))
    report = kd.plan(**vars(inputs))
    assert report.batch.row("input/tokens").shape == (8, 16)
    assert all("lora" in row.path for row in report.state.rows if row.role == "slot" and row.shape)


def test_adapters_of_a_module_are_trained_and_planned():
    pathlib.Path("run.toml").write_text(my_run.TOML)
    run = settings("lora={rank=2, layers='up'}")
    rows = kd.plan(**vars(assembly.plan_inputs(run))).state.rows
    assert {"lora" in row.path for row in rows if row.role == "slot" and row.shape} == {True}
    assert [row.path for row in assembly.build(run).model.layout_plan.rows if "lora" in row.path]


def test_sources_are_mixed_by_tokens():
    pathlib.Path("a.txt").write_text(TEXT[:1600])
    files = "data.files={short='b.txt', long=['a.txt', 'c.txt']}"
    (rows,) = assembly.build(settings(files, "data.weights={short=1, long=2}")).examples
    assert rows.counts == {"short": 50, "long": 101}  # until the shorter ends


def test_a_resolved_config_is_a_config():
    run = assembly.build(settings()).config
    assert config.RunConfig.model_validate(json.loads(run.to_json())) == run
