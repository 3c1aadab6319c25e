"""LoRA of experts: numbers of a network computed by hand, layouts, slots, and the files of peft.

Files of both families were tried with peft 0.21.2 and transformers 5.24, in both directions: logits differ by 3e-6.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import ModelError
from tests.pretrained.test_families import FOLDER, distribution_of, inputs_of

pytestmark = pytest.mark.filterwarnings("ignore")
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(4, 6, 8)).astype("float32")
Y = DRAWS.normal(size=(4, 6, 8)).astype("float32")
RANK, ALPHA, EXPERTS = 2, 3.0, 4


def drawn(model):
    draws = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(draws.normal(size=weight.shape) / 5)
    return model


def made(distribution):
    kd.utils.set_random_seed(0)
    with distribution.scope():
        experts = layers.MixtureOfExperts(EXPERTS, 12, shared_experts=1, load_balancing=0.0, name="moe")
        return kd.Sequential([kd.Input((6, 8)), experts])


def by_hand(values, x):
    """Every expert computes every token, with weights that have the updates added."""

    def merged(name):
        if f"moe/lora_{name}_a" not in values:
            return values[f"moe/{name}"]
        return values[f"moe/{name}"] + ALPHA / RANK * values[f"moe/lora_{name}_a"] @ values[f"moe/lora_{name}_b"]

    def network(name):
        gate, up = (jnp.einsum("btd,...df->...btf", x, merged(f"{name}_{part}")) for part in ("gate", "up"))
        return jnp.einsum("...btf,...fd->...btd", jax.nn.silu(gate) * up, merged(f"{name}_down"))

    probabilities = jax.nn.softmax(x @ values["moe/router"])
    weights, experts = jax.lax.top_k(probabilities, 2)
    weights = jax.nn.one_hot(experts, EXPERTS) * (weights / weights.sum(-1, keepdims=True))[..., None]
    return jnp.einsum("ebtd,bte->btd", network("experts"), weights.sum(2)) + network("shared")


def test_factors_are_trained_as_hand_written_jax_trains_them_and_follow_the_experts():
    mesh = kd.DeviceMesh("data=2,expert=4")
    model = made(kd.presets.experts(mesh))
    model.enable_lora(RANK, "moe", alpha=ALPHA)
    drawn(model).compile(kd.optimizers.SGD(0.1, momentum=0.9), "mse")
    rows = {row.path: row for row in model.layout_plan.rows}
    for name, sizes in {"gate": (8, 12), "up": (8, 12), "down": (12, 8)}.items():
        first, second = (rows[f"moe/lora_experts_{name}_{end}"] for end in "ab")
        assert (first.shape, second.shape) == ((EXPERTS, sizes[0], RANK), (EXPERTS, RANK, sizes[1]))
        assert first.axes == second.axes == first.compute_axes == ("expert", None, None)
    trained = [weight.path for weight in model.trainable_weights]
    assert len(trained) == 12 and all("/lora_" in path for path in trained)
    slots = [row for row in model._built.cell.state_plan.rows if "/lora_" in row.path and row.path not in trained]
    assert sum(row.nbytes for row in slots) == sum(4 * weight.size for weight in model.trainable_weights)
    assert {row.axes[0] for row in slots if "experts" in row.path} == {"expert"}
    values = {weight.path: jnp.asarray(weight.numpy()) for weight in model.weights}
    factors = {path: values.pop(path) for path in trained}
    np.testing.assert_allclose(model(X), by_hand(values | factors, X), atol=1e-5)
    history = model.fit(X, Y, batch_size=4, verbose=0).history
    loss, grads = jax.value_and_grad(lambda factors: jnp.mean((by_hand(values | factors, X) - Y) ** 2))(factors)
    np.testing.assert_allclose(history["loss"], [loss], rtol=1e-5)
    for weight in model.weights:
        expected = factors[weight.path] - 0.1 * grads[weight.path] if weight.path in factors else values[weight.path]
        if "routed" not in weight.path:
            np.testing.assert_allclose(weight.numpy(), expected, atol=1e-5, err_msg=weight.path)
    expected = np.asarray(model(X))
    model.merge_lora()
    np.testing.assert_allclose(model(X), expected, atol=1e-5)
    trained = {weight.path for weight in model.trainable_weights}
    assert trained == values.keys() - {"moe/routed", "moe/dropped"}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("family", "layout", "scan"), [("mixtral", "megatron", True), ("qwen3_moe", "one device", False)]
)
def test_files_of_peft_are_loaded_and_saved_and_merged(family, layout, scan, tmp_path):
    base = load_file(FOLDER / family / "model.safetensors")
    names = (
        ("block_sparse_moe", "w1", "w3", "w2")
        if family == "mixtral"
        else ("mlp", *("gate_proj", "up_proj", "down_proj"))
    )
    sizes, arrays, draws = (16, 24 if family == "mixtral" else 12), {}, np.random.default_rng(0)
    for layer in range(2):
        for module, (inputs, outputs) in {"base_layer.": (sizes[0], 2 * sizes[1]), "": (sizes[1], sizes[0])}.items():
            start = f"base_model.model.model.layers.{layer}.mlp.experts.{module}lora_"
            arrays[f"{start}A.weight"] = draws.normal(size=(EXPERTS * RANK, inputs)).astype("float32") / 5
            arrays[f"{start}B.weight"] = draws.normal(size=(outputs, RANK * EXPERTS)).astype("float32") / 5
    save_file(arrays, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": []}
    config["target_parameters"] = ["experts.gate_up_proj", "mlp.experts.down_proj"]
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with distribution_of(layout, family, scan).scope():
        model = kd.pretrained.load(FOLDER / family, scan=scan)
    model.load_adapter(tmp_path)
    model.save_adapter(tmp_path / "again")
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    written = json.loads((tmp_path / "again" / "adapter_config.json").read_text())
    assert written["target_parameters"] == ["experts.down_proj", "experts.gate_up_proj"]
    assert written["target_modules"] == [] and written["r"] == RANK
    kd.pretrained.save(model, tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for layer in range(2):
        updates = {}
        for module in ("base_layer.", ""):
            start = f"base_model.model.model.layers.{layer}.mlp.experts.{module}lora_"
            first = arrays[f"{start}A.weight"].reshape(EXPERTS, RANK, -1)
            second = arrays[f"{start}B.weight"].reshape(-1, RANK, EXPERTS)
            updates[module] = ALPHA / RANK * np.einsum("ore,eri->eoi", second, first)  # of peft's ParamWrapper
        parts = (*np.split(updates["base_layer."], 2, axis=1), updates[""])
        for name, update in zip(names[1:], parts, strict=True):
            for expert in range(EXPERTS):
                path = f"model.layers.{layer}.{names[0]}.experts.{expert}.{name}.weight"
                expected = base[path].astype("float32") + update[expert]
                np.testing.assert_allclose(merged[path], expected, atol=1e-5, err_msg=path)
    x, before, _ = inputs_of(family)
    expected = np.asarray(model(x))
    assert np.abs(expected - before).max() > 0.1
    model.merge_lora()
    np.testing.assert_allclose(model(x), expected, atol=1e-5)


def test_adapters_of_experts_are_saved_alone_with_the_model_and_apart(tmp_path):
    model = made(distribution_of("one device", "mixtral", False))
    model.enable_lora(RANK, ".*experts_(gate|down)", alpha=ALPHA, rank_pattern={".*down": 1})
    drawn(model).save(tmp_path / "model")
    again = kd.models.load_model(tmp_path / "model")
    np.testing.assert_allclose(again(X), model(X), atol=1e-6)
    model.save_adapter(tmp_path / "adapter")
    other = made(distribution_of("one device", "mixtral", False))
    for weight in (weight for weight in model.weights if "/lora_" not in weight.path):
        next(one for one in other.weights if one.path == weight.path).assign(weight.numpy())
    other.load_adapter(tmp_path / "adapter")
    np.testing.assert_allclose(other(X), model(X), atol=1e-6)


def test_dropout_and_constraints_of_experts_are_errors():
    model = made(distribution_of("one device", "mixtral", False))
    with pytest.raises(ModelError, match="`dropout` is not available for experts"):
        model.enable_lora(RANK, "moe/experts_up", dropout=0.1)
    bounded = layers.MixtureOfExperts(EXPERTS, 12, kernel_constraint="max_norm", name="moe")
    with pytest.raises(ModelError, match=r"'moe/experts_up': .* must not have a constraint"):
        kd.Sequential([kd.Input((6, 8)), bounded]).enable_lora(RANK, "moe/experts_up")


def test_adapters_beside_experts_that_peft_takes_for_experts_are_not_saved(tmp_path):
    """`_convert_peft_config_moe` of peft 0.21.2 maps `down_proj` to `experts.down_proj` by its name alone."""
    model = kd.pretrained.load(FOLDER / "qwen3_moe_dense")
    model.enable_lora(RANK, ".*/(query|down)")
    said = r"model\.layers\.2\.mlp\.down_proj is not of experts(.|\n)*merge_lora"
    with pytest.raises(ModelError, match=said) as caught:
        model.save_adapter(tmp_path / "a")
    assert "q_proj" not in str(caught.value) and not (tmp_path / "a").exists()
    model.merge_lora()
    model.enable_lora(RANK, ".*/query|layers/3/.*/experts_down")
    model.save_adapter(tmp_path / "a")


def test_adapters_of_single_experts_name_the_way_out(tmp_path):
    modules = [f"base_model.model.model.layers.0.block_sparse_moe.experts.{expert}.w1" for expert in (0, 3)]
    arrays = {f"{module}.lora_{end}.weight": np.zeros((2, 16), "float32") for module in modules for end in "AB"}
    save_file(arrays, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["w1"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    model = kd.pretrained.load(FOLDER / "mixtral")
    said = r"experts\.0\.w1 is of a single expert, as in transformers 4 \(2 modules\): merge it in peft, and load"
    with pytest.raises(ModelError, match=said) as caught:
        model.load_adapter(tmp_path)
    assert "unknown module" not in str(caught.value)


def test_the_layer_names_the_method_of_its_model():
    layer = layers.MixtureOfExperts(EXPERTS, 12, name="moe")
    with pytest.raises(ModelError, match=r"'moe' has several weights(.|\n)*model\.enable_lora\(rank=8, layers="):
        layer.enable_lora(RANK)
    assert not hasattr(layer, "enable_lora")
