"""`save_weights` and `load_weights`: what is in the file, and what fits."""

import json

import google_crc32c
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.formats import array_store
from tests.models.weights import model_on, weights_of


@pytest.fixture(scope="module")
def model():
    return model_on("data=4,model=2")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.weights.safetensors"


def test_the_file_holds_every_weight_whole_under_its_path(model, path):
    model.save_weights(path)
    found = load_file(path)
    assert found.keys() == {weight.path for weight in model.weights}
    assert "norm/mean" in found and not any("key" in name for name in found)
    for weight in model.weights:
        np.testing.assert_array_equal(found[weight.path], weight.numpy())


def key_of(model):
    return next(variable for variable in model.variables if variable.path == "drop/rngs/key").numpy()


FORMS = {
    "one file": ("model.safetensors", "model.safetensors", None),
    "several files": ("model.safetensors", "model.safetensors", 512 / 1024**3),
    "index": ("model.safetensors", "model.safetensors.index.json", 512 / 1024**3),
    "folder": ("model.orbax", "model.orbax", None),
}


@pytest.fixture(scope="module")
def others():
    return [model_on(mesh, seed=1) for mesh in ("one device", "fully data=8")]


@pytest.mark.parametrize(("written", "read", "size"), FORMS.values(), ids=FORMS)
def test_other_meshes_read_it(model, others, tmp_path, written, read, size):
    model.save_weights(str(tmp_path / written), overwrite=False, max_shard_size=size)
    with pytest.raises(ModelError, match="exists"):
        model.save_weights(tmp_path / written, overwrite=False, max_shard_size=size)
    for other in others:
        other.set_weights([np.zeros_like(value) for value in model.get_weights()])
        layouts_before, key = [weight.layout for weight in other.weights], key_of(other)
        report = other.load_weights(tmp_path / read)
        assert set(report.loaded) == {weight.path for weight in model.weights} and not report.missing + report.extra
        assert str(report).startswith("7 loaded: ") and ";" not in str(report)
        np.testing.assert_equal(other.get_weights(), model.get_weights())
        assert [weight.layout for weight in other.weights] == layouts_before
        np.testing.assert_array_equal(key_of(other), key)


def test_scalars_and_bfloat16(path):
    class Scaled(kd.layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=(), initializer="ones", dtype="bfloat16", name="scale")

        def call(self, inputs):
            return inputs * self.scale

    model = kd.Sequential([kd.Input((2,)), Scaled(name="scaled")])
    model.weights[0].assign(jnp.asarray(1.5, jnp.bfloat16))
    model.save_weights(path)
    model.weights[0].assign(jnp.asarray(2.0, jnp.bfloat16))
    model.load_weights(path)
    assert load_file(path)["scaled/scale"].dtype == jnp.bfloat16
    assert float(model.weights[0].value) == 1.5


def test_a_file_that_exists_stays_whole_until_the_new_one_is(model, path, monkeypatch):
    model.save_weights(path)
    before = path.read_bytes()

    def fails(dtype, shape):
        raise OSError("no space left")

    monkeypatch.setattr("keras_dist.files.tensor_writer.checksum_begun", fails)
    with pytest.raises(OSError, match="no space left"):
        model.save_weights(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_all_that_does_not_fit_is_told_and_the_rest_is_set_if_not_strict(model, path):
    values = weights_of(model)
    del values["d2/bias"]
    values |= {"d1/kernel": np.zeros((3, 5), np.float32), "other": np.zeros(2), "d2/kernel": values["d2/kernel"] + 1}
    save_file(values, path)
    other = model_on("one device", seed=1)
    before = weights_of(other)
    with pytest.raises(ModelError, match="does not fit") as error:
        other.load_weights(path)
    assert error.value.given == (
        "missing in the file: d2/bias; not in the model: other; "
        "of another shape, or complex: d1/kernel (3, 5) for (8, 16)"
    )
    np.testing.assert_equal(weights_of(other), before)
    values["norm/mean"] = np.ones(16, np.complex64)
    save_file(values, path)
    for options in ({"strict": False}, {"skip_mismatch": True}):  # Keras's name
        with pytest.warns(UserWarning, match="fits in part: .* 1 missing in the file: d2/bias") as caught:
            report = other.load_weights(path, **options)
        assert {warning.filename for warning in caught} == {__file__}
        assert set(report.loaded) == {"d2/kernel", "norm/scale", "norm/bias", "norm/var"}
        assert (report.missing, report.extra) == (("d2/bias",), ("other",))
        assert set(report.misshaped) == {"d1/kernel", "norm/mean"}
    for name, value in weights_of(other).items():
        np.testing.assert_array_equal(value, (values if name in report.loaded else before)[name])


@pytest.mark.parametrize("method", ["save_weights", "load_weights"])
def test_another_suffix_is_refused(model, method):
    for name in ("model.hdf4", "model.weights", 3):
        with pytest.raises(ModelError, match=r"\.safetensors") as error:
            getattr(model, method)(name)
        assert repr(name) in error.value.given and method in error.value.summary


def test_files_that_are_not_there_or_damaged(model, path, tmp_path):
    for missing in (path, tmp_path / "none.weights.h5"):
        with pytest.raises(FileNotFoundError, match=rf"load_weights: '.*{missing.name}' does not exist") as caught:
            model.load_weights(missing)
        assert isinstance(caught.value, ModelError)
    with pytest.raises(FileNotFoundError):
        model.save_weights(tmp_path / "none" / path.name)
    path.write_bytes(b"x")
    with pytest.raises(ModelError, match="cannot be read"):
        model.load_weights(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ModelError, match="no file can be written at"):
        model.save_weights(path)
    assert list(tmp_path.iterdir()) == [path]


def flipped(file, bit):
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.mark.parametrize("max_shard_size", [None, 512 / 1024**3], ids=["one file", "several"])
@pytest.mark.filterwarnings("error")
def test_a_flipped_bit_is_noticed_and_nothing_is_set(model, others, path, max_shard_size):
    model.save_weights(path, max_shard_size=max_shard_size)
    place = path if max_shard_size is None else path.with_name("model.weights.safetensors.index.json")
    other = others[0]
    before = other.get_weights()
    for file in sorted(path.parent.glob("*.safetensors")):
        start = 8 + int.from_bytes(file.read_bytes()[:8], "little")
        for byte in (start, (start + file.stat().st_size) // 2, file.stat().st_size - 1):
            flipped(file, 8 * byte + 3)
            with pytest.raises(ModelError, match=f"' in '{file.name}' has the checksum .*, not ") as error:
                other.load_weights(place)
            assert error.value.given.split("'")[1] in load_file(file)
            flipped(file, 8 * byte + 3)
    np.testing.assert_equal(other.get_weights(), before)
    other.load_weights(place)
    np.testing.assert_equal(other.get_weights(), model.get_weights())


def test_an_index_has_the_checksums_too(model, path):
    model.save_weights(path, max_shard_size=512 / 1024**3)
    index = json.loads(path.with_name("model.weights.safetensors.index.json").read_text())
    found = index["metadata"]["keras_dist_crc32c"]
    for file in path.parent.glob("*.safetensors"):
        values = load_file(file)
        with safe_open(file, framework="np") as opened:
            metadata = opened.metadata()
        save_file({name: value + 1 for name, value in values.items()}, file, metadata)
        assert json.loads(metadata["keras_dist_crc32c"]) == {name: found.pop(name) for name in values}
        line = {name: f"{value.dtype} {value.shape}".encode() + value.tobytes() for name, value in values.items()}
        assert json.loads(metadata["keras_dist_crc32c"]) == {
            name: f"{google_crc32c.value(content):08x}" for name, content in line.items()
        }
    assert not found


def test_files_without_checksums_load_and_say_so_once(model, others, path, monkeypatch):
    monkeypatch.setattr(array_store, "_warned", [])
    save_file(weights_of(model), path)
    with pytest.warns(UserWarning, match="has no checksums") as caught:
        for _ in range(2):
            others[0].load_weights(path)
    assert [warning.filename for warning in caught] == [__file__]


def test_forged_headers(model, path):
    def forged(header, length=None, data=b"abcd"):
        text = json.dumps(header).encode()
        path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)

    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    checksums = {"keras_dist_crc32c": "{}"}
    for arguments in (
        ({"a": entry}, 2**63),
        ({"a": entry | {"shape": [2**40]}},),
        ({"a": entry | {"data_offsets": [0, 2**40]}},),
        ({"a": entry | {"data_offsets": [-4, 0]}},),
        ({"d1/bias": entry, "__metadata__": checksums},),
        ({"a": entry, "__metadata__": {"keras_dist_crc32c": "[" * 100_000}},),
        ({"a": entry, "__metadata__": {"keras_dist_crc32c": "[3]"}},),
    ):
        forged(*arguments)
        with pytest.raises(ModelError, match="cannot be read"):
            model.load_weights(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="not a regular file"):
        model.load_weights(path)
