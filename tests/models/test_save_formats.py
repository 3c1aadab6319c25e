"""In which form a model is saved; what is left out of files of weights."""

import zipfile

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError


def dense():
    return kd.Sequential([kd.Input((3,)), kd.layers.Dense(5, name="a"), kd.layers.Dense(5, name="b")])


@pytest.mark.parametrize("save", [kd.saving.save_model, lambda model, *args, **kwargs: model.save(*args, **kwargs)])
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.png", {}, "models are not saved in files that end in '.png'"),
        ("m.keras.bak", {}, "end in '.bak'"),
        ("m", {"save_format": "keras"}, "the path says the form"),
        ("m.keras", {"shards": 2}, "there are no arguments 'shards'"),
        ("m.keras", {"zipped": False}, "should not be called a file"),
        ("m", {"zipped": True}, "`zipped` is not what the path says"),
    ],
)
def test_what_no_form_is_meant_by(tmp_path, save, name, options, message):
    with pytest.raises(ModelError, match=message) as caught:
        save(dense(), tmp_path / name, **options)
    assert caught.value.fix
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("path", [3, None, "", "."])
def test_what_is_no_path_of_unzipped_files(path):
    with pytest.raises(ModelError, match=r"must be the path of a folder|has a name") as caught:
        dense().save(path, zipped=False)
    assert caught.value.given and caught.value.fix


@pytest.mark.filterwarnings("ignore:.*form of Keras 2")
@pytest.mark.parametrize("name", ["m.keras", "m.h5"])
def test_files_of_keras_need_no_factory(tmp_path, name):
    dense().save(tmp_path / name)
    with pytest.raises(ModelError, match="holds a model of layers"):
        kd.models.load_model(tmp_path / name, factory=lambda rngs: None)


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


def test_folders_may_have_points_in_their_names(tmp_path):
    for name in ("run.2", "lr-0.01"):
        dense().save(tmp_path / name)
        assert (tmp_path / name).is_dir()
    with pytest.warns(UserWarning, match="`save_format='keras'` says nothing"):
        dense().save(tmp_path / "m.keras", save_format="keras")


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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("w.weights.h5", {"by_name": True}),
        ("w.safetensors", {"by_name": True}),
        ("w.safetensors", {"objects_to_skip": []}),
        ("w.keras", {"objects_to_skip": []}),
        ("w.h5", {"objects_to_skip": []}),
    ],
)
def test_options_of_other_forms_are_refused(tmp_path, name, options):
    with pytest.raises(ModelError, match=f"`{next(iter(options))}` needs a file that ends in"):
        dense().load_weights(tmp_path / name, **options)
