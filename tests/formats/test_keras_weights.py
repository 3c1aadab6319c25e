"""Files of weights: shards, indices, and what is refused."""

import json
import os
import zipfile

import h5py
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ConfigError, ModelError
from keras_dist.formats import h5_files, keras_archives

GB = 1024**3
X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")


def dense(k, units=8):
    layers = k.layers
    return k.Sequential([k.Input((8,)), layers.Dense(units, "relu"), layers.BatchNormalization(), layers.Dense(4)])


@pytest.fixture
def theirs(keras):
    model = dense(keras)
    model.set_weights([np.random.default_rng(1).random(w.shape, "float32") for w in model.weights])
    return model


def assert_same(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_device_reads_its_part(theirs, tmp_path, monkeypatch):
    path = tmp_path / "theirs.keras"
    theirs.save(path)
    read = []
    whole = h5_files.H5Reader.read

    def counted(self, name, index=()):
        found = whole(self, name, index)
        read.append((name, found.shape))
        return found

    monkeypatch.setattr(h5_files.H5Reader, "read", counted)
    with kd.FullySharded(kd.DeviceMesh((4, 2), ("data", "model")), axis="data").scope():
        ours = dense(kd)
        report = ours.load_weights(path)
    assert len(report.loaded) == 8 and not report.missing and not report.extra
    kernel = [shape for name, shape in read if name == "layers/dense/vars/0"]
    assert kernel == [ours.layers[0].kernel.layout.backend_layout.shard_shape((8, 8))] * 4, "once for each shard"
    assert sum(np.prod(shape, dtype=int) for _, shape in read) == sum(w.size for w in theirs.get_weights())
    assert_same(ours, theirs)
    np.testing.assert_allclose(ours.predict(X, verbose=0), theirs.predict(X, verbose=0), 1e-5, 1e-5)


def test_shards_go_both_ways(keras, theirs, tmp_path):
    theirs.save_weights(tmp_path / "theirs.weights.json", max_shard_size=300 / GB)
    ours = dense(kd)
    ours.load_weights(tmp_path / "theirs.weights.json")
    assert_same(ours, theirs)
    ours.save_weights(tmp_path / "ours.weights.json", max_shard_size=40 / GB)
    ours.save_weights(tmp_path / "ours.weights.json", max_shard_size=300 / GB)
    index = json.loads((tmp_path / "ours.weights.json").read_text())
    files = {file for listed in index["weight_map"].values() for file in listed}
    assert files == {file.name for file in tmp_path.glob("ours_*.weights.h5")}, "those of the first save are gone"
    assert len(files) > 1
    again = dense(keras)
    again.load_weights(tmp_path / "ours.weights.json")
    assert_same(again, theirs)
    with pytest.raises(ModelError, match="exists"):
        ours.save_weights(tmp_path / "ours.weights.json", overwrite=False)
    (tmp_path / "ours_00001.weights.h5").unlink()
    with pytest.raises(ModelError, match=r"'ours_00001.weights.h5' is missing"):
        ours.load_weights(tmp_path / "ours.weights.json")


def test_files_that_do_not_fit(theirs, tmp_path):
    path = tmp_path / "theirs.weights.h5"
    theirs.save_weights(path)
    ours = dense(kd, units=6)
    before = ours.get_weights()
    with pytest.raises(ModelError, match=r"dense/kernel, there 'layers/dense/vars/0' \(8, 8\) for \(8, 6\)"):
        ours.load_weights(path)
    np.testing.assert_equal(ours.get_weights(), before)
    with pytest.warns(UserWarning, match="fits in part"):
        report = ours.load_weights(path, skip_mismatch=True)
    assert report.loaded == ("dense_1/bias",)
    short = kd.Sequential([kd.Input((8,)), kd.layers.Dense(8)])
    with pytest.raises(ModelError, match="not in the model: layers/batch_normalization/vars/0"):
        short.load_weights(path)
    with pytest.raises(FileNotFoundError):
        ours.load_weights(tmp_path / "nothing.weights.h5")
    with pytest.raises(ModelError, match="files of safetensors"):
        ours.load_weights(path, weight_map=kd.interop.WeightMap({"a": "b"}))


def forged(file):
    """Files that lead elsewhere, or hold what is no array of numbers; by what the error says."""
    group = file.create_group("layers/dense/vars")
    secret = file.filename + ".secret"
    yield "ExternalLink", lambda: group.__setitem__("0", h5py.ExternalLink(secret, "/a"))
    yield "SoftLink", lambda: group.__setitem__("0", h5py.SoftLink("/layers"))
    layout = h5py.VirtualLayout((8, 8), "float32")
    layout[:] = h5py.VirtualSource(secret, "a", (8, 8))
    yield "in another file", lambda: group.create_virtual_dataset("0", layout)
    raw = [(secret, 0, 256)]
    yield "in another file", lambda: group.create_dataset("0", (8, 8), "float32", external=raw)
    yield "not numbers", lambda: group.create_dataset("0", data="text")
    yield "has another name", lambda: group.__setitem__("0", file["layers"])
    yield "has another name", lambda: twice_each(group)
    yield "groups more than", lambda: file.create_group("/".join("a" * 99))
    yield "in chunks of", lambda: group.create_dataset("0", (2**16, 2**16), "float32", chunks=(2**15, 2**14))


def twice_each(group):
    """Groups of two names each: 2 to the power of 60 paths."""
    for _ in range(60):
        group["again"] = group.create_group("next")
        group = group["next"]


@pytest.mark.parametrize("number", range(9))
def test_what_leads_out_of_a_file_is_refused(tmp_path, number):
    path = tmp_path / "w.weights.h5"
    with h5py.File(path, "w") as file:
        match, make = list(forged(file))[number]
        make()
    with pytest.raises(ModelError, match=match):
        h5_files.H5Reader("load_weights", path)


def test_a_config_of_a_larger_model_creates_nothing(tmp_path):
    dense(kd).save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    config["config"]["layers"][-1]["config"]["units"] = 2**30
    members |= {"config.json": json.dumps(config).encode(), "metadata.json": b"{}"}
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(kd.errors.ConfigError, match="larger than what is in the file"):
        kd.models.load_model(tmp_path / "m.keras")


@pytest.mark.parametrize("name", ["m.keras"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=name):
        kd.models.load_model(tmp_path / name)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("content", [b"", b"no file of HDF5", b"\x89HDF\r\n\x1a\n" + bytes(64)])
def test_damaged_files(tmp_path, content):
    for name in ("w.weights.h5", "w.weights.json", "w.keras"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=r"cannot be read|can be read"):
            dense(kd).load_weights(tmp_path / name)
    with pytest.raises(ModelError):
        kd.models.load_model(tmp_path / "w.keras")
    os.mkfifo(tmp_path / "pipe.weights.h5")
    with pytest.raises(ModelError, match="not a regular file"):
        dense(kd).load_weights(tmp_path / "pipe.weights.h5")


@pytest.mark.parametrize("name", ["../a.weights.h5", "/etc/a.h5", "a/b.h5", "a", 3, ["a.h5", None]])
def test_an_index_names_files_beside_it(tmp_path, name):
    path = tmp_path / "w.weights.json"
    path.write_text(json.dumps({"weight_map": {"/layers/dense/vars": name}}))
    with pytest.raises(ModelError, match="not beside it"):
        dense(kd).load_weights(path)


def rewritten(path, target, change, compression=zipfile.ZIP_STORED):
    """A `.keras` file with other members."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name, content in change({name: old.read(name) for name in old.namelist()}).items():
            new.writestr(name, content)


def test_archives_that_are_not_what_they_say(tmp_path, monkeypatch):
    path, forged = tmp_path / "m.keras", tmp_path / "forged.keras"
    dense(kd).save(path)
    for change, match in (
        (lambda files: {**files, "config.json": b"{"}, "config.json"),
        (lambda files: {**files, "config.json": b"[" * 10**5}, "config.json"),
        (lambda files: {name: files[name] for name in [*files][:2]}, "0 members 'model.weights.h5'"),
        (lambda files: {**files, "model.weights.h5": files["model.weights.h5"][:900]}, "."),
        (lambda files: {**files, "model.weights.h5": b"PK"}, "."),
    ):
        rewritten(path, forged, change)
        with pytest.raises(ModelError, match=match):
            kd.models.load_model(forged)
    rewritten(path, forged, dict, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="compressed"):
        kd.models.load_model(forged)
    monkeypatch.setattr(keras_archives, "_MOST_JSON_BYTES", 1000)
    with zipfile.ZipFile(forged, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("config.json", b'"' + b" " * 2**20 + b'"')
    with pytest.raises(ModelError, match="more than"):
        kd.models.load_model(forged)


def test_code_is_never_run(keras, tmp_path):
    theirs = keras.Sequential([keras.Input((8,)), keras.layers.Lambda(lambda x: x + 1, name="plus")])
    theirs.save(tmp_path / "theirs.keras")
    for safe_mode in (True, False):
        with pytest.raises(ConfigError, match="holds a lambda: the function of the layer 'plus'"):
            kd.models.load_model(tmp_path / "theirs.keras", safe_mode=safe_mode)
    ours = kd.models.load_model(tmp_path / "theirs.keras", custom_objects={"plus": lambda x: x + 1})
    np.testing.assert_allclose(ours.predict(X, verbose=0), X + 1)


def test_weights_of_keras_2_by_another_name_are_refused(keras, tmp_path):
    theirs = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    theirs.save(tmp_path / "theirs.h5")
    (tmp_path / "theirs.h5").rename(tmp_path / "theirs.weights.h5")
    with pytest.raises(ModelError, match="the format of Keras 2 is not supported"):
        dense(kd).load_weights(tmp_path / "theirs.weights.h5")
