"""`load_weights("folder")`: weights of Hugging Face, whole or in shards, also in its cache, which consists of links."""

import json
import os
import pathlib

import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_dist as kd
from keras_dist.errors import ModelError

CHANCE = np.random.default_rng(0)
VALUES = {
    "encoder.0.weight": CHANCE.random((7, 5), "float32"),
    "encoder.0.bias": CHANCE.random(7, "float32"),
    "encoder.1.weight": CHANCE.random((3, 7), "float32"),
    "encoder.1.bias": CHANCE.random(3, "float32"),
}
NAMES = {r"d(\d)/kernel": r"encoder.\1.weight", r"d(\d)/bias": r"encoder.\1.bias"}
RULES = {"weight_map": kd.interop.WeightMap(NAMES, {".*/kernel": kd.interop.Linear()})}


@pytest.fixture(scope="module")
def model():
    layers = kd.layers
    return kd.Sequential([kd.Input((5,)), layers.Dense(7, name="d0"), layers.Dense(3, name="d1")])


def whole(folder: pathlib.Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file(VALUES, folder / "model.safetensors")


def sharded(folder: pathlib.Path) -> None:
    folder.mkdir(exist_ok=True)
    files = {name: f"model-0000{number // 2 + 1}-of-00002.safetensors" for number, name in enumerate(VALUES)}
    for file in {*files.values()}:
        save_file({name: VALUES[name] for name in VALUES if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def cached(folder: pathlib.Path) -> None:
    """As huggingface_hub has it: `snapshots/<revision>/<name>` leads to `blobs/<digest>`."""
    blobs = folder.parent / "blobs"
    sharded(blobs)
    folder.mkdir()
    for number, file in enumerate(sorted(blobs.iterdir())):
        file.rename(blobs / f"digest{number}")
        (folder / file.name).symlink_to(os.path.relpath(blobs / f"digest{number}", folder))


@pytest.mark.parametrize("written", [whole, sharded, cached])
def test_a_folder_is_loaded(written, model, tmp_path):
    folder = tmp_path / "0123abc"
    written(folder)
    for path in (folder, str(folder), f"{folder}/"):
        model.set_weights([np.zeros(w.shape, "float32") for w in model.weights])
        report = model.load_weights(path, **RULES)
        assert sorted(report.loaded) == sorted(weight.path for weight in model.weights)
        np.testing.assert_array_equal(model.layers[0].kernel.numpy(), VALUES["encoder.0.weight"].T)
        np.testing.assert_array_equal(model.layers[1].bias.numpy(), VALUES["encoder.1.bias"])


def test_links_that_lead_nowhere_or_to_no_file_are_refused(model, tmp_path):
    for written, name in ((whole, "model.safetensors"), (sharded, "model-00001-of-00002.safetensors")):
        folder = tmp_path / written.__name__
        written(folder)
        for target in ("/dev/zero", tmp_path, "nowhere"):
            (folder / name).unlink()
            (folder / name).symlink_to(target)
            error = FileNotFoundError if target == "nowhere" and written is whole else ModelError
            with pytest.raises(error, match=r"cannot be read|model\.safetensors"):
                model.load_weights(folder, **RULES)


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        (("pytorch_model.bin", "config.json"), "pickles, whose code would run"),
        (("adapter_model.safetensors", "config.json"), "adapter_model.safetensors"),
    ],
)
def test_a_folder_with_other_files_says_which(names, fix, model, tmp_path):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match=r"has no model.safetensors and no model.safetensors.index.json") as caught:
        model.load_weights(tmp_path)
    assert names[0] in caught.value.given and fix in caught.value.fix


def test_a_folder_that_is_not_there_is_told(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder '.*nix/?' does not exist") as caught:
        model.load_weights(tmp_path / "nix")
    assert isinstance(caught.value, ModelError)
    assert caught.value.fix.startswith("correct the path")
