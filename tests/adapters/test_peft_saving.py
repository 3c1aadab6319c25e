"""`save_adapter` and `load_adapter`: the format of peft, names of the base's modules, stacks, and damaged files.

That peft reads these files, and that its own files give the same numbers here, was tried with peft 0.21.2.
"""

import copy
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist import layers
from keras_dist.errors import FileMissingError, ModelError
from keras_dist.interop import Joined, Linear, WeightMap
from tests.adapters.test_enabling import TOLERANCE, X, adapted, made, sharded, stacked, with_updates
from tests.adapters.test_lora_modules import X as ROWS
from tests.adapters.test_lora_modules import adapted as adapted_module
from tests.adapters.test_lora_modules import made as made_module

BASE = "base_model.model."
NAMES = WeightMap({"query/kernel": "model.self_attn.q_proj.weight", "output/kernel": "model.self_attn.o_proj.weight"})


def files(folder):
    return json.loads((folder / "adapter_config.json").read_text()), load_file(folder / "adapter_model.safetensors")


def test_the_files_are_those_of_peft(tmp_path):
    model = with_updates(adapted(sharded(), dropout=0.25))
    model.save_adapter(tmp_path / "a", base_model_name_or_path="org/base", task_type="CAUSAL_LM")
    config, arrays = files(tmp_path / "a")
    expected = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "org/base", "bias": "none"}
    expected |= {"r": 2, "lora_alpha": 4, "lora_dropout": 0.25, "target_modules": ["head", "output", "query"]}
    assert expected.items() <= config.items()
    weights = {weight.path: weight.numpy() for weight in model.trainable_weights}
    for name, outputs in (("query", 8), ("output", 8), ("head", 5)):
        first, second = (weights[f"{name}/lora_kernel_{one}"] for one in "ab")
        np.testing.assert_array_equal(arrays.pop(f"{BASE}{name}.lora_A.weight"), first.reshape(8, 2).T)
        np.testing.assert_array_equal(arrays.pop(f"{BASE}{name}.lora_B.weight"), second.reshape(2, outputs).T)
    assert not arrays
    other = made()
    other.load_adapter(tmp_path / "a")
    np.testing.assert_allclose(other.predict(X, verbose=0), model.predict(X, verbose=0), atol=TOLERANCE)
    assert "dropout" in str(other.get_layer("head").lora_dropout)
    again = adapted()
    again.load_adapter(tmp_path / "a")
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), atol=TOLERANCE)
    with pytest.raises(ModelError, match="exists"):
        model.save_adapter(tmp_path / "a", overwrite=False)


def test_modules_have_the_names_of_the_base(tmp_path):
    model = made()
    model.enable_lora(2, "query")
    model.save_adapter(tmp_path / "a", weight_map=NAMES)
    config, arrays = files(tmp_path / "a")
    assert config["target_modules"] == ["q_proj"]
    assert sorted(arrays) == [f"{BASE}model.self_attn.q_proj.lora_{one}.weight" for one in "AB"]
    made().load_adapter(tmp_path / "a", weight_map=NAMES)
    with pytest.raises(ModelError, match=r"unknown module model\.self_attn\.q_proj"):
        made().load_adapter(tmp_path / "a")
    forms = {"query/kernel": Linear(), "output/kernel": Linear(inputs=2)}
    wrong = {
        Joined("model.qo_proj.weight", 1): r"query/kernel: a part of model\.qo_proj, joined along the inputs",
        "model.qo_proj.weight": "query/kernel: its transform does more",
    }
    for (name, message), change in zip(wrong.items(), (Linear(), [(np.flip, np.flip), Linear()]), strict=True):
        fused = WeightMap({("query/kernel", "output/kernel"): name}, {**forms, "query/kernel": change})
        with pytest.raises(ModelError, match=message):
            model.save_adapter(tmp_path / "b", weight_map=fused)
        assert not (tmp_path / "b").exists()


def test_matrices_that_are_not_transposed_are_announced(tmp_path):
    model = made()
    model.enable_lora(2, "head")
    for transposed in (True, False):
        base = WeightMap({"head/kernel": "lm_head.weight"}, {"head/kernel": Linear(transpose=transposed)})
        model.save_adapter(tmp_path / "a", weight_map=base)
        assert files(tmp_path / "a")[0]["fan_in_fan_out"] is not transposed


def test_layers_have_different_ranks(tmp_path):
    model = made()
    model.enable_lora(2, "query|output", alpha=3, rank_pattern={"query": 4}, alpha_pattern={".*/kernel": 5, "query": 1})
    model.get_layer("head").enable_lora(3)
    with_updates(model)
    expected = model.predict(X, verbose=0)
    model.save_adapter(tmp_path / "a")
    config, arrays = files(tmp_path / "a")
    assert {name: array.shape[0] for name, array in arrays.items() if ".lora_A" in name} == {
        f"{BASE}query.lora_A.weight": 4,
        f"{BASE}output.lora_A.weight": 2,
        f"{BASE}head.lora_A.weight": 3,
    }
    ranks, alphas = (
        {**dict.fromkeys(config["target_modules"], config[name]), **config[pattern]}
        for name, pattern in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern"))
    )
    assert ranks == {"query": 4, "output": 2, "head": 3} and alphas == {"query": 5, "output": 5, "head": 3}
    again = made()
    again.load_adapter(tmp_path / "a")
    np.testing.assert_allclose(again.predict(X, verbose=0), expected, atol=TOLERANCE)
    for other in (copy.copy(again), again):
        other.load_adapter(tmp_path / "a")
        np.testing.assert_allclose(other.predict(X, verbose=0), expected, atol=TOLERANCE)
    again.save_adapter(tmp_path / "b")
    assert files(tmp_path / "b")[0] == config
    for bad, message in (({"querry": 4}, r"querry \(did you mean 'query'\?\)"), ({"query": 0}, "rank"), ([1], "dict")):
        with pytest.raises(ModelError, match=message):
            made().enable_lora(2, "query", rank_pattern=bad)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_patterns_of_peft_give_rank_and_alpha_of_each_module(use_rslora, folder, tmp_path):
    arrays = {name: array.astype("float16") for name, array in files(folder)[1].items()}
    arrays[f"{BASE}head.lora_A.weight"] = arrays[f"{BASE}head.lora_A.weight"][:1]
    arrays[f"{BASE}head.lora_B.weight"] = arrays[f"{BASE}head.lora_B.weight"][:, :1].copy()
    patterns = {"rank_pattern": {"^he.d": 1, "head": 7}, "alpha_pattern": {"(query|output)": 6, "ead": 9}}
    model = made()
    kernels = {name: model.get_layer(name).kernel.numpy() for name in ("query", "output", "head")}
    model.load_adapter(changed(folder, tmp_path, arrays, use_rslora=use_rslora, **patterns))
    model.merge_lora()
    for name, rank, alpha in (("query", 2, 6), ("output", 2, 6), ("head", 1, 4)):
        a, b = (arrays[f"{BASE}{name}.lora_{one}.weight"].astype("float32") for one in "AB")
        scale = alpha / (np.sqrt(rank) if use_rslora else rank)
        expected = kernels[name] + scale * (b @ a).T.reshape(kernels[name].shape)
        np.testing.assert_allclose(model.get_layer(name).kernel.numpy(), expected, atol=TOLERANCE, err_msg=name)


def test_embeddings_and_convolutions_have_their_own_forms(tmp_path):
    model = made(make=stacked)
    model.enable_lora(2, "table|c")
    with_updates(model)
    model.save_adapter(tmp_path / "a")
    _, arrays = files(tmp_path / "a")
    shapes = {name.removeprefix(BASE): array.shape for name, array in arrays.items()}
    assert shapes == {
        "table.lora_embedding_A": (2, 7),
        "table.lora_embedding_B": (4, 2),
        "c.lora_A.weight": (2, 4, 2),
        "c.lora_B.weight": (3, 2, 1),
    }
    first = model.get_layer("c").weights[2].numpy()
    np.testing.assert_array_equal(arrays[f"{BASE}c.lora_A.weight"][1, 3, 0], first[0, 3, 1])
    tokens = np.arange(15).reshape(3, 5) % 7
    other = made(make=stacked)
    save_file(
        arrays | {f"{BASE}table.base_layer.weight": np.ones((7, 4), "float32")},
        tmp_path / "a" / "adapter_model.safetensors",
    )
    other.load_adapter(tmp_path / "a")
    np.testing.assert_allclose(other.predict(tokens, verbose=0), model.predict(tokens, verbose=0), atol=TOLERANCE)


@pytest.mark.parametrize(("name", "shape"), [("head", (5, 8)), ("query", (8, 8)), ("output", (8, 8))])
def test_copies_of_adapted_layers_are_no_adapters(name, shape, folder, tmp_path):
    """peft adds the weight of an adapted head of a language model, `lm_head.base_layer.weight`."""
    arrays = files(folder)[1]
    weight = f"{BASE}{name}.base_layer.weight"
    model, other = made(), made()
    model.load_adapter(folder)
    other.load_adapter(changed(folder, tmp_path, arrays | {weight: np.ones(shape, "float32")}))
    np.testing.assert_array_equal(other.predict(X, verbose=0), model.predict(X, verbose=0))
    larger = arrays | {weight: np.ones((shape[0] + 1, shape[1]), "float32")}
    with pytest.raises(ModelError, match=f"not in the model: {weight}"):
        made().load_adapter(changed(folder, tmp_path, larger))


class Tied(kd.Model):
    def __init__(self):
        super().__init__()
        self.table = layers.ReversibleEmbedding(7, 4)

    def call(self, tokens):
        return self.table(self.table(tokens), reverse=True)


def test_embeddings_that_are_the_head_are_merged_and_not_saved(tmp_path):
    model = made(make=Tied)
    tokens = np.arange(15).reshape(3, 5) % 7
    model.build((None, 5))
    model.enable_lora(2, "table")
    with_updates(model)
    table, first, second = (weight.numpy() for weight in model.weights)
    table = table + first @ second
    np.testing.assert_allclose(model.predict(tokens, verbose=0), table[tokens] @ table.T, atol=TOLERANCE)
    with pytest.raises(ModelError, match="it is also the head"):
        model.save_adapter(tmp_path / "a")


class StackedDense(layers.Dense):
    """Two layers in one: the weights have a leading dim."""

    def build(self, input_shape):
        self.kernel = self._add_adapted((2, input_shape[-1], self.units), ("layers", "inputs", "outputs"))
        self._add_factors()


class Loop(kd.Layer):
    """Calls the layers of a stack in a loop, each with its slice of all weights."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block = StackedDense(8, use_bias=False)

    def build(self, input_shape):
        self.block.build(input_shape)

    def call(self, inputs):
        graph, state = nnx.split(self.block)
        return jax.lax.scan(lambda x, one: (jnp.tanh(nnx.merge(graph, one)(x)), None), inputs, state)[0]


def test_the_factors_of_a_stack_have_its_dim_and_a_module_for_each_layer(tmp_path):
    def loop():
        return kd.Sequential([kd.Input((8,)), Loop(name="loop")])

    model = made(make=loop)
    model.enable_lora(3, ".*/block", alpha=6)
    assert [weight.shape for weight in model.trainable_weights] == [(2, 8, 3), (2, 3, 8)]
    with_updates(model)
    kernel, first, second = (weight.numpy() for weight in model.weights)
    limit = np.sqrt(6 / 8)  # of he_uniform for 8 inputs, not 16
    assert limit * 0.8 < np.abs(first).max() <= limit
    expected = ROWS
    for one in range(2):
        expected = np.tanh(expected @ (kernel[one] + 2 * first[one] @ second[one]))
    np.testing.assert_allclose(model.predict(ROWS, verbose=0), expected, atol=TOLERANCE)
    names = WeightMap({"loop/block/kernel": "model.{}.up.weight"})
    for given, modules in ((None, ["loop.block.0", "loop.block.1"]), (names, ["model.0.up", "model.1.up"])):
        model.save_adapter(tmp_path / "a", weight_map=given)
        _, arrays = files(tmp_path / "a")
        assert sorted(arrays) == [f"{BASE}{module}.lora_{one}.weight" for module in modules for one in "AB"]
        np.testing.assert_array_equal(arrays[f"{BASE}{modules[1]}.lora_A.weight"], first[1].T)
        other = made(make=loop)
        other.load_adapter(tmp_path / "a", weight_map=given)
        np.testing.assert_allclose(other.predict(ROWS, verbose=0), expected, atol=TOLERANCE)
    with pytest.raises(ModelError, match="2 modules in the file, not 1"):
        model.save_adapter(tmp_path / "b", weight_map=WeightMap({"loop/block/kernel": "up.weight"}))
    model.merge_lora()
    np.testing.assert_allclose(model.predict(ROWS, verbose=0), expected, atol=TOLERANCE)


def test_adapters_of_a_module_are_saved_and_loaded(tmp_path):
    model = with_updates(adapted_module())
    for weight in model.trainable_weights:
        weight.assign(np.sin(np.arange(weight.size)).reshape(weight.shape))
    model.save_adapter(tmp_path / "a")
    config, arrays = files(tmp_path / "a")
    assert config["target_modules"] == ["blocks.0", "blocks.1", "heads.0", "matrix", "output", "query"]
    assert arrays[f"{BASE}blocks.1.lora_A.weight"].shape == (2, 8)
    config["lora_dropout"] = 0.05
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config))
    other = made_module()
    with pytest.raises(ModelError, match="`dropout` is not available"):
        other.load_adapter(tmp_path / "a")
    other.load_adapter(tmp_path / "a", dropout=0)
    np.testing.assert_allclose(other.predict(ROWS, verbose=0), model.predict(ROWS, verbose=0), atol=TOLERANCE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "a"
    with_updates(adapted()).save_adapter(folder)
    return folder


def changed(folder, tmp_path, arrays=(), **entries):
    config, found = files(folder)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | entries))
    save_file(
        {name: array for name, array in (found | dict(arrays)).items() if array is not None},
        tmp_path / "adapter_model.safetensors",
    )
    return tmp_path


def test_one_error_lists_options_that_are_not_supported(folder, tmp_path):
    options = {"use_dora": True, "lora_bias": True, "r": 2.5, "lora_alpha": None, "modules_to_save": [3]}
    options |= {"rank_pattern": {"q": 0}, "alpha_pattern": {"(": 1}}
    with pytest.raises(ModelError) as caught:
        made().load_adapter(changed(folder, tmp_path, **options, init_lora_weights="pissa"))
    text = str(caught.value)
    for one in (
        "use_dora=True with lora_bias=True",
        "r=2.5",
        "lora_alpha=None",
        "modules_to_save=[3]",
        "rank_pattern={'q': 0} is not a dict to positive integers",
        "alpha_pattern={'(': 1} has a key that is not a regular expression",
        "pissa",
    ):
        assert one in text, one
    kinds = {"alora_invocation_tokens": [5], "layer_replication": [[0, 2]], "use_qalora": True, "lora_bias": 1}
    with pytest.raises(ModelError) as caught:
        made().load_adapter(changed(folder, tmp_path, **kinds, target_parameters=[5]))
    assert all(name in str(caught.value) for name in (*kinds, "target_parameters"))
    with pytest.raises(ModelError, match="peft_type='IA3' is not 'LORA'"):
        made().load_adapter(changed(folder, tmp_path, peft_type="IA3"))


def test_one_error_lists_what_does_not_fit_and_the_model_stays(folder, tmp_path):
    arrays = {f"{BASE}query.lora_A.weight": np.ones((2, 9), "float32"), f"{BASE}head.lora_B.weight": None}
    arrays |= {f"{BASE}other.lora_magnitude_vector": np.ones(3, "float32")}
    arrays |= {f"{BASE}output.lora_A.weight": np.ones((2, 8), "int32")}
    path = changed(folder, tmp_path, arrays)
    for model in (made(), adapted()):
        before = [weight.path for weight in model.trainable_weights], model.get_weights()
        with pytest.raises(ModelError) as caught:
            model.load_adapter(path)
        text = str(caught.value)
        assert "query.lora_A.weight has shape (2, 9), not (2, 8)" in text
        assert "missing: base_model.model.head.lora_B.weight" in text
        assert "not in the model: base_model.model.other.lora_magnitude_vector" in text
        assert "output.lora_A.weight has elements of int32" in text
        assert [weight.path for weight in model.trainable_weights] == before[0]
        for value, kept in zip(model.get_weights(), before[1], strict=True):
            np.testing.assert_array_equal(value, kept)
    with pytest.raises(ModelError, match=r"head: rank is 3, in the model 2; head/kernel: alpha / rank is 2\.66"):
        adapted().load_adapter(changed(folder, tmp_path, r=3, lora_alpha=8))


def test_damaged_files_are_errors(folder, tmp_path):
    with pytest.raises(FileMissingError, match="does not exist"):
        made().load_adapter(tmp_path / "none")
    path = changed(folder, tmp_path)
    for text in ("{", "[1]", '{"r": ' + "9" * 5000 + "}", "[" * 100_000):
        (path / "adapter_config.json").write_text(text)
        with pytest.raises(ModelError, match=r"cannot be read|is not supported"):
            made().load_adapter(path)
    (path / "adapter_config.json").write_text(" " * 2**20 + "{}")
    with pytest.raises(ModelError, match="more than 1048576 bytes"):
        made().load_adapter(path)
    path = changed(folder, tmp_path, r=2**31 - 1)
    with pytest.raises(ModelError, match=r"has shape \(2, 8\), not \(2147483647, 8\)"):
        made().load_adapter(path)
    changed(folder, tmp_path)
    (path / "adapter_model.safetensors").unlink()
    (path / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(FileMissingError, match="pickles"):
        made().load_adapter(path)
    with pytest.raises(ModelError, match="has no adapters"):
        made().save_adapter(tmp_path / "b")
    model = made()
    model.enable_lora(2, "head")
    model.get_layer("query").enable_lora(2)
    with pytest.raises(ModelError, match="query/kernel was adapted by its layer alone, whose factors split other dims"):
        model.save_adapter(tmp_path / "b")
