"""Adapters of pretrained networks: stacked and not, sharded and not, under the names of transformers.

Files of these families were tried with peft 0.21.2 and transformers 5.24, in both directions.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from keras_dist.errors import ModelError
from tests.pretrained.test_families import FOLDER, distribution_of, inputs_of

pytestmark = pytest.mark.filterwarnings("ignore")
FILE = "base_model.model.model.layers.{}.self_attn.{}_proj.lora_{}.weight"


def loaded(layout, family, scan=False):
    with distribution_of(layout, family, scan).scope():
        return kd.pretrained.load(FOLDER / family, scan=scan)


@pytest.fixture(scope="module")
def stacked():
    model = loaded("megatron", "llama", scan=True)
    model.enable_lora(3, ".*/(query|value|down)", alpha=6)
    draws = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(draws.normal(size=weight.shape) / 5)
    return model


def test_a_stack_is_saved_as_layers_and_loaded_into_layers(stacked, tmp_path):
    x, before, _ = inputs_of("llama")
    stacked.save_adapter(tmp_path / "a", task_type="CAUSAL_LM")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj", "q_proj", "v_proj"]
    arrays = load_file(tmp_path / "a" / "adapter_model.safetensors")
    factors = {weight.path: weight.numpy() for weight in stacked.trainable_weights}
    first = factors["layers/attention/query/lora_kernel_a"]
    np.testing.assert_array_equal(arrays[FILE.format(1, "q", "A")], first[1].T)
    expected = np.asarray(stacked(x))
    assert np.abs(expected - before).max() > 1
    single = loaded("one device", "llama")
    single.load_adapter(tmp_path / "a")
    np.testing.assert_allclose(single(x), expected, atol=1e-4)
    single.save_adapter(tmp_path / "b", task_type="CAUSAL_LM")
    again = load_file(tmp_path / "b" / "adapter_model.safetensors")
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    single.merge_lora()
    kd.pretrained.save(single, tmp_path / "merged")
    with distribution_of("fully sharded", "llama", True).scope():
        merged = kd.pretrained.load(tmp_path / "merged", scan=True)
    np.testing.assert_allclose(merged(x), expected, atol=1e-4)


def test_the_layouts_of_the_factors_follow_the_stack(stacked):
    rows = {row.path: row for row in stacked.layout_plan.rows}
    for path, row in rows.items():
        if "lora" in path:
            assert row.rule == f"follows {path.rpartition('/')[0]}/kernel"
    query = "layers/attention/query"
    assert rows[f"{query}/lora_kernel_a"].axes[-1] is None
    assert rows[f"{query}/lora_kernel_b"].axes[2:] == rows[f"{query}/kernel"].axes[2:]
    assert rows[f"{query}/lora_kernel_b"].axes[2] == "model"


def test_parts_of_a_module_are_an_error(tmp_path):
    model = loaded("one device", "phi3")
    model.enable_lora(2, ".*/query")
    with pytest.raises(ModelError, match=r"query/kernel is a part of model\.layers\.0\.self_attn\.qkv_proj"):
        model.save_adapter(tmp_path / "a")


def test_a_stack_drops_inputs_of_each_layer_anew():
    model = loaded("one device", "llama", scan=True)
    model.enable_lora(2, ".*/query", dropout=0.5)
    x, _, _ = inputs_of("llama")
    expected = np.asarray(model(x))
    np.testing.assert_allclose(model(x, training=True), expected, atol=1e-5)  # B is zero
    for weight in model.trainable_weights:
        weight.assign(np.ones(weight.shape, "float32") / 10)
    first, second = (np.asarray(model(x, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(model(x), model(x))
