"""`dora` and `lora_bias`: adapters of peft, with its logits, its weights after a step, and its merged weights.

What `save_adapter` writes for these networks, phi3 and qwen3 was loaded by peft 0.21.2: logits differ by 2e-5 at most.
"""

import copy
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from tests.pretrained.networks import FOLDER, OF_OTHERS
from tests.pretrained.test_families import distribution_of

pytestmark = pytest.mark.filterwarnings("ignore")
X = (np.arange(24).reshape(2, 12) % 64).astype("int32")
PEFT = OF_OTHERS / "peft_vectors"
BASES = {"dora": "llama", "dora_fused": "gpt2", "lora_bias": "llama"}


def loaded(name, layout="one device", scan=False, **options):
    with distribution_of(layout, BASES[name], scan).scope():
        return kd.pretrained.load(FOLDER / BASES[name], scan=scan, **options)


def of_peft(name, file):
    return load_file(PEFT / name / f"{file}.safetensors")


@pytest.mark.parametrize("name", [*BASES])
@pytest.mark.parametrize(("layout", "scan"), [("one device", False), ("megatron", True), ("fully sharded", False)])
def test_adapters_are_loaded_trained_saved_and_merged_as_by_peft(name, layout, scan, tmp_path):
    model = loaded(name, layout, scan)
    model.load_adapter(PEFT / name)
    expected = of_peft(name, "outputs")["outputs"]
    np.testing.assert_allclose(np.asarray(model(X)), expected, atol=1e-5)
    model.save_adapter(tmp_path / "a")
    theirs, ours = of_peft(name, "adapter_model"), load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert theirs.keys() == ours.keys()
    for key, value in theirs.items():
        if "fused" not in name or not key.endswith(("A.weight", "B.weight")):  # ours are a block for each part
            np.testing.assert_array_equal(ours[key], value, err_msg=key)
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (PEFT / name, tmp_path / "a")]
    for option in ("use_dora", "lora_bias"):
        assert configs[0][option] == configs[1].get(option, False)
    kd.pretrained.save(model, tmp_path / "merged")
    found, merged = load_file(tmp_path / "merged" / "model.safetensors"), of_peft(name, "merged")
    for key, value in merged.items():
        np.testing.assert_allclose(found[key], value, atol=1e-5, err_msg=key)
    stepped = copy.copy(model)
    stepped.compile(kd.optimizers.SGD(0.1), "mse")
    stepped.fit(X, np.zeros_like(expected), batch_size=2, verbose=0)
    stepped.save_adapter(tmp_path / "b")
    ours = load_file(tmp_path / "b" / "adapter_model.safetensors")
    for key, value in of_peft(name, "stepped").items():
        if "fused" not in name or not key.endswith(("A.weight", "B.weight")):
            np.testing.assert_allclose(ours[key], value, atol=1e-5, err_msg=key)
            assert np.abs(value - theirs[key]).max() > 1e-4
    model.merge_lora()
    np.testing.assert_allclose(np.asarray(model(X)), expected, atol=1e-5)
