"""`modules_to_save`: weights that are trained whole beside adapters, and files of peft with them, in both directions.

What `save_adapter` writes for these networks was loaded by peft 0.21, with outputs equal to 4e-6.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist.errors import ModelError
from tests.pretrained.networks import FOLDER, OF_OTHERS
from tests.pretrained.test_families import distribution_of

pytestmark = pytest.mark.filterwarnings("ignore")
X = (np.arange(24).reshape(2, 12) % 64).astype("int32")
PEFT = OF_OTHERS / "peft_whole"


def loaded(layout="one device", scan=False):
    with distribution_of(layout, "llama", scan).scope():
        return kd.pretrained.load(FOLDER / "llama", scan=scan)


@pytest.mark.parametrize("name", ["b", "c"])
@pytest.mark.parametrize(("layout", "scan"), [("megatron", True), ("fully sharded", False)])
def test_files_of_peft_are_loaded_trained_and_saved(name, layout, scan, tmp_path):
    model = loaded(layout, scan)
    model.load_adapter(PEFT / name)
    expected = load_file(PEFT / name / "outputs.safetensors")["outputs"]
    np.testing.assert_allclose(np.asarray(model(X)), expected, atol=1e-5)
    rows = np.tile(X, (4, 1))
    model.compile("adam", loss="causal_lm")
    before = {one.path: one.numpy() for one in model.weights}
    model.fit(rows, rows, batch_size=8, epochs=2, verbose=0)
    changed = [one.path for one in model.weights if not np.array_equal(one.numpy(), before[one.path])]
    assert {*changed} == {one.path for one in model.trainable_weights}
    assert [path for path in changed if path.startswith("embedding")], "embeddings are trained whole"
    model.save_adapter(tmp_path / "a")
    theirs, ours = (load_file(folder / "adapter_model.safetensors") for folder in (PEFT / name, tmp_path / "a"))
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (PEFT / name, tmp_path / "a")]
    assert sorted(configs[0]["modules_to_save"]) == [
        one for one in configs[1]["modules_to_save"] if not one.endswith("layernorm")
    ]
    other = loaded("one device", not scan)
    other.load_adapter(tmp_path / "a")
    np.testing.assert_allclose(np.asarray(other(X)), np.asarray(model(X)), atol=1e-5)


def test_weights_that_are_named_are_trained_whole_also_after_loading(tmp_path):
    model = loaded()
    model.enable_lora(2, ".*/query", modules_to_save=["head", ".*norm.*"])
    paths = [one.path for one in model.trainable_weights]
    assert "head/kernel" in paths and "norm/scale" in paths and "embedding/embeddings" not in paths
    model.compile("adam", loss="causal_lm")
    model.save(tmp_path / "folder")
    again = kd.models.load_model(tmp_path / "folder")
    assert [one.path for one in again.trainable_weights] == paths
    model.merge_lora()
    assert len(model.trainable_weights) == len(model.weights)


ERRORS = [
    ({"modules_to_save": "haed"}, "'haed' matches no trained weight.*'head/kernel'"),
    ({"modules_to_save": ".*/query"}, "'layers/0/attention/query/kernel' is adapted"),
    ({"modules_to_save": 3}, "`modules_to_save` must be"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_what_cannot_be_trained_whole_is_an_error(options, message):
    model = loaded()
    with pytest.raises(ModelError, match=f"(?s){message}"):
        model.enable_lora(2, ".*/query", **options)
    assert len(model.trainable_weights) == len(model.weights)


def _without(arrays):
    del arrays["base_model.model.model.embed_tokens.weight"]


def _larger(arrays):
    arrays["base_model.model.model.embed_tokens.weight"] = np.ones((65, 16), "float32")


def _unknown(arrays):
    arrays["base_model.model.model.extra.weight"] = np.ones((2, 2), "float32")


DAMAGES = [(_without, "'embed_tokens' has no arrays"), (_larger, "shape"), (_unknown, "not in the model.*extra")]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_files_that_do_not_fit_are_errors_and_the_model_stays(damage, message, tmp_path):
    arrays = load_file(PEFT / "b" / "adapter_model.safetensors")
    damage(arrays)
    save_file(arrays, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text((PEFT / "b" / "adapter_config.json").read_text())
    model = loaded()
    with pytest.raises(ModelError, match=f"(?s){message}"):
        model.load_adapter(tmp_path)
    assert len(model.trainable_weights) == len(model.weights)
