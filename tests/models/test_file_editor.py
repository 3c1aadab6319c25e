"""`KerasFileEditor`: files of weights shown, compared and changed."""

import h5py
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError


def network(*units):
    return kd.Sequential([kd.Input((2,)), *(kd.layers.Dense(size) for size in units)])


@pytest.fixture
def editor(tmp_path):
    network(3, 3).save(tmp_path / "m.keras")
    return kd.saving.KerasFileEditor(tmp_path / "m.keras")


def counts(result):
    return result["status"], result["error_count"], result["match_count"]


def test_a_file_becomes_that_of_another_model(editor, tmp_path):
    target = network(3, 3, 3)
    assert counts(editor.compare(network(3, 3))) == ("success", 0, 4)
    assert editor.compare(target)["errors"] == ["/layers/dense_2: only in the model"]
    editor.add_object("layers/dense_3", {"0": np.ones((3, 3))})
    assert counts(editor.compare(target)) == ("error", 2, 4)
    editor.rename_object("dense_3", "dense_4")
    editor.rename_object("layers/dense_4", "dense_2")
    editor.add_weights("dense_2", {"1": np.zeros(7)})
    message = "/layers/dense_2/1: an array of shape (7,) in the file, an array of shape (3,) in the model"
    assert editor.compare(target)["errors"] == [message]
    editor.delete_weight("dense_2", "1")
    editor.add_weights("dense_2", {"1": np.zeros(3)})
    editor.save(tmp_path / "new.weights.h5")
    report = target.load_weights(tmp_path / "new.weights.h5")
    assert len(report.loaded) == 6
    np.testing.assert_array_equal(target.layers[2].get_weights()[0], np.ones((3, 3)))
    editor.delete_object("layers/dense_2")
    assert counts(editor.compare(network(3, 3))) == ("success", 0, 4)


def test_what_it_prints(editor, capsys):
    editor.summary()
    expected = (
        "m.keras:\n  layers\n    dense\n      0 (2, 3)\n      1 (3,)\n    dense_1\n      0 (3, 3)\n      1 (3,)\n"
    )
    assert capsys.readouterr().out == expected
    editor.compare(network(3, 4))
    assert capsys.readouterr().out.splitlines()[-1] == "error: 2 arrays fit, 2 differences"


def test_the_state_of_an_optimizer_counts_where_both_have_one(tmp_path):
    model = network(3)
    model.compile("adam", loss="mse")
    model.fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0)
    model.save_weights(tmp_path / "m.weights.h5")
    editor = kd.saving.KerasFileEditor(tmp_path / "m.weights.h5")
    assert len(editor.weights_dict["optimizer"]) == 6
    assert counts(editor.compare(model)) == ("success", 0, 8)
    assert counts(editor.compare(network(3))) == ("success", 0, 2)


def linked(file):
    file["layers"] = h5py.ExternalLink("other.h5", "/layers")


def soft(file):
    file.create_group("real").create_dataset("0", data=np.zeros(1))
    file["layers"] = h5py.SoftLink("/real")


def virtual(file):
    layout = h5py.VirtualLayout(shape=(5,), dtype="float32")
    layout[:] = h5py.VirtualSource("other.h5", "s", shape=(5,))
    file.create_group("layers/dense/vars").create_virtual_dataset("0", layout)


@pytest.mark.parametrize("write", [linked, soft, virtual])
def test_what_leads_out_of_a_file_is_refused(tmp_path, write):
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        write(file)
    with pytest.raises(ModelError, match="cannot be read"):
        kd.saving.KerasFileEditor(tmp_path / "m.weights.h5")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda e: e.delete_object("dens"), r"0 objects are called 'dens' \(did you mean 'layers/dense"),
        (
            lambda e: (e.add_object("other/dense", {"0": 1}), e.delete_object("dense")),
            "2 objects .*: layers/dense, oth",
        ),
        (lambda e: e.rename_object("dense", "dense_1"), "is taken"),
        (lambda e: e.rename_object("dense", "a/b"), "or a path"),
        (lambda e: e.add_object("layers/dense", {}), "is there already"),
        (lambda e: e.delete_weight("dense", "7"), "has no array '7'"),
        (lambda e: e.save("m.keras"), "not that of a file of weights"),
        (lambda e: kd.saving.KerasFileEditor("m.npz"), "that of another file"),
    ],
)
def test_errors_say_what_there_is(editor, act, message):
    with pytest.raises(ModelError, match=message) as caught:
        act(editor)
    assert caught.value.fix


def test_an_array_that_is_not_in_the_file_is_not_made(tmp_path):
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:  # 64 GiB, of which nothing is stored
        file.create_dataset("layers/dense/vars/0", (2**17, 2**17), "float32", chunks=(2**10, 2**10))
    with pytest.raises(ModelError, match="of which the file holds 0 at most"):
        kd.saving.KerasFileEditor(tmp_path / "m.weights.h5")
