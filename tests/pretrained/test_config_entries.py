"""Each entry of `config.json` with values that nobody expects: an error that names the entry, or the same network."""

import dataclasses
import json
import warnings

import pytest

from keras_dist.errors import KerasDistError
from keras_dist.pretrained.config import NetworkConfig
from keras_dist.pretrained.family import HARMLESS, family_named
from tests.pretrained.networks import FOLDER

VALUES = (None, "2", -1, 0, 1.5, [], {}, True, 10**12, 10**400)
FAMILIES = sorted(folder.name for folder in FOLDER.iterdir())


def read(document: dict) -> NetworkConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of entries that are ignored
        config = family_named(document["model_type"]).read(document)
    return dataclasses.replace(config, extra={})


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
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported, only None"),
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
