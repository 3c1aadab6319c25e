"""`load_weights(name_map=..., transform=...)`: files of other names and shapes."""

import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.saving.tensor_files import TensorReader
from keras_dist.storage.weight_names import Parts, origins_of

KINDS = ("query", "key", "value")


def array(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


class Block(kd.layers.Layer):
    """Weights as in a transformer: three projections, one of all three, and one of each expert."""

    def build(self, input_shape):
        shapes = {f"{kind}_kernel": (8, 2, 4) for kind in KINDS}
        shapes |= {"joined_kernel": (8, 16), "experts_kernel": (2, 8, 4), "norm_scale": (8,)}
        for name, shape in shapes.items():
            setattr(self, name, self.add_weight(shape=shape, name=name))

    def call(self, inputs):
        return inputs


@pytest.fixture(scope="module")
def model():
    rules = kd.LayoutMap(kd.DeviceMesh("data=4,model=2"))
    rules["block_0/(query|key|value)_kernel"] = ("data", "model", None)
    rules["block_0/joined_kernel"] = (None, "model")
    rules["block_0/experts_kernel"] = ("model", "data", None)
    with kd.ModelParallel(rules).scope():
        return kd.Sequential([kd.Input((8,)), Block(name="block_0")])


FILE = {
    "h.0.c_attn.weight": array(24, 8),  # three projections in one, transposed
    "h.0.q.weight": array(8, 8) + 1000,
    "h.0.k.weight": array(4, 8) + 2000,
    "h.0.v.weight": array(4, 8) + 3000,
    "h.0.experts.0.weight": array(4, 8) + 4000,
    "h.0.experts.1.weight": array(4, 8) + 5000,
    "h.0.ln.weight": array(8),
}
NAMES = {
    r"block_(\d+)/(query|key|value)_kernel": r"h.\1.c_attn.weight",
    r"block_(?P<block>\d+)/joined_kernel": [rf"h.\g<block>.{kind}.weight" for kind in "qkv"],
    r"block_(\d+)/experts_kernel": [rf"h.\1.experts.{number}.weight" for number in range(2)],
    "block_0/norm_scale": "h.0.ln.weight",
}
TRANSFORMS = {
    **{
        f".*/{kind}_kernel": lambda weight, n=n: weight.reshape(3, 2, 4, 8)[n].transpose(2, 0, 1)
        for n, kind in enumerate(KINDS)
    },
    ".*/(joined|experts)_kernel": np.transpose,
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(FILE, path)
    return path


def test_names_of_others_transposed_split_joined_and_stacked(model, path):
    report = model.load_weights(path, name_map=NAMES, transform=TRANSFORMS)
    assert len(report.loaded) == len(model.weights) and str(report).startswith("6 loaded: ")
    parts = FILE["h.0.c_attn.weight"].reshape(3, 8, 8)
    expected = {f"{kind}_kernel": part.T.reshape(8, 2, 4) for kind, part in zip(KINDS, parts, strict=True)}
    expected["joined_kernel"] = np.concatenate([FILE[f"h.0.{kind}.weight"].T for kind in "qkv"], axis=1)
    expected["experts_kernel"] = np.stack([FILE[f"h.0.experts.{number}.weight"].T for number in range(2)])
    expected["norm_scale"] = FILE["h.0.ln.weight"]
    shards = {"query_kernel": (2, 1, 4), "joined_kernel": (8, 8), "experts_kernel": (1, 2, 4)}
    for weight in model.weights:
        np.testing.assert_array_equal(weight.numpy(), expected[weight.name], err_msg=weight.name)
        if weight.name in shards:
            assert {shard.data.shape for shard in weight.value.addressable_shards} == {shards[weight.name]}


def test_only_what_is_asked_for_is_read(tmp_path):
    save_file({"a": array(1024, 512), "b": array(512, 512)}, tmp_path / "x.safetensors")
    reader = TensorReader("load", tmp_path / "x.safetensors")
    tracemalloc.start()
    parts = Parts([reader.view("a").T, reader.view("b").reshape(2, 256, 512)[1].T], (512, 1280))
    found = parts[3:5, 1020:1030]
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    whole = np.concatenate([array(1024, 512).T, array(512, 512)[256:].T], axis=1)
    np.testing.assert_array_equal(found, whole[3:5, 1020:1030])


def test_an_array_after_a_function_that_computes(model, path):
    transform = TRANSFORMS | {".*/(joined|experts)_kernel": lambda weight: np.ascontiguousarray(weight.T) * 2}
    model.load_weights(path, name_map=NAMES, transform=transform)
    [joined] = [weight for weight in model.weights if weight.name == "joined_kernel"]
    np.testing.assert_array_equal(joined.numpy()[:, :8], 2 * FILE["h.0.q.weight"].T)


def test_all_that_matches_nothing_is_told_on_both_sides(model, path):
    save_file({name: value for name, value in FILE.items() if ".v." not in name} | {"rotary": array(2)}, path)
    before = model.get_weights()
    names, transforms = {**NAMES, "blok_0/.*": "x"}, {**TRANSFORMS, ".*/kernel_": np.transpose}
    with pytest.raises(ModelError, match="does not fit") as error:
        model.load_weights(path, name_map=names, transform=transforms)
    assert error.value.given == (
        "missing in the file: block_0/joined_kernel, there h.0.v.weight; not in the model: rotary; rules that match no "
        "weight: name_map['blok_0/.*'], transform['.*/kernel_']"
    )
    np.testing.assert_equal(model.get_weights(), before)
    with pytest.warns(UserWarning, match="2 rules that match no weight: name_map"):
        report = model.load_weights(path, name_map=names, transform=transforms, strict=False)
    assert report.missing == ("block_0/joined_kernel",) and report.extra == ("rotary",)
    assert report.unused == ("name_map['blok_0/.*']", "transform['.*/kernel_']")


def test_shapes_are_compared_as_they_come_out(model, path):
    with pytest.raises(ModelError) as error:
        model.load_weights(path, name_map=NAMES, transform=TRANSFORMS | {".*/(joined|experts)_kernel": lambda w: w})
    assert "block_0/joined_kernel (8, 8) for (8, 16)" in error.value.given


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name_map": ["a"]}, "`name_map` must be a dict"),
        ({"name_map": {".*": []}}, "`name_map` must be a dict"),
        ({"transform": {".*": "T"}}, "`transform` must be a dict"),
        ({"name_map": {"(": "a"}}, "`name_map` is not a regular expression"),
        ({"name_map": {"block_.*": "a", ".*_0/.*": "b"}}, "matches several rules of `name_map`"),
        ({"name_map": {"block_.*": r"h.\1"}}, "asks for what its rule does not have"),
        ({"name_map": NAMES, "transform": {".*": lambda weight: "text"}}, "gives no numbers"),
    ],
)
def test_rules_that_cannot_be_used(model, path, options, message):
    with pytest.raises(ModelError, match=message):
        model.load_weights(path, **options)


def test_what_a_function_raises_says_where(model, path):
    with pytest.raises(ZeroDivisionError) as error:
        model.load_weights(path, name_map=NAMES, transform={"block_0/norm_scale": lambda weight: 1 / 0})
    assert "'h.0.ln.weight' for the weight 'block_0/norm_scale'" in error.value.__notes__[0]


def test_a_path_comes_before_regular_expressions():
    origins, unused = origins_of(["a/b", "a/c"], {"a/b": "exact", "a/.*": r"other"})
    assert [origin.names for origin in origins.values()] == [("exact",), ("other",)] and not unused


def test_folders_of_orbax_keep_their_names(model, tmp_path):
    model.save_weights(tmp_path / "x.orbax")
    with pytest.raises(ModelError, match="are for files of safetensors"):
        model.load_weights(tmp_path / "x.orbax", name_map=NAMES)
