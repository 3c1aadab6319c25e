"""Each entry of `config.json` with values that nobody expects: an error that names the entry, or the same network."""

import dataclasses
import json

import pytest

from keras_dist.errors import ConfigError, KerasDistError, UnknownNameError
from keras_dist.pretrained.config import NetworkConfig
from keras_dist.pretrained.family import HARMLESS, family_named
from tests.pretrained.networks import FOLDER

# `config_class().to_json_string(use_diff=False)` of each family in transformers 5.24
DEFAULTS = json.loads((FOLDER.parent / "default_configs.json").read_text())
VALUES = (None, "2", -1, 0, 1.5, [], {}, True, 10**12, 10**400)
FAMILIES = sorted(folder.name for folder in FOLDER.iterdir())


def read(document: dict) -> NetworkConfig:
    return dataclasses.replace(family_named(document["model_type"]).read(document), extra={})


def recorded(family: str, **changes: object) -> dict:
    return json.loads((FOLDER / family / "config.json").read_text()) | changes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_strange_value_is_an_error_that_names_the_entry_or_has_its_kind(family):
    document = json.loads((FOLDER / family / "config.json").read_text())
    reader, network = family_named(document["model_type"]), read(document)
    known = {**reader.defaults, **{key: value for key, value in document.items() if value is not None}}
    for key in sorted({*known, *reader.keys, *reader.handled, *reader.only} - {"model_type"}):
        for value in VALUES:
            try:
                found = read({**document, key: value})
            except KerasDistError as error:
                assert key in str(error) and "wrong type:" not in str(error), f"{key}={value}: {error}"
                continue
            if key in HARMLESS or key in reader.harmless or key in reader.only or value is None or found == network:
                continue
            kinds = (int, float) if isinstance(known[key], int | float | None) else type(known[key])
            is_flag = isinstance(value, bool)
            assert isinstance(value, kinds) and is_flag == isinstance(known[key], bool), f"{key}={value}"


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("mixtral", {"sliding_window": "2"}, "sliding_window='2' must be a positive integer"),
        ("mixtral", {"num_local_experts": ..., "num_experts": "2"}, "num_experts='2' must be a positive integer"),
        ("qwen3_moe", {"num_local_experts": "2", "num_experts": ...}, "num_local_experts='2' must be a positive"),
        ("qwen3_moe", {"num_hidden_layers": "2"}, "num_hidden_layers='2' must be a positive integer"),
        ("llama", {"mlp_bias": []}, "mlp_bias=[] must be true or false"),
        ("llama", {"hidden_size": 10**12}, "hidden_size=1000000000000 must be at most 2147483647"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0 must be a positive number"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping=0 must be positive"),
        ("smollm3", {"use_sliding_window": "yes"}, "use_sliding_window='yes' must be true or false"),
        ("qwen3", {"rope_parameters": "default"}, "rope_parameters='default' must be a dict"),
        ("vit", {"image_size": None}, "image_size=None must be a positive integer"),
        ("gemma3_text", {"head_dim": 3}, "head_dim=3 by partial_rotary_factor=1 must be an even number"),
        ("phi3", {"head_dim": 3}, "head_dim=3 by partial_rotary_factor=0.5 must be an even number"),
        ("mixtral", {"num_key_value_heads": "x"}, "num_key_value_heads='x' must be a positive integer"),
        ("smollm3", {"num_hidden_layers": "x"}, "num_hidden_layers='x' must be a positive integer"),
        ("llama", {"rms_norm_eps": 1e300}, "rms_norm_eps=1e+300 must be a number from 0 to 1e+38"),
        ("gemma3_text", {"rope_parameters": {"full_attention": 5}}, "rope_parameters={'full_attention': 5} must be a"),
        ("qwen3", {"rope_parameters": {"rope_type": {"a": 1}}}, "rope_type={'a': 1} must be one of 'default'"),
    ],
)
def test_one_wrong_entry_is_one_problem_under_its_name(family, changes, said):
    document = json.loads((FOLDER / family / "config.json").read_text()) | changes
    with pytest.raises(KerasDistError) as caught:
        read({key: value for key, value in document.items() if value is not ...})
    assert caught.value.given.startswith(said) and ";" not in caught.value.given


def test_an_entry_under_two_names_may_be_null_under_one():
    document = json.loads((FOLDER / "mixtral" / "config.json").read_text())
    assert read({**document, "num_local_experts": None, "num_experts": 4}) == read(document)


def test_rotary_embeddings_of_two_forms_must_be_the_same():
    given = json.loads((FOLDER / "llama" / "config.json").read_text())
    given["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(KerasDistError, match="rope_parameters and rope_scaling differ"):
        family_named("llama").read(given)


@pytest.mark.parametrize("family", DEFAULTS)
def test_all_entries_that_transformers_writes_are_known(family):
    read(DEFAULTS[family])


@pytest.mark.parametrize(
    ("family", "entries"),
    [
        ("llama", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}),
        ("llama", {"max_sequence_length": 2048, "unsloth_fixed": True, "torch_dtype": "float16", "clip_qkv": None}),
        ("llama", {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_length": 4096, "image_token_id": 7}),
        ("llama", {"residual_multiplier": 1.0, "logits_scaling": 1, "layer_types": ["full_attention"] * 2}),
        ("qwen2", {"use_mrope": False, "attention_bias": False, "embedding_dropout": 0.1}),
        ("mistral", {"layer_types": ["sliding_attention"] * 2}),
        ("mixtral", {"router_jitter_noise": 0.1}),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}),
        ("bert", {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}),
        ("bert", {"gradient_checkpointing": True, "output_past": True, "_num_labels": 1}),
    ],
)
def test_entries_of_published_networks_that_change_nothing_are_accepted(family, entries):
    assert read(recorded(family, **entries)) == read(recorded(family))


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        *(("llama", name, 0.5) for name in ("residual_multiplier", "embedding_multiplier", "logits_scaling")),
        ("llama", "attention_multiplier", 1.0),  # instead of 1 / sqrt(head_dim)
        ("llama", "residual_multiplier", 0.0),
        ("llama", "layer_types", ["sliding_attention", "full_attention"]),
        ("mistral", "layer_types", ["full_attention"] * 2),
        ("qwen3_moe", "layer_types", ["sliding_attention"] * 2),
        ("llama", "sliding_window", 4),
        ("llama", "qk_norm", True),
        ("llama", "use_qk_norm", True),
        ("llama", "is_causal", False),
        ("llama", "attn_logit_softcapping", 30.0),
        ("mistral", "attention_bias", True),
        ("olmo2", "mlp_bias", True),
        ("olmo2", "clip_qkv", 8.0),
        ("gpt2", "rope_theta", 100.0),
        ("bert", "partial_rotary_factor", 0.5),
        ("vit", "use_swiglu_ffn", True),
        ("qwen2", "quantization", {"bits": 4}),
        ("qwen2", "norm_type", "layer"),
    ],
)
def test_entries_that_may_change_the_results_are_errors(family, key, value):
    with pytest.raises(ConfigError) as caught:
        read(recorded(family, **{key: value}))
    assert caught.value.given.startswith(f"{key}={value!r}"[:80])
    assert "load it with transformers" in caught.value.fix and "unknown entries" in caught.value.fix


@pytest.mark.parametrize("model_type", ["mistral3", "llama4_text", "Llama", "qwen3_next", "gemma3", "gpt2_"])
def test_no_other_family_is_suggested(model_type):
    with pytest.raises(UnknownNameError, match=f"unknown model_type '{model_type}'") as caught:
        read(recorded("llama", model_type=model_type))
    assert "did you mean" not in str(caught.value) and "correct the name" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "same"),
    [("swish", "silu"), ("gelu_python", "gelu"), ("gelu_fast", "gelu_new"), ("gelu_accurate", "gelu_new")],
)
def test_activations_have_the_names_of_transformers(name, same):
    for family, key in (("llama", "hidden_act"), ("gpt2", "activation_function"), ("gemma2", "hidden_activation")):
        assert read(recorded(family, **{key: name})) == read(recorded(family, **{key: same}))


@pytest.mark.parametrize(
    ("rotary", "said"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}, "rope_theta=1"),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1}, "rope_theta=1"),
        ({"rope_type": "longrope", "original_max_position_embeddings": 1}, "original_max_position_embeddings=1"),
        ({"rope_type": "longrope", "short_factor": [0.0] * 4}, "short_factor"),
    ],
)
def test_rotary_options_without_a_frequency_are_errors(rotary, said):
    given = {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4, "factor": 2.0, **rotary}
    given = {key: value for key, value in given.items() if "_factor" not in key or rotary["rope_type"] == "longrope"}
    with pytest.raises(ConfigError) as caught:
        read(recorded("llama", rope_parameters={"rope_theta": 100.0, **given}))
    assert said in caught.value.given
