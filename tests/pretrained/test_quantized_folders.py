"""`load(quantize=)`: networks as qwix quantizes them, on every mesh; folders that others have quantized; plans."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist.errors import ConfigError, ModelError
from tests import soak
from tests.pretrained import python_source
from tests.pretrained.networks import FOLDER, OF_OTHERS
from tests.pretrained.test_families import distribution_of, inputs_of

QUANTIZED = OF_OTHERS / "quantized"
FORMS = ("nf4", "nf4_twice", "fp8")
pytestmark = pytest.mark.filterwarnings("ignore")


def of_qwix(family, mode):
    """The outputs of a network whose kernels in blocks qwix has quantized and dequantized."""
    with distribution_of("one device", family, False).scope():
        model = kd.pretrained.load(FOLDER / family)
    for weight in model.weights:
        dims = [dim for dim, name in enumerate(weight.dim_names) if name == "inputs"]
        if dims and weight.path.startswith("layers/") and not weight.path.endswith("/router"):
            size, others = weight.shape[dims[-1]], [dim for dim in range(weight.ndim) if dim != dims[-1]]
            tile = size if size < 16 else next(tile for tile in range(64, 15, -1) if size % tile == 0)
            how = {"channelwise_axes": others, "tiled_axes": {dims[-1]: tile}}
            qtype = jnp.float8_e4m3fn if mode == "fp8" else mode
            weight.assign(np.asarray(qwix.dequantize(qwix.quantize(jnp.asarray(weight.numpy()), qtype, **how))))
    return np.asarray(model(inputs_of(family)[0]))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("mode", ["nf4", "int8", "int4", "fp8"])
@pytest.mark.parametrize(("family", "scan"), [("llama", True), ("mixtral", False), ("qwen2", True), ("llama", False)])
def test_logits_are_those_with_weights_of_qwix(family, scan, mode):
    expected = of_qwix(family, mode)
    for layout in ("one device", "megatron", "fully sharded"):
        with distribution_of(layout, family, scan).scope():
            model = kd.pretrained.load(FOLDER / family, quantize=mode, scan=scan)
        found = np.asarray(model(inputs_of(family)[0]))
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), err_msg=layout)
        kinds = {row.path: str(row.dtype) for row in model.layout_plan.rows}
        left = [path for path, kind in kinds.items() if kind == "float32" and not path.endswith("_scale")]
        assert {path.rpartition("/")[2] for path in left} <= {"embeddings", "kernel", "bias", "scale", "router"}
        assert [path for path in left if path.endswith("kernel")] in (["head/kernel"], [])


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_kernels_of_blocks_alone_are_quantized(family):
    model = kd.pretrained.describe(FOLDER / family, quantize="int8")
    stored = {one.path for one in model.weights if one.path.endswith("_scale")}
    assert stored and all(path.startswith("layers/") for path in stored)
    assert [one.path for one in model.weights if one.path == "pooler/kernel" and str(one.dtype) == "float32"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["one device", "fully sharded"])
def test_folders_that_others_have_quantized_are_read(form, layout, tmp_path):
    values = load_file(QUANTIZED / form / "outputs.safetensors")
    with distribution_of(layout, "llama", False).scope():
        model = kd.pretrained.load(QUANTIZED / form)
        found = np.asarray(model(values["input_ids"]))
    np.testing.assert_allclose(found, values["outputs"], atol=1e-5 * np.abs(values["outputs"]).max())
    kd.pretrained.save(model, tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    again = kd.pretrained.load(tmp_path)
    np.testing.assert_allclose(np.asarray(again(values["input_ids"])), found, rtol=1e-4, atol=1e-4)


WRONG = [
    ({"quant_method": "gptq", "bits": 4}, "'gptq'"),
    ({"quant_method": "mxfp4"}, "'mxfp4'"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "64"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "load_in_8bit"),
    ("fp8", "'fp8'"),
]


@pytest.mark.parametrize(("entry", "named"), WRONG)
def test_other_forms_are_refused_by_name(entry, named, tmp_path):
    shutil.copytree(QUANTIZED / "fp8", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, "quantization_config": entry}))
    with pytest.raises(ConfigError, match=f"(?s)quantization_config=.*{named}.* is not supported, only fp8"):
        kd.pretrained.load(tmp_path / "a")


def _absmax(arrays, name):
    arrays[f"{name}.absmax"] = arrays[f"{name}.absmax"][:-1]


def _state(arrays, name):
    arrays[f"{name}.quant_state.bitsandbytes__nf4"] = np.frombuffer(b'{"shape": [1e9]}', np.uint8)


def _values(arrays, name):
    arrays[name] = arrays[name][:-4]


@pytest.mark.parametrize("damage", [_absmax, _state, _values])
def test_damaged_files_are_errors(damage, tmp_path):
    shutil.copytree(QUANTIZED / "nf4", tmp_path / "a")
    arrays = load_file(tmp_path / "a" / "model.safetensors")
    damage(arrays, "model.layers.0.mlp.up_proj.weight")
    save_file(arrays, tmp_path / "a" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"(?s)quantized weight of an unknown form.*up_proj"):
        kd.pretrained.load(tmp_path / "a")


def test_a_plan_of_a_description_has_the_bytes_of_the_loaded_network():
    batch = (jax.ShapeDtypeStruct((8, 12), "int32"),) * 2
    plans = []
    for make in (kd.pretrained.describe, kd.pretrained.load):
        with distribution_of("megatron", "llama", True).scope():
            model = make(FOLDER / "llama", quantize="nf4", scan=True)
            model.enable_lora(4, ".*/(query|value)")
        plans.append(kd.plan(model, batch, optimizer="adam", loss="causal_lm", compiles=False))
    assert [(row.path, row.shape, row.dtype, row.axes) for row in plans[0].state.rows] == [
        (row.path, row.shape, row.dtype, row.axes) for row in plans[1].state.rows
    ]
    parts = {shard.device: 0 for shard in model.weights[0].value.addressable_shards}
    for weight in model.weights:
        for shard in weight.value.addressable_shards:
            parts[shard.device] += shard.data.nbytes
    bytes_of_rows = sum(row.nbytes_per_device for row in plans[0].state.rows if row.role == "parameter")
    assert set(parts.values()) == {bytes_of_rows}


def test_adapters_of_a_quantized_base_are_those_of_peft(tmp_path):
    x, _, _ = inputs_of("llama")
    with distribution_of("fully sharded", "llama", False).scope():
        model = kd.pretrained.load(FOLDER / "llama", quantize="int8")
        model.enable_lora(3, ".*/(query|value|down)")
        for weight in model.trainable_weights:
            weight.assign(np.sin(np.arange(weight.size)).reshape(weight.shape) / 5)
        model.save_adapter(tmp_path / "a")
        before = np.asarray(model(x))
        other = kd.pretrained.load(FOLDER / "llama", quantize="int8")
        other.load_adapter(tmp_path / "a")
        np.testing.assert_array_equal(np.asarray(other(x)), before)
        plain = kd.pretrained.load(FOLDER / "llama")
        plain.load_adapter(tmp_path / "a")  # the shapes of factors are those of the base in floating point
        kd.pretrained.save(model, tmp_path / "merged")
        merged = kd.pretrained.load(tmp_path / "merged")
    np.testing.assert_allclose(np.asarray(merged(x)), before, atol=1e-5 * np.abs(before).max())


@pytest.mark.multiprocess
@pytest.mark.parametrize("scan", [True, False])
def test_under_full_sharding_weights_are_gathered_as_they_are_stored(scan):
    batch, gathered = (jax.ShapeDtypeStruct((8, 12), "int32"),) * 2, {}
    for mode in (None, "int8", "nf4"):
        with kd.FullySharded(kd.DeviceMesh("data=8")).scope():
            model = kd.pretrained.load(FOLDER / "mistral", quantize=mode, scan=scan)
            model.enable_lora(2, ".*/query")
        report = kd.plan(model, batch, optimizer="sgd", loss="causal_lm", target="cpu:8")
        gathered[mode] = report.verdict.compiled.nbytes_by_axes()["all_gather", ("data",)]
        assert gathered[mode] == pytest.approx(report.step.nbytes_by_axes()["all_gather", ("data",)], rel=0.05)
    assert gathered["nf4"] < gathered["int8"] < 0.75 * gathered[None], "embeddings, head and factors stay in float32"


@soak.soak_if_large
@pytest.mark.slow
def test_a_quantized_base_keeps_98_percent_of_the_decrease_of_the_loss(tmp_path):
    sizes = {"hidden_size": 128, "feed_forward": kd.pretrained.FeedForwardConfig(256)}
    config = dataclasses.replace(python_source.CONFIG, **sizes)
    modules, packages = (kd.data.pack(python_source.texts(pattern), 64) for pattern in ("*.py", "*/*.py"))
    with kd.FullySharded(kd.DeviceMesh("data=8")).scope():
        kd.set_random_seed(0)
        base = kd.pretrained.Decoder(config, dtype="mixed_bfloat16")
        base.compile(kd.optimizers.Adam(3e-3), loss="causal_lm")
        base.fit(modules, None, 16, 8, verbose=0)
        kd.pretrained.save(base, tmp_path)
        losses = {}
        for mode in (None, "nf4", *["int8", "int4", "fp8"] * soak.LARGE):
            model = kd.pretrained.load(tmp_path, dtype="bfloat16", quantize=mode)
            model.enable_lora(8, ".*/(query|key|value|output|gate|up|down)", alpha=16)
            model.compile(kd.optimizers.Adam(2e-3), loss="causal_lm")
            before = model.evaluate(packages, batch_size=16, verbose=0)
            model.fit(packages, None, 16, 3, shuffle=False, verbose=0)
            losses[mode] = before, model.evaluate(packages, batch_size=16, verbose=0)
    start, end = losses[None]
    assert end < start - 0.5
    for _, end_of_mode in losses.values():
        assert start - end_of_mode > 0.98 * (start - end), losses
