"""In which form a model is saved; what is left out of files of weights."""

import functools
import zipfile

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import KerasDistError, ModelError


def dense():
    return kd.Sequential([kd.Input((3,)), kd.layers.Dense(5, name="a"), kd.layers.Dense(5, name="b")])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.png", {}, "models are not saved in files that end in '.png'"),
        ("m.keras.bak", {}, "end in '.bak'"),
        ("m", {"save_format": "keras"}, "the path determines the format"),
        ("m.keras", {"shards": 2}, "`save` has no argument 'shards'"),
        ("m.keras", {"zipped": False}, "must not have the name of a file"),
        ("m", {"zipped": True}, "`zipped` does not match the path"),
    ],
)
def test_what_no_form_is_meant_by(tmp_path, name, options, message):
    model = dense()
    for save in (model.save, functools.partial(kd.saving.save_model, model)):
        with pytest.raises(ModelError, match=message) as caught:
            save(tmp_path / name, **options)
        assert caught.value.fix
    assert [*tmp_path.iterdir()] == []


def test_other_names_and_forms_that_are_ignored(tmp_path):
    dense().save(tmp_path / "lr-0.01")
    assert (tmp_path / "lr-0.01").is_dir()
    with pytest.warns(UserWarning, match="`save_format='keras'` is ignored"):
        dense().save(tmp_path / "m.keras", save_format="keras")


@pytest.mark.parametrize("name", ["m\0.keras", "m\0.weights.h5"])
def test_null_characters_in_paths(tmp_path, name):
    model = dense()
    with pytest.raises(KerasDistError, match="no file can be written at") as caught:
        (model.save_weights if "weights" in name else model.save)(tmp_path / name)
    assert "null character" in caught.value.given


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.safetensors"])
def test_a_folder_that_is_not_there_is_named(tmp_path, name):
    model, path = dense(), tmp_path / "none" / name
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none'") as caught:
        (model.save if "keras" in name else model.save_weights)(path)
    assert caught.value.filename == str(path)


def test_files_of_keras_need_no_factory(tmp_path):
    dense().save(tmp_path / "m.keras")
    with pytest.raises(ModelError, match="holds a model of layers"):
        kd.models.load_model(tmp_path / "m.keras", factory=lambda rngs: None)


def test_the_error_of_load_model_says_what_helps_there(tmp_path):
    first, second = tmp_path / "first.keras", tmp_path / "second.keras"
    dense().save(first)
    kd.Sequential([kd.Input((3,)), kd.layers.Dense(5, name="a")]).save(second)
    with (
        zipfile.ZipFile(first) as one,
        zipfile.ZipFile(second) as other,
        zipfile.ZipFile(tmp_path / "m.keras", "w") as m,
    ):
        for archive, name in ((one, "config.json"), (one, "metadata.json"), (other, "model.weights.h5")):
            m.writestr(name, archive.read(name))
    with pytest.raises(ModelError, match=r"^load_model: .* does not fit") as caught:
        kd.models.load_model(tmp_path / "m.keras")
    assert "model.load_weights(path, strict=False)" in caught.value.fix


def test_objects_are_left_out_of_files_of_weights(tmp_path):
    model, other = dense(), dense()
    before = other.get_weights()
    model.save_weights(tmp_path / "all.weights.h5")
    other.load_weights(tmp_path / "all.weights.h5", objects_to_skip=[other.get_layer("a")])
    for number, (value, kept) in enumerate(zip(other.get_weights(), before, strict=True)):
        np.testing.assert_array_equal(value, kept if number < 2 else model.get_weights()[number])
    model.save_weights(tmp_path / "part.weights.h5", objects_to_skip=[model.get_layer("a")])
    with pytest.raises(ModelError, match="does not fit"):
        other.load_weights(tmp_path / "part.weights.h5")
    report = kd.saving.load_weights(other, tmp_path / "part.weights.h5", objects_to_skip=other.layers[:1])
    assert report.loaded == ("b/kernel", "b/bias")


@pytest.mark.parametrize("name", ["w.safetensors", "w.keras"])
def test_options_of_other_forms_are_refused(tmp_path, name):
    with pytest.raises(ModelError, match="`objects_to_skip` needs a file that ends in"):
        dense().load_weights(tmp_path / name, objects_to_skip=[])


@pytest.mark.parametrize("name", ["m.h5", "m.hdf5"])
def test_files_of_keras_2_are_refused_with_the_way_by_keras_3(tmp_path, name):
    model = dense()
    for call in (model.save, model.load_weights, kd.models.load_model):
        with pytest.raises(ModelError, match="the format of Keras 2 is not supported") as caught:
            call(tmp_path / name)
        assert ".keras" in caught.value.fix
