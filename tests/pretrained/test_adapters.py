"""Adapters of pretrained networks: stacked and not, sharded and not, under the names of transformers.

Files of these families were tried with peft 0.21.2 and transformers 5.24, in both directions.
"""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

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


QKV, GATE_UP = "model.layers.{}.self_attn.qkv_proj", "model.layers.{}.mlp.gate_up_proj"


def factors_of(model):
    return {weight.path: weight.numpy() for weight in model.trainable_weights}


@pytest.fixture(scope="module")
def fused():
    """Phi 3, where query, key and value are one module, and gate and up another one."""
    model = loaded("one device", "phi3")
    model.enable_lora(3, ".*/(query|key|value|up)", alpha=6, rank_pattern={".*/key": 1}, alpha_pattern={".*/key": 2})
    draws = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(draws.normal(size=weight.shape) / 10)
    return model


def test_parts_of_a_module_are_blocks_in_the_file(fused, tmp_path):
    fused.save_adapter(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["gate_up_proj", "qkv_proj"]
    assert {config["r"], *config["rank_pattern"].values()} == {7, 3}
    assert {config["lora_alpha"], *config["alpha_pattern"].values()} == {14, 6}
    arrays, factors = load_file(tmp_path / "a" / "adapter_model.safetensors"), factors_of(fused)
    for layer in range(2):
        first, second = (arrays[f"base_model.model.{QKV.format(layer)}.lora_{one}.weight"] for one in "AB")
        parts = [f"layers/{layer}/attention/{part}/lora_kernel_" for part in ("query", "key", "value")]
        pairs = [(factors[f"{part}a"], factors[f"{part}b"]) for part in parts]
        kernels = [(a @ b.reshape(len(b), -1)).T for a, b in pairs]
        np.testing.assert_allclose(second @ first, np.concatenate(kernels), atol=1e-6)
        first, second = (arrays[f"base_model.model.{GATE_UP.format(layer)}.lora_{one}.weight"] for one in "AB")
        assert not second[: len(second) // 2].any() and second[len(second) // 2 :].all() and len(first) == 3
    again = loaded("one device", "phi3")
    for _ in range(2):  # also into a model that has adapters already
        again.load_adapter(tmp_path / "a")
        assert factors_of(again).keys() == factors.keys()
        for path, factor in factors_of(again).items():
            np.testing.assert_array_equal(factor, factors[path], err_msg=path)
    stacked = loaded("megatron", "phi3", scan=True)
    stacked.load_adapter(tmp_path / "a")
    x, _, _ = inputs_of("phi3")
    np.testing.assert_allclose(stacked(x), fused(x), atol=1e-5)
    other = loaded("one device", "phi3")
    other.enable_lora(7, ".*/(query|up)", alpha=14, rank_pattern={".*/up": 3}, alpha_pattern={".*/up": 6})
    with pytest.raises(ModelError, match=rf"{QKV.format(0)} adapts other parts than the model"):
        other.load_adapter(tmp_path / "a")


@pytest.mark.slow
def test_untrained_parts_of_a_module_keep_their_ranks_if_the_model_has_them(tmp_path):
    def adapted():
        model = loaded("one device", "phi3")
        model.enable_lora(2, ".*/(query|key)")
        return model

    model, other, plain = adapted(), adapted(), loaded("one device", "phi3")
    model.save_adapter(tmp_path / "a")
    other.load_adapter(tmp_path / "a")
    for path, factor in factors_of(other).items():
        np.testing.assert_array_equal(factor, factors_of(model)[path], err_msg=path)
    plain.load_adapter(tmp_path / "a")
    assert factors_of(plain)["layers/0/attention/query/lora_kernel_a"].shape[-1] == 4  # as `load_adapter` says
    x, before, _ = inputs_of("phi3")
    np.testing.assert_allclose(plain(x), before, atol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
def test_parts_of_a_module_share_the_first_factor_of_peft(scan, tmp_path):
    draws, arrays = np.random.default_rng(0), {}
    base = load_file(FOLDER / "phi3" / "model.safetensors")
    for module in (QKV, GATE_UP):
        for layer in range(2):
            rows, columns = base[f"{module.format(layer)}.weight"].shape
            for one, shape in (("A", (4, columns)), ("B", (rows, 4))):
                value = draws.normal(size=shape).astype("float32") / 10
                arrays[f"base_model.model.{module.format(layer)}.lora_{one}.weight"] = value
    save_file(arrays, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["qkv_proj", "gate_up_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    model = loaded("one device", "phi3", scan=scan)
    model.load_adapter(tmp_path)
    model.save_adapter(tmp_path / "again")
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    kd.pretrained.save(model, tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for module in (QKV, GATE_UP):
        for layer in range(2):
            name = module.format(layer)
            first, second = (arrays[f"base_model.model.{name}.lora_{one}.weight"] for one in "AB")
            expected = base[f"{name}.weight"].astype("float32") + 1.5 * second @ first
            np.testing.assert_allclose(merged[f"{name}.weight"], expected, atol=1e-5, err_msg=name)


def test_parts_of_a_module_have_one_scale(tmp_path):
    model = loaded("one device", "phi3")
    model.enable_lora(2, ".*/(query|key)", alpha_pattern={".*/key": 4})
    with pytest.raises(ModelError, match=rf"{QKV.format(0)} consists of weights with different alpha / rank"):
        model.save_adapter(tmp_path / "a")


def test_a_pattern_with_a_typo_names_the_nearest_path():
    other = kd.pretrained.describe(FOLDER / "llama")
    with pytest.raises(ModelError, match=r"'\.\*/querry' matches none; the nearest path is 'layers/0/attention/query'"):
        other.enable_lora(2, ".*/querry")


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("family", "rule", "said"),
    [
        ("mixtral", ".*/router", "LoRA does not adapt 'layers/0/feed_forward/router'"),
        ("llama", ".*/q_proj", "'q_proj' of peft is '.*/query' here"),
        ("llama", "down_proj", "'down_proj' of peft is '.*/(experts_)?down' here"),
        ("phi3", r"model\.layers\..*\.qkv_proj", "'qkv_proj' of peft is '.*/(query|key|value)' here"),
        ("mixtral", ".*/w2", "'w2' of peft is '.*/experts_down' here"),
    ],
)
def test_a_pattern_of_peft_names_ours(family, rule, said):
    model = kd.pretrained.describe(FOLDER / family)
    with pytest.raises(ModelError) as caught:
        model.enable_lora(2, rule)
    assert f"{rule!r} matches none; {said}" in caught.value.given
    ours = re.search("is '(.*)' here", said)
    if ours is not None:
        model.enable_lora(2, ours[1])


def test_a_stack_has_one_rank(stacked, tmp_path):
    other = loaded("one device", "llama")
    other.enable_lora(3, ".*/query", rank_pattern={"layers/1/.*": 2})
    other.save_adapter(tmp_path / "a")
    with pytest.raises(ModelError, match=r"stack, .* ranks and alphas \[\(3, 3\), \(2, 2\)\]: .* scan=False"):
        loaded("one device", "llama", scan=True).load_adapter(tmp_path / "a")


def test_all_layers_of_a_stack_have_adapters(tmp_path):
    other = loaded("one device", "llama")
    other.enable_lora(3, "layers/1/.*/query")
    other.save_adapter(tmp_path / "a")
    stack = r"layers/attention/query/kernel is a stack; there are 1 of \d+ layers, .*: .* scan=False"
    with pytest.raises(ModelError, match=stack):
        loaded("one device", "llama", scan=True).load_adapter(tmp_path / "a")
    loaded("one device", "llama").load_adapter(tmp_path / "a")


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
