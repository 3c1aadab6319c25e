"""The whole path from a folder to a folder, in the words of its announcement, on a tiny network."""

import ast
import importlib.util
import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from tests.callbacks.test_tracker import Noting
from tests.pretrained.networks import FOLDER
from tests.soak import few

SNIPPET = """
mesh = kd.DeviceMesh("data=2,model=4")
kd.set_distribution(kd.FullySharded(mesh, rules=kd.pretrained.rules("Qwen3-0.6B/", mesh)))
model = kd.pretrained.load("Qwen3-0.6B/", dtype="bfloat16")
model.enable_lora(rank=16, layers=r".*/(query|value)")
data = kd.data.pack(kd.data.mix({"code": a, "web": b}, weights=(1, 3)), length=4096)
model.compile("adamw", loss="causal_lm")
model.fit(data, callbacks=[kd.callbacks.Throughput(), kd.callbacks.Tracker("trackio")])
print(kd.generate(model, prompts, max_new_tokens=64))
model.save_adapter("adapter/"); kd.pretrained.save(model, "out/")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a tiny Qwen 3, in which the snippet runs."""
    shutil.copytree(FOLDER / "qwen3", tmp_path / "Qwen3-0.6B")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("length", few([256, 4096], 256))
@pytest.mark.filterwarnings("ignore:.*does not divide num_kv_heads")
def test_the_announced_snippet_runs(length, folder, monkeypatch, capsys):
    library = None
    if importlib.util.find_spec("trackio") is None:
        monkeypatch.setitem(sys.modules, "trackio", library := Noting("trackio"))
    draws = np.random.default_rng(0)
    code, web = ([draws.integers(3, 64, size=2000) for _ in range(count)] for count in (1, 3))
    names = {"kd": kd, "a": code, "b": web, "prompts": [[5, 6, 7], [8, 9]]}
    exec(SNIPPET.replace("4096", str(length)), names)
    model = names["model"]
    assert {weight.path.split("/")[-1] for weight in model.trainable_weights} == {"lora_kernel_a", "lora_kernel_b"}
    assert model.layout_plan.row("layers/0/attention/query/kernel").axes == ("data", "model", None)
    tokens = ast.literal_eval(capsys.readouterr().out.strip().rpartition("\n")[2])
    assert len(tokens) == 2 and all(0 < len(row) <= 64 for row in tokens)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["target_modules"]) == (16, ["q_proj", "v_proj"])
    before, after = (load_file(folder / name / "model.safetensors") for name in ("Qwen3-0.6B", "out"))
    assert {name: array.shape for name, array in before.items()} == {name: array.shape for name, array in after.items()}
    if library is not None:
        assert [call[0] for call in library.calls] == ["init", "log", "finish"]
