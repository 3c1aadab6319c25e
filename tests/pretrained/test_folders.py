"""Folders that others wrote: old forms of `config.json`, other names, and what cannot be used."""

import contextlib
import dataclasses
import json
import shutil
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist.errors import ConfigError, FileMissingError, ModelError, UnknownNameError
from keras_dist.models import weight_creation
from keras_dist.pretrained import NormConfig, Rotary, families, register_family
from tests import soak
from tests.pretrained.networks import FOLDER

LLAMA = json.loads((FOLDER / "llama" / "config.json").read_text())


def folder_of(folder, family="llama", changes=None, names=lambda name: name, left_out=(), added=None):
    """Write a recorded network in another form."""
    folder.mkdir(exist_ok=True)
    document = json.loads((FOLDER / family / "config.json").read_text()) | (changes or {})
    kept = {key: value for key, value in document.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    arrays = load_file(FOLDER / family / "model.safetensors")
    arrays = {names(name): array for name, array in arrays.items() if name not in left_out} | (added or {})
    save_file(arrays, folder / "model.safetensors")
    return folder


def outputs_equal(model, family):
    values = load_file(FOLDER / family / "outputs.safetensors")
    np.testing.assert_allclose(model(values["input_ids"]), values["outputs"], atol=1e-4)


def test_entries_of_transformers_4_mean_the_same(tmp_path):
    parameters = LLAMA["rope_parameters"]
    scaling = {"type" if key == "rope_type" else key: value for key, value in parameters.items() if key != "rope_theta"}
    old = {"rope_parameters": ..., "rope_theta": parameters["rope_theta"], "rope_scaling": scaling}
    found = kd.pretrained.describe(folder_of(tmp_path / "old", changes=old)).config
    assert found == kd.pretrained.describe(FOLDER / "llama").config
    nested = json.loads((FOLDER / "gemma3_text" / "config.json").read_text())["rope_parameters"]
    linear = {"rope_type": "linear", "factor": nested["full_attention"]["factor"]}
    old = {"rope_parameters": ..., "rope_theta": 100.0, "rope_local_base_freq": 50.0, "rope_scaling": linear}
    old |= {"layer_types": ..., "sliding_window_pattern": 2}
    found = kd.pretrained.describe(folder_of(tmp_path / "gemma", "gemma3_text", old)).config
    assert found.attention == kd.pretrained.describe(FOLDER / "gemma3_text").config.attention


def test_entries_that_are_left_out_have_the_defaults_of_transformers(tmp_path):
    few = ("architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    changes = {key: ... for key in LLAMA if key not in (*few, "num_attention_heads")}
    found = kd.pretrained.describe(folder_of(tmp_path, changes=changes)).config
    assert (found.attention.num_kv_heads, found.attention.head_dim) == (4, 4)
    assert found.attention.rotary == Rotary()
    assert (found.norm.epsilon, found.tied_head, found.max_length) == (1e-6, False, 2048)


def test_names_without_a_prefix_or_with_one_are_found(tmp_path):
    buffers = {"h.0.attn.bias": np.zeros((1, 1, 4, 4), "float32"), "h.1.attn.masked_bias": np.zeros((), "float32")}
    folder = folder_of(tmp_path / "gpt2", "gpt2", names=lambda name: name.removeprefix("transformer."), added=buffers)
    outputs_equal(kd.pretrained.load(folder), "gpt2")
    scores = {"cls.predictions.bias": np.zeros(64, "float32"), "bert.embeddings.position_ids": np.arange(16)[None]}
    pooler = ("pooler.dense.weight", "pooler.dense.bias")
    changes = {"architectures": ["BertForMaskedLM"]}
    options = {"names": lambda name: f"bert.{name}", "left_out": pooler, "added": scores}
    folder = folder_of(tmp_path / "bert", "bert", changes, **options)
    with pytest.raises(ModelError, match=r"not in the model: cls\.predictions\.bias") as caught:
        kd.pretrained.load(folder)
    assert "ignore=" in caught.value.fix and "strict" not in str(caught.value)
    model = kd.pretrained.load(folder, ignore=r"cls\..*")
    assert model(np.zeros((1, 3), "int32")).shape == (1, 3, 32)
    kd.pretrained.save(model, tmp_path / "again")
    saved = load_file(tmp_path / "again" / "model.safetensors")
    assert set(saved) == {f"bert.{name}" for name in load_file(FOLDER / "bert" / "model.safetensors")} - {
        f"bert.{name}" for name in pooler
    }


def test_a_tied_head_may_be_in_the_file_and_must_be_equal(tmp_path):
    embeddings = load_file(FOLDER / "qwen2" / "model.safetensors")["model.embed_tokens.weight"]
    folder = folder_of(tmp_path / "same", "qwen2", added={"lm_head.weight": embeddings})
    outputs_equal(kd.pretrained.load(folder), "qwen2")
    folder = folder_of(tmp_path / "other", "qwen2", added={"lm_head.weight": embeddings + embeddings})
    with pytest.raises(ModelError, match="lm_head"):
        kd.pretrained.load(folder)


def test_one_error_lists_arrays_that_are_missing_left_over_and_of_another_shape(tmp_path):
    added = {
        "model.layers.2.mlp.up_proj.weight": np.zeros((24, 16), "float32"),
        "model.norm.weight": np.zeros(17, "float32"),
    }
    folder = folder_of(tmp_path, left_out=("lm_head.weight",), added=added)
    with pytest.raises(ModelError) as caught:
        kd.pretrained.load(folder)
    for wrong in ("lm_head.weight", "model.layers.2.mlp.up_proj.weight", "norm/scale (17,) for (16,)"):
        assert wrong in caught.value.given


def test_one_error_lists_options_that_are_missing_or_not_supported(tmp_path):
    changes = {"vocab_size": ..., "quantization_config": {"bits": 4}, "hidden_act": "mish"}
    changes["rope_parameters"] = {"rope_type": "default", "rope_theta": 10.0, "mrope_section": [1, 2]}
    with pytest.raises(ConfigError) as caught:
        kd.pretrained.describe(folder_of(tmp_path, changes=changes))
    for wrong in ("missing: vocab_size", "quantization_config=", "mrope_section", "hidden_act='mish' must be one of"):
        assert wrong in caught.value.given
    with pytest.raises(ConfigError) as caught:
        kd.pretrained.describe(folder_of(tmp_path, changes={"hidden_act": "mish", "num_key_value_heads": 3}))
    assert "'mish'" in caught.value.given and "num_key_value_heads=3" in caught.value.given
    with pytest.raises(ConfigError, match="use_bidirectional_attention=True is not supported"):
        kd.pretrained.describe(folder_of(tmp_path, "gemma2", {"use_bidirectional_attention": True}))
    with pytest.raises(ConfigError, match="chunked_attention"):
        kd.pretrained.describe(folder_of(tmp_path, "qwen2", {"layer_types": ["full_attention", "chunked_attention"]}))


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("qwen2", {"layer_types": ["full_attention"], "hidden_act": "mish"}, ("layer_types must have", "hidden_act=")),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 0, "rope_theta": 0}},
            ("factor=0", "rope_theta=0"),
        ),
        (
            "llama",
            {"head_dim": 3, "num_key_value_heads": 3},
            ("head_dim=3", "num_key_value_heads=3 must divide num_att"),
        ),
        ("phi3", {"partial_rotary_factor": 2.0, "rope_parameters": None}, ("by partial_rotary_factor=2",)),
        ("llama", {"partial_rotary_factor": 0.5, "rope_parameters": None}, ("partial_rotary_factor=0.5 is not",)),
        ("qwen3", {"rope_parameters": {"rope_theta": 10.0, "partial_rotary_factor": 0.5}}, ("0.5 is not supported",)),
        (
            "gemma3_text",
            {"rope_parameters": {"rope_type": "linear", "factor": 8.0}, "hidden_activation": "mish"},
            ("rope_parameters has factor, rope_type outside of full_attention and sliding_attention", "'mish'"),
        ),
        ("gpt2", {"n_head": 3, "vocab_size": ...}, ("n_head=3 must divide n_embd", "missing: vocab_size")),
        ("bert", {"num_attention_heads": 3, "hidden_act": "mish"}, ("must divide hidden_size", "hidden_act='mish'")),
        ("vit", {"patch_size": 64, "pooler_act": "mish"}, ("patch_size=64 must be at most", "pooler_act='mish'")),
        ("vit", {"patch_size": 0}, ("patch_size=0 must be a positive integer",)),
        (
            "smollm3",
            {"no_rope_layers": [0] * 9, "hidden_act": "x"},
            ("no_rope_layers must have num_hid", "hidden_act="),
        ),
    ],
)
def test_values_that_no_network_can_have_are_errors_of_the_config(family, changes, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        kd.pretrained.describe(folder_of(tmp_path, family, changes))
    assert all(words in caught.value.given for words in said), caught.value.given


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"folder": None}, ModelError, "`folder` must be a path"),
        ({"folder": "Qwen/Qwen3-0.6B"}, FileNotFoundError, r"interop\.snapshot\('Qwen/Qwen3-0.6B'\)"),
        ({"dtype": "int8"}, ModelError, "`dtype` must be floating-point"),
        ({"attention": "flash"}, ModelError, "`attention` must be one of 'auto'"),
    ],
)
def test_wrong_arguments_of_load(arguments, error, said):
    with pytest.raises(error, match=said):
        kd.pretrained.load(**{"folder": FOLDER / "llama", **arguments})


def test_a_folder_without_weights_says_what_it_has(tmp_path):
    shutil.copy(FOLDER / "llama" / "config.json", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"index\.json are missing; the folder holds config"):
        kd.pretrained.load(tmp_path)


def test_save_writes_folders(tmp_path):
    model = kd.pretrained.load(FOLDER / "llama")
    with pytest.raises(ModelError, match="`folder` must be the path of a folder"):
        kd.pretrained.save(model, tmp_path / "model.safetensors")


def test_entries_that_are_unknown_are_named(tmp_path):
    with pytest.raises(ConfigError, match="attention_sinks=4 is unknown for 'llama'") as caught:
        kd.pretrained.describe(folder_of(tmp_path, changes={"attention_sinks": 4, "another": None, "more": False}))
    assert "another" not in str(caught.value) and "more=" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        ('{"model_type": "mamba"}', UnknownNameError, "unknown model_type 'mamba'"),
        ('{"model_type": ["llama"]}', UnknownNameError, "unknown model_type"),
        ("{}", UnknownNameError, "unknown model_type None"),
        ("[1, 2]", ConfigError, "must contain a dict"),
        ("{'a'", ConfigError, "cannot be read"),
        ("[" * 100_000, ConfigError, "cannot be read"),
        (json.dumps({**LLAMA, "num_hidden_layers": "2"}), ConfigError, "num_hidden_layers='2' must be"),
        (json.dumps({**LLAMA, "hidden_size": None}), ConfigError, "missing: hidden_size"),
        (json.dumps({**LLAMA, "num_hidden_layers": 10**12}), ConfigError, "num_hidden_layers=1000000000000"),
        (json.dumps({**LLAMA, "rope_parameters": [1]}), ConfigError, "rope_parameters=[1] must be a dict"),
    ],
)
def test_damaged_configs_are_errors_with_a_cause(content, error, said, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(error) as caught:
        kd.pretrained.describe(tmp_path)
    assert said in str(caught.value)


def test_files_of_other_programs_load_without_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_dist.formats.array_store._warned", [])
    folder = folder_of(tmp_path / "llama")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kd.pretrained.load(folder)


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileMissingError, match=r"config\.json' does not exist"):
        kd.pretrained.load(tmp_path)


def test_a_description_allocates_nothing_and_is_planned(tmp_path):
    changes = {"hidden_size": 2**14, "intermediate_size": 2**16, "num_hidden_layers": 64, "vocab_size": 2**17}
    changes |= {"num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    model = kd.pretrained.describe(tmp_path, dtype="bfloat16", scan=True)
    mesh = kd.DeviceMesh("data=4,model=8", devices=[f"tpu:{index}" for index in range(32)])
    report = kd.plan(model, np.zeros((4, 16), "int32"), kd.ModelParallel(kd.pretrained.rules(model, mesh)))
    feed_forward = 64 * (3 * 2**14 * 2**16 // 8) * 2
    assert report.nbytes_by_role["parameter"] > feed_forward
    assert model._built is None


def test_a_stranger_adds_a_family_by_one_class(tmp_path):
    @register_family("stranger")
    class Stranger(families.Llama):
        """Llama with other names."""

        architecture = "StrangerForCausalLM"
        names = {path: name.replace("model.", "decoder.") for path, name in families.Llama.names.items()}  # noqa: RUF012

    changes = {"model_type": "stranger"}
    folder = folder_of(tmp_path / "theirs", changes=changes, names=lambda name: name.replace("model.", "decoder."))
    model = kd.pretrained.load(folder)
    outputs_equal(model, "llama")
    kd.pretrained.save(model, tmp_path / "again")
    assert set(load_file(tmp_path / "again" / "model.safetensors")) == set(load_file(folder / "model.safetensors"))
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == "stranger"


def test_options_that_a_family_lacks_are_not_saved(tmp_path):
    config = dataclasses.replace(
        kd.pretrained.describe(FOLDER / "mistral").config,
        logit_soft_cap=3.0,
        norm=NormConfig(epsilon=0.1, placement="both"),
    )
    with pytest.raises(ConfigError, match="'mistral' do not have these options") as caught:
        kd.pretrained.save(kd.pretrained.Decoder(config), tmp_path / "m")
    assert caught.value.given == "norm.placement='both', logit_soft_cap=3.0"
    assert not (tmp_path / "m").exists()


def test_all_layers_may_be_listed_or_not(tmp_path):
    config = kd.pretrained.describe(FOLDER / "qwen2").config
    heads = dataclasses.replace(config.attention, sliding_layers=None)
    kd.pretrained.save(kd.pretrained.Decoder(dataclasses.replace(config, attention=heads)), tmp_path)
    assert kd.pretrained.describe(tmp_path).config.attention.sliding_layers == (0, 1)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, "float16"])
def test_a_network_with_a_chosen_kernel_is_saved_in_any_dtype(dtype, tmp_path):
    model = kd.pretrained.load(folder_of(tmp_path / "llama"), attention="xla")
    kd.pretrained.save(model, tmp_path / "saved", dtype=dtype)
    document = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert document["dtype"] == jnp.dtype(dtype).name
    assert {array.dtype for array in load_file(tmp_path / "saved" / "model.safetensors").values()} == {jnp.dtype(dtype)}


@soak.soak_if_large
@pytest.mark.slow
@pytest.mark.parametrize(("family", "is_short"), soak.sampled([("llama", True), ("vit", False)], 2))
def test_auto_parallel_finds_the_layout_before_weights_are_read(family, is_short):
    mesh = kd.DeviceMesh("data=2,model=4")
    least = contextlib.nullcontext()
    if is_short:
        least = pytest.warns(kd.errors.LayoutWarning, match="nothing fits")
    short = {"memory_limit": 1, "target": "v5e:2x4", "time_limit_seconds": 15}  # XLA for CPUs undoes `remat`
    with kd.AutoParallel(mesh, **(short if is_short else {})).scope(), least:
        model = kd.pretrained.load(FOLDER / family)
    assert not model.distribution.is_searched and model.distribution.device_mesh == mesh
    assert sum(row.nbytes_per_device < row.nbytes for row in model.layout_plan.rows) > 8
    assert model.remat == is_short
    values = load_file(FOLDER / family / "outputs.safetensors")
    inputs = values["pixel_values"].transpose(0, 2, 3, 1) if family == "vit" else values["input_ids"]
    outputs = model.predict(inputs, verbose=0)
    outputs = outputs["hidden"] if family == "vit" else outputs
    np.testing.assert_allclose(outputs, values["outputs"], atol=1e-4)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("way", "warned"), [("lora", 1), ("loaded", 0), ("as it is", 1), ("set", 0)])
def test_training_a_described_network_without_its_weights_warns(way, warned):
    tokens = np.zeros((2, 5), "int32")
    model = kd.pretrained.describe(FOLDER / "llama")
    if way == "loaded":
        model.load_weights(FOLDER / "llama", weight_map=model._map_of_base())
    if way == "set":
        model.build()
        model.set_weights(model.get_weights())
    if way == "lora":
        model.enable_lora(2, ".*query")
    model.compile("sgd", "causal_lm")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(tokens, tokens, verbose=0)
        model.fit(tokens, tokens, verbose=0)
        model.evaluate(tokens, tokens, verbose=0)
        model.compile("sgd", "causal_lm")
        model.fit(tokens, tokens, verbose=0)
    texts = [str(each.message) for each in caught if "describe" in str(each.message)]
    assert len(texts) == warned
    assert all(f"kd.pretrained.load({str(FOLDER / 'llama')!r})" in text for text in texts)


@pytest.mark.parametrize("size", [10**7, 2**31 - 1])
@pytest.mark.parametrize("name", ["vocab_size", "intermediate_size"])
def test_sizes_that_the_files_do_not_have_create_nothing(name, size, tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "n", changes={name: size})
    monkeypatch.setattr(weight_creation, "create_arrays", lambda *args, **kwargs: pytest.fail("created"))
    tensor = {"vocab_size": r"embedding/embeddings \(64, 16\)", "intermediate_size": r"down/kernel \(24, 16\)"}[name]
    with pytest.raises(ModelError, match=rf"{tensor} for \({size}, 16\)") as error:
        kd.pretrained.load(folder)
    assert "config.json" in error.value.fix


def test_more_layers_than_arrays_are_refused_before_any_is_made(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "n", changes={"num_hidden_layers": 5000})
    monkeypatch.setattr(weight_creation, "create_weights", lambda *args, **kwargs: pytest.fail("built"))
    with pytest.raises(ModelError, match=r"fewer arrays than config\.json has layers") as error:
        kd.pretrained.load(folder)
    assert "for 5000 layers" in error.value.given
