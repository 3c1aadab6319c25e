"""Files of Keras whose bytes were changed: refused by file and array. Others load with one warning."""

import json
import pathlib
import re
import shutil
import warnings
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ConfigError, KerasDistError, ModelError
from keras_dist.formats import array_store, h5_files
from keras_dist.formats.h5_files import H5Reader, H5Writer

FLIPS = 12
CHANCE = np.random.default_rng(0)
KINDS = ("m.weights.h5", "m.weights.json", "m.keras", "m")


def network(k):
    layers = k.layers
    return k.Sequential([k.Input((5,), name="x"), layers.Dense(7, name="d1"), layers.Dense(3, name="d2")], name="net")


@pytest.fixture(scope="module")
def model():
    made = network(kd)
    made.set_weights([CHANCE.random(w.shape, "float32") for w in made.weights])
    return made


@pytest.fixture(scope="module")
def other():
    return network(kd)


def written(model, path):
    """What `model` writes to a path, and what of it holds arrays."""
    if path.name in ("m.weights.h5", "m.weights.json"):
        model.save_weights(path, max_shard_size=100 / 2**30 if path.suffix == ".json" else None)
    else:
        model.save(path, zipped=None if path.suffix else False)
    if path.suffix == ".json":
        return sorted(path.parent.glob("m_*.h5"))
    return [path if path.suffix else path / "model.weights.h5"]


def load(path, other):
    return kd.models.load_model(path) if path.name in ("m.keras", "m") else other.load_weights(path)


def flip(file, place, bit):
    with file.open("r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ (1 << bit)]))


def places_of(model, files):
    """Where in files the bytes of the weights are."""
    found = []
    for weight in model.get_weights():
        content = weight.tobytes()
        file = next(file for file in files if content in file.read_bytes())
        start = file.read_bytes().index(content)
        found += [(file, place) for place in range(start, start + len(content))]
    return found


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_a_weight_is_refused_by_file_and_array(kind, model, other, tmp_path):
    path = tmp_path / kind
    places = places_of(model, written(model, path))
    before = other.get_weights()
    for choice in CHANCE.choice(len(places), FLIPS, replace=False):
        file, place = places[choice]
        bit = int(CHANCE.integers(8))
        flip(file, place, bit)
        with pytest.raises(ModelError, match=kind) as caught:
            load(path, other)
        assert "the array 'layers/dense" in caught.value.given and "checksum" in caught.value.given
        flip(file, place, bit)
    np.testing.assert_equal(other.get_weights(), before)
    load(path, other)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere_changes_no_weight_unsaid(kind, model, other, tmp_path):
    path = tmp_path / kind
    files = written(model, path)
    for _ in range(FLIPS):
        file, bit = files[CHANCE.integers(len(files))], int(CHANCE.integers(8))
        place = int(CHANCE.integers(file.stat().st_size))
        flip(file, place, bit)
        try:
            with warnings.catch_warnings(action="ignore"):
                found = load(path, other)
        except KerasDistError:
            pass
        else:
            loaded = found if isinstance(found, kd.Model) else other
            np.testing.assert_equal(loaded.get_weights(), model.get_weights())
        flip(file, place, bit)


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_header_of_a_checksum_is_refused(bit, model, other, tmp_path):
    (file,) = written(model, tmp_path / "m.weights.h5")
    first = file.read_bytes().index(b"keras_dist_crc32c")
    for place in range(first - 12, first):  # version and sizes of the attribute stand before its name
        flip(file, place, bit)
        try:
            other.load_weights(file)
        except KerasDistError:
            pass
        else:
            np.testing.assert_equal(other.get_weights(), model.get_weights())
        flip(file, place, bit)


def test_the_zip_of_keras_is_compared_too(keras, tmp_path):
    path = tmp_path / "theirs.keras"
    theirs = network(keras)
    theirs.set_weights([CHANCE.random(w.shape, "float32") for w in theirs.weights])
    theirs.save(path)
    places = places_of(theirs, [path])
    for choice in CHANCE.choice(len(places), FLIPS, replace=False):
        flip(path, places[choice][1], 3)
        with pytest.raises(ModelError, match=r"theirs\.keras") as caught:
            kd.models.load_model(path)
        assert "model.weights.h5 has other bytes than were written" in caught.value.given
        flip(path, places[choice][1], 3)
    with warnings.catch_warnings(action="error"):
        again = kd.models.load_model(path)
    np.testing.assert_equal(again.get_weights(), theirs.get_weights())


def test_arrays_of_others_load_and_it_is_said_once(keras, other, tmp_path, monkeypatch):
    monkeypatch.setattr(array_store, "_warned", [])
    theirs = network(keras)
    theirs.save_weights(tmp_path / "theirs.weights.h5")
    with pytest.warns(UserWarning, match=r"'.*theirs.weights.h5' has no checksums") as caught:
        for _ in range(2):
            other.load_weights(tmp_path / "theirs.weights.h5")
    assert [warning.filename for warning in caught] == [__file__]
    np.testing.assert_equal(other.get_weights(), theirs.get_weights())


@pytest.mark.parametrize("changed", ["manifest.json", "config.json", "metadata.json"])
def test_a_folder_is_compared_with_its_manifest(changed, model, tmp_path):
    written(model, tmp_path / "m")
    file = tmp_path / "m" / changed
    file.write_text(file.read_text().replace("net", "nut") if changed == "config.json" else file.read_text() + " ")
    with pytest.raises(ModelError, match="cannot be read as a model of Keras"):
        kd.models.load_model(tmp_path / "m")


def test_a_folder_of_links_is_read_and_compared(model, tmp_path):
    written(model, tmp_path / "m")
    links = tmp_path / "snapshot"
    links.mkdir()
    for file in (tmp_path / "m").iterdir():
        (links / file.name).symlink_to(file)
    np.testing.assert_equal(kd.models.load_model(links).get_weights(), model.get_weights())
    flip(tmp_path / "m" / "model.weights.h5", places_of(model, [tmp_path / "m" / "model.weights.h5"])[5][1], 0)
    with pytest.raises(ModelError, match="snapshot"):
        kd.models.load_model(links)


def test_a_manifest_of_something_else_does_not_count(keras, tmp_path):
    network(keras).save(tmp_path / "theirs.keras")
    shutil.unpack_archive(tmp_path / "theirs.keras", tmp_path / "theirs", "zip")
    (tmp_path / "theirs" / "manifest.json").write_text('{"name": "a web page"}')
    kd.models.load_model(tmp_path / "theirs")


@pytest.mark.parametrize(
    "value",
    [
        *(np.float32(3), np.zeros((0, 3)), np.arange(1000).reshape(10, 100), np.ones((3, 2, 40), "complex64")),
        *(np.array([True, False]), np.ones((3, 200), jnp.bfloat16), np.arange(6.0).reshape(2, 3).T),
    ],
)
def test_checks_read_small_parts(value, tmp_path, monkeypatch):
    monkeypatch.setattr(h5_files, "_PART_BYTES", 100)
    path = pathlib.Path(tmp_path / "m.h5")
    with H5Writer("save", path, path) as writer:
        writer.write("a", np.asarray(value))
    parts = [np.empty(np.shape(value))[index].size for index in h5_files._parts(np.shape(value), value.dtype.itemsize)]
    assert sum(parts) == value.size and max(parts, default=0) * value.dtype.itemsize <= 100
    with H5Reader("load", path) as reader:
        assert not reader.lacks_checksums([])
        reader.check()


def rewritten(path, change):
    with zipfile.ZipFile(path) as old:
        files = {name: old.read(name) for name in old.namelist()}
    documents = {name: json.loads(files[name]) for name in ("config.json", "metadata.json")}
    change(documents["config.json"], documents["metadata.json"]["keras_dist"])
    with zipfile.ZipFile(path, "w") as new:
        for name, content in files.items():
            new.writestr(name, json.dumps(documents[name]) if name in documents else content)


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda theirs, ours: theirs["config"]["layers"][2]["config"].update(activation="relu"), "'relu'"),
        (lambda theirs, ours: ours["config"]["config"]["layers"][2]["config"].update(activation="tanh"), "'tanh'"),
        (lambda theirs, ours: ours["compile"].update(loss="mae"), "compile_config.*'mse'.*'mae'"),
        (lambda theirs, ours: theirs["config"]["layers"].pop(), "layers"),
        (lambda theirs, ours: theirs.update(class_name="Functional"), "class_name"),
    ],
)
def test_two_configs_of_different_models_are_refused(change, given, tmp_path):
    model = network(kd)
    model.compile("sgd", "mse")
    model.save(tmp_path / "m.keras")
    rewritten(tmp_path / "m.keras", change)
    with pytest.raises(ConfigError, match="holds two configs of different models") as caught:
        kd.models.load_model(tmp_path / "m.keras")
    assert re.search(given, caught.value.given), caught.value.given
    assert str(tmp_path / "m.keras") in caught.value.summary and "metadata.json" in caught.value.fix
