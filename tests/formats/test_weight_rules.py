"""Rules of `WeightMap`, one at a time: functions, element types, tied and joined arrays, adapters."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.interop import Joined, Linear, Offset, WeightMap
from tests.formats.block_of_weights import Block, array


def dense(name, *shape, dtype="float32"):
    return kd.Sequential([kd.Input((2,)), Block({"w": shape}, name=name, dtype=dtype)])


def test_functions_of_a_user_in_both_directions(tmp_path):
    save_file({"w": array(2, 3)}, tmp_path / "x.safetensors")
    network = dense("a", 3, 2)
    weight_map = WeightMap({"a/w": "w"}, {"a/w": (lambda w: w.T * 2, lambda w: w.T / 2)})
    network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
    np.testing.assert_array_equal(network.get_weights()[0], array(2, 3).T * 2)
    network.save_weights(tmp_path / "y.safetensors", weight_map=weight_map)
    np.testing.assert_array_equal(load_file(tmp_path / "y.safetensors")["w"], array(2, 3))


def test_a_single_function_serves_loading_alone(tmp_path):
    save_file({"w": array(2, 3)}, tmp_path / "x.safetensors")
    network, weight_map = dense("a", 3, 2), WeightMap({"a/w": "w"}, {"a/w": np.transpose})
    network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
    with pytest.raises(ModelError, match="cannot be inverted") as error:
        network.save_weights(tmp_path / "y.safetensors", weight_map=weight_map)
    assert "(load, save)" in error.value.fix and "of the weight 'a/w'" in error.value.__notes__[0]
    assert not (tmp_path / "y.safetensors").exists()


def test_one_array_for_several_weights_must_say_how_to_be_saved(tmp_path):
    network = kd.Sequential([kd.Input((2,)), Block({"q": (2, 2), "k": (2, 2)}, name="a")])
    save_file({"qk": array(4, 2)}, tmp_path / "x.safetensors")
    weight_map = WeightMap({"a/.*": "qk"}, {"a/q": lambda w: w[:2], "a/k": lambda w: w[2:]})
    network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
    np.testing.assert_array_equal(network.get_weights()[1], array(4, 2)[2:])
    with pytest.raises(ModelError, match="does not say how 'qk' consists of 2 weights"):
        network.save_weights(tmp_path / "y.safetensors", weight_map=weight_map)


@pytest.mark.parametrize(("written", "held"), [(jnp.bfloat16, "float32"), (np.float16, "float32"), ("f4", "bfloat16")])
def test_element_types(written, held, tmp_path):
    value = array(2, 3).astype(written) / 2
    save_file({"w": value}, tmp_path / "x.safetensors")
    network = dense("a", 2, 3, dtype=held)
    network.load_weights(tmp_path / "x.safetensors", weight_map=WeightMap({"a/w": "w"}))
    assert network.weights[0].dtype == held
    network.save_weights(tmp_path / "y.safetensors", weight_map=WeightMap({"a/w": "w"}), dtype=written)
    found = load_file(tmp_path / "y.safetensors")["w"]
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, value)


def test_a_number_that_the_type_of_the_file_cannot_hold(tmp_path):
    network = dense("a", 2, 3)
    network.set_weights([np.full((2, 3), 7e4, np.float32)])
    with pytest.raises(ModelError, match=r"'a/w' in '.*x.safetensors' holds a number that float16 cannot hold"):
        network.save_weights(tmp_path / "x.safetensors", dtype="float16")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"dtype": "x"}, {"config": [1]}, {"config": {"a": jax}}])
def test_what_cannot_be_saved(options, tmp_path):
    with pytest.raises(ModelError, match=f"`{next(iter(options))}` must be"):
        dense("a", 2, 3).save_weights(tmp_path / "x.safetensors", **options)
    assert not list(tmp_path.iterdir())


class TestTied:
    MAP = WeightMap({"a/w": "embed", "b/w": "head"}, tied={"he(ad)": "embed"})

    @pytest.fixture(scope="class")
    @classmethod
    def both(cls):
        return kd.Sequential([kd.Input((2,)), Block({"w": (3, 2)}, name="a"), Block({"w": (3, 2)}, name="b")])

    def test_what_is_left_out_is_the_other_one(self, both, tmp_path):
        save_file({"embed": array(3, 2)}, tmp_path / "x.safetensors")
        both.load_weights(tmp_path / "x.safetensors", weight_map=self.MAP)
        np.testing.assert_array_equal(both.get_weights(), [array(3, 2)] * 2)
        both.save_weights(tmp_path / "y.safetensors", weight_map=self.MAP)
        assert load_file(tmp_path / "y.safetensors").keys() == {"embed"}

    def test_weights_that_differ_are_not_left_out(self, both, tmp_path):
        both.set_weights([array(3, 2), array(3, 2) + 1])
        with pytest.raises(ModelError, match="tied weights are not equal") as error:
            both.save_weights(tmp_path / "y.safetensors", weight_map=self.MAP)
        assert error.value.given == "head and embed" and not list(tmp_path.iterdir())

    def test_a_duplicate_must_be_equal(self, tmp_path):
        network, weight_map = dense("a", 3, 2), WeightMap({"a/w": "embed"}, tied={"head": "embed"})
        save_file({"embed": array(3, 2), "head": array(3, 2)}, tmp_path / "x.safetensors")
        network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
        before = network.get_weights()
        save_file({"embed": array(3, 2) + 5, "head": array(3, 2) + 6}, tmp_path / "x.safetensors")
        with pytest.raises(ModelError, match="tied arrays differ") as error:
            network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
        assert error.value.given == "head and embed"
        np.testing.assert_equal(network.get_weights(), before)

    def test_names_that_exist_nowhere_are_listed(self, tmp_path):
        save_file({"embed.0": array(3, 2), "extra": array(1)}, tmp_path / "x.safetensors")
        ties = {"he(ad)": "embed.0", "a.{}": "b.{}", "nope": "embed", "extar": "embed.0", r"(x)\.y": r"embed.\1"}
        network, ties_in = dense("a", 3, 2), WeightMap({"a/w": "embed.0"}, tied=ties)
        with pytest.raises(ModelError, match="does not fit") as error:
            network.load_weights(tmp_path / "x.safetensors", weight_map=ties_in)
        wrong = "tied['a.{}'] = 'b.{}', tied['nope'] = 'embed' (did you mean 'embed.0'?)"
        nearest = "tied['extar'] (did you mean 'extra'?)"
        assert error.value.given == f"not in the model: extra; rules that match no weight: {wrong}, {nearest}"
        with pytest.raises(ModelError, match="rules that match no weight") as error:
            network.save_weights(tmp_path / "y.safetensors", weight_map=ties_in)
        assert wrong in error.value.given and "extar" not in error.value.given

    def test_numbers_of_layers(self, both, tmp_path):
        save_file({"a.0": array(3, 2), "b.0": array(3, 2)}, tmp_path / "x.safetensors")
        weight_map = WeightMap({"a/w": "a.0", "b/w": "b.0"}, tied={"b.{}": "a.{}"})
        both.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
        both.save_weights(tmp_path / "y.safetensors", weight_map=weight_map)
        assert load_file(tmp_path / "y.safetensors").keys() == {"a.0"}


def attention_file():
    joined = {f"h.{number}.attn.weight": array(4, 12, start=100 * number) for number in range(2)}
    return {"wte": array(6, 4, start=1000), **joined}


@pytest.mark.parametrize("is_stacked", [False, True])
def test_joined_tied_and_stacked_at_once(is_stacked, tmp_path):
    """As GPT-2: one array (inputs, outputs) for three weights of a layer, and a head that is the embedding."""
    shapes = dict.fromkeys(("query", "key", "value"), (4, 2, 2))
    blocks = [Block(shapes, layers=2, name="h")] if is_stacked else [Block(shapes, name=f"h_{one}") for one in (0, 1)]
    network = kd.Sequential(
        [kd.Input((2,)), Block({"table": (6, 4)}, name="wte"), *blocks, Block({"w": (6, 4)}, name="head")]
    )
    weight_map = WeightMap(
        {
            tuple(f"h_{{}}/{part}" for part in shapes): Joined("h.{}.attn.weight", axis=1),
            "wte/table": "wte",
            "head/w": "lm_head",
        },
        {"h(_.)?/.*": Linear(transpose=False)},
        tied={"lm_head": "wte"},
    )
    save_file(attention_file(), tmp_path / "x.safetensors")
    network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
    values = {weight.path: weight.numpy() for weight in network.weights}
    keys = values["h/key"] if is_stacked else [values["h_0/key"], values["h_1/key"]]
    for number in range(2):
        expected = attention_file()[f"h.{number}.attn.weight"][:, 4:8].reshape(4, 2, 2)
        np.testing.assert_array_equal(keys[number], expected)
    np.testing.assert_array_equal(values["head/w"], attention_file()["wte"])
    network.save_weights(tmp_path / "y.safetensors", weight_map=weight_map)
    np.testing.assert_equal(load_file(tmp_path / "y.safetensors"), attention_file())


@pytest.mark.parametrize("layers", [None, 2])
def test_weights_whose_elements_take_turns_in_an_array(layers, tmp_path):
    """As gpt-oss: one array (experts, inputs, 2 * outputs) for gate and up."""
    network = kd.Sequential([kd.Input((2,)), Block({"gate": (2, 3, 4), "up": (2, 3, 4)}, layers=layers, name="h")])
    name = "gate_up" if layers is None else "{}.gate_up"
    weight_map = WeightMap({("h/gate", "h/up"): Joined(name, axis=2, interleaved=True)})
    file = {name.format(number): array(2, 3, 8, start=100 * number) for number in range(layers or 1)}
    save_file(file, tmp_path / "x.safetensors")
    network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
    values = {weight.path: weight.numpy() for weight in network.weights}
    for start, path in enumerate(("h/gate", "h/up")):
        expected = [each[..., start::2] for each in file.values()]
        np.testing.assert_array_equal(values[path], expected[0] if layers is None else expected)
    network.save_weights(tmp_path / "y.safetensors", weight_map=weight_map)
    np.testing.assert_equal(load_file(tmp_path / "y.safetensors"), file)


def test_adapters_alone_may_be_missing(tmp_path):
    network = kd.Sequential([kd.Input((2,)), *(kd.layers.Dense(2, use_bias=False, name=name) for name in "ab")])
    network.enable_lora(1, "a")
    [factor] = [weight for weight in network.trainable_weights if weight.name.endswith("_b")]
    factor.assign(array(1, 2) + 1)
    weight_map = WeightMap({"(a|b)/kernel": r"\1.weight"}, {".*/kernel": Linear()})
    file = {"a.weight": array(2, 2), "b.weight": array(2, 2, start=4)}
    for lacking in ("a", "b"):
        save_file(
            {f"{name}.weight": file[f"{name}.weight"] for name in "ab" if name != lacking}, tmp_path / "x.safetensors"
        )
        with pytest.raises(ModelError, match="does not fit") as error:
            network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
        assert error.value.given == f"missing in the file: {lacking}/kernel, there {lacking}.weight"
    save_file(file, tmp_path / "x.safetensors")
    report = network.load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
    assert report.loaded == ("a/kernel", "b/kernel") and not report.missing
    np.testing.assert_array_equal(network.get_layer("a").kernel.numpy(), file["a.weight"].T)
    assert not factor.numpy().any(), "the file's weight counts alone"


def test_what_no_weight_needs_is_ignored_if_the_map_says_so(tmp_path):
    save_file({"w": array(3, 2), "rotary.0.inv_freq": array(2), "x": array(1)}, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match="does not fit") as error:
        weight_map = WeightMap({"a/w": "w"}, ignored=[r".*\.inv_freq"])
        dense("a", 3, 2).load_weights(tmp_path / "x.safetensors", weight_map=weight_map)
    assert error.value.given == "not in the model: x"


def test_rounding_of_an_offset_is_that_of_the_type_of_the_file():
    value = np.array([0.1, -0.3], ml_dtypes.bfloat16)
    loaded = Offset(1.0).load(value, (2,))
    np.testing.assert_array_equal(loaded, (value.astype("float32") + 1).astype(ml_dtypes.bfloat16))
    assert loaded.dtype == Offset(1.0).save(loaded).dtype == value.dtype
