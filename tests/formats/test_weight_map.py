"""`WeightMap`: files of other names and forms, loaded and saved by the same map."""

import json
import tracemalloc

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist.distribution.placement import copied_by_jax
from keras_dist.errors import ModelError
from keras_dist.files.tensor_reader import TensorReader
from keras_dist.formats import array_store
from keras_dist.formats.mapped_files import MappedFile
from keras_dist.interop import Joined, Linear, Offset, Permute, Reshape, WeightMap
from tests.formats.block_of_weights import Block, array

SHAPES = {
    "query": (8, 4, 2),
    "key": (8, 2, 2),
    "value": (8, 2, 2),
    "out": (4, 2, 8),
    "query_bias": (4, 2),
    "joined": (8, 16),
    "experts": (2, 8, 4),
    "filters": (3, 3, 2, 8),
    "norm": (8,),
}
"""Weights as in a transformer, with fewer heads for key and value."""


def sharded(rules, block):
    layout_map = kd.LayoutMap(kd.DeviceMesh("data=4,model=2"))
    for rule, layout in rules.items():
        layout_map[rule] = layout
    with kd.ModelParallel(layout_map).scope():
        return kd.Sequential([kd.Input((8,)), *block()])


@pytest.fixture(scope="module")
def model():
    """Two blocks, sharded."""
    rules = {
        ".*/(query|key|value)": ("data", "model", None),
        ".*/out": ("model", None, "data"),
        ".*/joined": (None, "model"),
        ".*/experts": ("model", "data", None),
    }
    return sharded(rules, lambda: [Block(SHAPES, name="blocks_0"), Block(SHAPES, name="blocks_1")])


@pytest.fixture(scope="module")
def stacked():
    """The same two blocks as stacks."""
    rules = {".*/(query|key|value)": (None, "data", "model", None), ".*/joined": ("model", "data", None)}
    return sharded(rules, lambda: [Block(SHAPES, layers=2, name="blocks")])


def file_of(number):
    """The arrays of one block as PyTorch has them; each has other values."""
    start = 10_000 * number
    shapes = {
        "qkv.weight": (16, 8),
        "o.weight": (8, 8),
        "q.bias": (8,),
        "gate.weight": (8, 8),
        "up.weight": (4, 8),
        "down.weight": (4, 8),
        "experts.0.weight": (4, 8),
        "experts.1.weight": (4, 8),
        "conv.weight": (8, 2, 3, 3),
        "norm.weight": (1, 8),
    }
    return {
        f"h.{number}.{name}": array(*shape, start=start + 500 * n) for n, (name, shape) in enumerate(shapes.items())
    }


FILE = file_of(0) | file_of(1)
MAP = WeightMap(
    names={
        ("blocks_{}/query", "blocks_{}/key", "blocks_{}/value"): "h.{}.qkv.weight",
        "blocks_{}/out": "h.{}.o.weight",
        "blocks_{}/(q)uery_bias": r"h.{}.\1.bias",
        "blocks_{}/joined": Joined(
            [f"h.{{}}.{name}.weight" for name in ("gate", "up", "down")], axis=1, sizes=(8, 4, 4)
        ),
        "blocks_{}/experts": "h.{}.experts.{}.weight",
        "blocks_{}/filters": "h.{}.conv.weight",
        "blocks_{}/norm": "h.{}.norm.weight",
    },
    transform={
        ".*/(query|key|value|joined|experts)": Linear(),
        ".*/out": Linear(inputs=2),
        ".*/query_bias": Linear(inputs=0),
        ".*/filters": Permute(2, 3, 1, 0),
        ".*/norm": [Reshape(1, -1), Offset(1.0)],
    },
)


def expected(number):
    """The weights of a block, computed by hand."""
    file = {name.split(".", 2)[2]: value for name, value in FILE.items() if name.startswith(f"h.{number}.")}
    query, key, value = np.split(file["qkv.weight"].T, [8, 12], axis=1)
    return {
        "query": query.reshape(8, 4, 2),
        "key": key.reshape(8, 2, 2),
        "value": value.reshape(8, 2, 2),
        "out": file["o.weight"].T.reshape(4, 2, 8),
        "query_bias": file["q.bias"].reshape(4, 2),
        "joined": np.concatenate([file[f"{name}.weight"].T for name in ("gate", "up", "down")], axis=1),
        "experts": np.stack([file["experts.0.weight"].T, file["experts.1.weight"].T]),
        "filters": np.moveaxis(file["conv.weight"], (0, 1), (3, 2)),
        "norm": file["norm.weight"][0] + 1,
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(FILE, path)
    return path


def test_weights_are_loaded_into_their_shards(model, path):
    report = model.load_weights(path, weight_map=MAP)
    assert len(report.loaded) == len(model.weights) == 18 and str(report).startswith("18 loaded: ")
    shards = {"query": (2, 2, 2), "joined": (8, 8), "experts": (1, 2, 4)}
    for weight in model.weights:
        number, name = int(weight.path.split("/")[0][-1]), weight.name
        np.testing.assert_array_equal(weight.numpy(), expected(number)[name], err_msg=weight.path)
        if name in shards:
            assert {shard.data.shape for shard in weight.value.addressable_shards} == {shards[name]}


@pytest.mark.parametrize(("kind", "size"), [("model", 1024 / 1024**3), ("stacked", None)])
def test_what_loads_also_saves(kind, size, path, tmp_path, request):
    network = request.getfixturevalue(kind)
    network.load_weights(path, weight_map=MAP)
    folder = tmp_path / "saved"
    network.save_weights(folder, weight_map=MAP, max_shard_size=size, config={"model_type": "x"})
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == (1 if size is None else 6)
    found = {name: value for file in files for name, value in load_file(file).items()}
    assert found.keys() == FILE.keys()
    np.testing.assert_equal(found, FILE)
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "x"}
    with safe_open(files[0], framework="np") as opened:
        assert opened.metadata()["format"] == "pt"
    network.set_weights([np.zeros(weight.shape, np.float32) for weight in network.weights])
    network.load_weights(folder, weight_map=MAP)  # with checksums now
    network.save_weights(tmp_path / "again.safetensors", weight_map=MAP)
    np.testing.assert_equal(load_file(tmp_path / "again.safetensors"), FILE)


def test_arrays_that_a_user_has_read_outlive_a_load(model, path, monkeypatch):
    monkeypatch.setattr(array_store, "_HUGE_BYTES", 0)
    [read, *_] = model.weights
    array, before = read.value, read.numpy()
    old = model._built.cell.arrays[1]
    model.load_weights(path, weight_map=MAP)
    np.testing.assert_array_equal(array, before)
    assert old.is_deleted(), "an array that nobody has read is deleted before the next one is there"
    np.testing.assert_array_equal(read.numpy(), expected(0)["query"])


@pytest.mark.parametrize("offset", [0, 4])
def test_memory_of_the_host_is_not_shared(offset):
    memory = np.empty(4096 + 64 + offset, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    host = memory[begin : begin + 4096].view(np.float32)
    host[...] = 1
    array = jax.device_put(copied_by_jax(host), jax.devices()[1]).block_until_ready()
    host[...] = 2
    np.testing.assert_array_equal(array, np.ones(1024))


def test_only_what_is_asked_for_is_read(tmp_path):
    save_file({"a": array(1024, 512), "b": array(1024, 256)}, tmp_path / "x.safetensors")
    reader = TensorReader("load", tmp_path / "x.safetensors")
    weight_map = WeightMap({"w": Joined(["a", "b"], axis=0, sizes=(512, 256))}, {"w": Linear()})
    file = MappedFile(reader.shapes, weight_map, {"w": (768, 32, 32)})
    tracemalloc.start()
    parts = file.open(reader, "w", (768, 32, 32))
    found = parts[510:515, 3:5, :]
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    whole = np.concatenate([array(1024, 512), array(1024, 256)], axis=1).T.reshape(768, 32, 32)
    np.testing.assert_array_equal(found, whole[510:515, 3:5])


def test_all_mismatches_are_listed_on_both_sides(model, path):
    changed = {name: value for name, value in FILE.items() if "0.up." not in name and "q.bias" not in name}
    changed |= {"rotary": array(2), "h.0.q.bias": array(8), "h.1.q.bias": array(9), "h.1.qkv.weight": array(15, 8)}
    save_file(changed, path)
    before = model.get_weights()
    weight_map = WeightMap({**MAP.names, "blok_0/.*": "x"}, {**MAP.transform, ".*/kernel_": Linear()})
    with pytest.raises(ModelError, match="does not fit") as error:
        model.load_weights(path, weight_map=weight_map)
    assert error.value.given == (
        "missing in the file: blocks_0/joined, there h.0.up.weight; not in the model: rotary; of another shape, or "
        "complex: blocks_1/query (8, 15) for (8, 4, 2), blocks_1/key (8, 15) for (8, 2, 2), blocks_1/value (8, 15) for "
        "(8, 2, 2), blocks_1/query_bias (9,) for (4, 2); rules that match no weight: names['blok_0/.*'], "
        "transform['.*/kernel_']"
    )
    np.testing.assert_equal(model.get_weights(), before)
    with pytest.warns(UserWarning, match="2 rules that match no weight: names"):
        report = model.load_weights(path, weight_map=weight_map, strict=False)
    assert report.missing == ("blocks_0/joined",) and report.extra == ("rotary",)
    assert report.unused == ("names['blok_0/.*']", "transform['.*/kernel_']")
    assert len(report.misshaped) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": ["a"]}, "`names` cannot be used"),
        ({"names": {".*": []}}, "`names` cannot be used"),
        ({"names": {("a", "b"): ["c", "d"]}}, "`names` cannot be used"),
        ({"names": {"a": Joined(["b", "c"], 0, sizes=(1, 2, 3))}}, "`names` cannot be used"),
        ({"names": {"a": Joined(["b", "c"], 0, interleaved=True)}}, "`names` cannot be used"),
        ({"names": {"a": 1}, "transform": {".*": "T"}}, "`names`, `transform` cannot be used"),
        ({"tied": {"a": ["b"]}, "ignored": "b"}, "`tied`, `ignored` cannot be used"),
        ({"names": {"(": "a"}}, "`names` is not a regular expression"),
        ({"ignored": ["("]}, "`ignored` is not a regular expression"),
        ({"tied": {"(": "a"}}, "`tied` is not a regular expression"),
    ],
)
def test_maps_that_cannot_be_made(arguments, message):
    with pytest.raises(ModelError, match=message):
        WeightMap(**arguments)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"blocks_.*": "a", ".*_0/.*": "b"}, "matches several rules of `names`"),
        ({"blocks_.*": r"h.\1"}, "asks for what its rule does not have"),
        ({"blocks_{}/norm": "norm"}, "do not fit the weight 'blocks_0/norm'"),
        ({"blocks_0/norm": "norm.{}.{}"}, "do not fit the weight 'blocks_0/norm'"),
        ({"blocks_0/norm": ["a", "b.{}"]}, "do not fit the weight 'blocks_0/norm'"),
        ({"blocks_0/norm": ["a", "b", "c"]}, "'blocks_0/norm' cannot consist of 3 arrays along axis -1"),
        ({"blocks_0/norm": Joined(["a", "b"], 1)}, "'blocks_0/norm' cannot consist of 2 arrays along axis 1"),
        ({"blocks_0/norm": Joined(["a", "b"], 0, sizes=(3, 4))}, "sizes=(3, 4)"),
        ({("blocks_0/norm", "blocks_0/nrm"): "a"}, "'a' consists of weights of which the model lacks some"),
        ({("blocks_0/norm", "blocks_0/key"): "a"}, "cannot be joined along axis 0 to 'a'"),
        ({("blocks_0/query", "blocks_0/key"): Joined("a", 1, interleaved=True)}, "cannot take turns in 'a'"),
        ({("blocks_./norm", "blocks_0/joined"): "a"}, "'blocks_1/norm' and 'blocks_0/norm' are the same part of 'a'"),
    ],
)
def test_maps_that_do_not_fit_the_model(model, path, names, message):
    with pytest.raises(ModelError) as error:
        model.load_weights(path, weight_map=WeightMap(names))
    assert message in str(error.value)


def test_functions_are_named_in_errors(model, path):
    transform = {rule: value for rule, value in MAP.transform.items() if rule != ".*/norm"}
    for function, kind, note in (
        (lambda weight: "text", ModelError, "gives no numbers"),
        (lambda weight: 1 / 0, ZeroDivisionError, "'h.0.norm.weight' for the weight 'blocks_0/norm'"),
    ):
        with pytest.raises(kind) as error:
            model.load_weights(path, weight_map=WeightMap(MAP.names, {**transform, ".*/norm": function}))
        assert note in "".join([str(error.value), *getattr(error.value, "__notes__", [])])


def test_a_path_comes_before_regular_expressions():
    pieces, unused = WeightMap({"a/b": "exact", "a/.*": r"other"}).pieces_of({"a/b": (), "a/c": ()})
    assert [piece.name for each in pieces.values() for piece in each] == ["exact", "other"] and not unused


def test_numbers_of_groups_do_not_count_layers():
    names = {r"(?P<side>en|de)coder/{}/(q|k)/{}/w": r"\g<side>.{}.\2.{}.\1"}
    pieces, _ = WeightMap(names).pieces_of({"encoder/3/q/w": (2, 5), "decoder/k/1/w": (1, 5), "encoder/q/w": (1, 1, 5)})
    found = [piece.name for each in pieces.values() for piece in each]
    assert found == ["en.3.q.0.en", "en.3.q.1.en", "de.0.k.1.de", "en.0.q.0.en"]


def test_other_formats_keep_their_names(model, tmp_path):
    model.save_weights(tmp_path / "x.orbax")
    with pytest.raises(ModelError, match="`weight_map` need files of safetensors"):
        model.load_weights(tmp_path / "x.orbax", weight_map=MAP)
    for name in ("y.orbax", "y.weights.h5"):
        with pytest.raises(ModelError, match="`weight_map`, `dtype` need files of safetensors"):
            model.save_weights(tmp_path / name, weight_map=MAP, dtype="bfloat16")
