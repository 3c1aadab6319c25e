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


def cached(folder: pathlib.Path, written=whole) -> None:
    """As huggingface_hub has it: `snapshots/<revision>/<name>` leads to `blobs/<digest>`."""
    blobs = folder.parent / "blobs"
    written(blobs)
    folder.mkdir()
    for number, file in enumerate(sorted(blobs.iterdir())):
        file.rename(blobs / f"digest{number}")
        (folder / file.name).symlink_to(os.path.relpath(blobs / f"digest{number}", folder))


def cached_shards(folder: pathlib.Path) -> None:
    cached(folder, sharded)


@pytest.mark.parametrize("written", [whole, sharded, cached, cached_shards])
@pytest.mark.parametrize("kind", [str, pathlib.Path, lambda path: f"{path}/"])
def test_a_folder_is_loaded(written, kind, model, tmp_path):
    folder = tmp_path / "0123abc"
    written(folder)
    model.set_weights([np.zeros(w.shape, "float32") for w in model.weights])
    report = model.load_weights(kind(folder), **RULES)
    assert sorted(report.loaded) == sorted(weight.path for weight in model.weights)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), VALUES["encoder.0.weight"].T)
    np.testing.assert_array_equal(model.layers[1].bias.numpy(), VALUES["encoder.1.bias"])


def test_names_that_do_not_fit_are_told(model, tmp_path):
    whole(tmp_path / "hf")
    with pytest.raises(ModelError, match="does not fit") as caught:
        model.load_weights(tmp_path / "hf")
    assert "missing in the file: d0/kernel" in caught.value.given


def test_links_that_lead_nowhere_or_to_no_file_are_refused(model, tmp_path):
    cached(tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    (tmp_path / "blobs" / file.readlink().name).unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        model.load_weights(tmp_path / "hf", **RULES)
    for target in ("/dev/zero", tmp_path):
        file.unlink()
        file.symlink_to(target)
        with pytest.raises(ModelError, match="cannot be read") as caught:
            model.load_weights(tmp_path / "hf", **RULES)
        assert "not a regular file" in caught.value.given
    sharded(tmp_path / "shards")
    (tmp_path / "shards" / "model-00001-of-00002.safetensors").unlink()
    (tmp_path / "shards" / "model-00001-of-00002.safetensors").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="cannot be read"):
        model.load_weights(tmp_path / "shards", **RULES)


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


@pytest.mark.parametrize("kind", [str, pathlib.Path, lambda path: f"{path}/"])
def test_a_folder_that_is_not_there_is_told(kind, model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder '.*nix/?' does not exist") as caught:
        model.load_weights(kind(tmp_path / "nix"))
    assert isinstance(caught.value, ModelError)
    assert caught.value.fix.startswith("correct the path")


def test_a_folder_of_what_is_in_a_file_of_keras_is_loaded(model, tmp_path):
    model.set_weights([np.full(w.shape, 3, "float32") for w in model.weights])
    model.save(tmp_path / "m", zipped=False)
    model.set_weights([np.zeros(w.shape, "float32") for w in model.weights])
    assert len(model.load_weights(tmp_path / "m").loaded) == 4
    assert all((weight.numpy() == 3).all() for weight in model.weights)
    file = tmp_path / "m" / "model.weights.h5"
    content = bytearray(file.read_bytes())
    content[content.index(np.float32(3).tobytes() * 4)] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelError, match="checksum"):
        model.load_weights(tmp_path / "m")
