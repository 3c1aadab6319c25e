"""Arguments that name files and folders, and disks that are full."""

import contextlib
import errno
import resource

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.errors import KerasDistError, WriteError


@pytest.mark.parametrize("value", [{}, 1.0, np.zeros(3), b"x", "", "a\0b"])
@pytest.mark.parametrize(
    ("argument", "use"),
    {
        "path": kd.export.load,
        "`path`": kd.checkpoint.examine,
        "filename": kd.callbacks.CSVLogger,
        "log_dir": kd.callbacks.TensorBoard,
        "backup_dir": kd.callbacks.BackupAndRestore,
        "directory": lambda value: kd.checkpoint.CheckpointManager(kd.Sequential(), value),
        "filepath": lambda value: kd.callbacks.ModelCheckpoint(value, save_weights_only=True),
        "`filepath`": kd.models.load_model,
    }.items(),
)
def test_what_is_no_path_is_named(argument, use, value):
    with pytest.raises(KerasDistError) as error:
        use(value)
    assert argument in error.value.summary


def test_what_is_no_path_of_a_config_file():
    for value in ({}, 1.0):
        with pytest.raises(kd.errors.ConfigError, match="`path` must be a path"):
            kd.distribution_from_config(value)


@pytest.fixture(scope="module")
def model():
    model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(500, name="d1")])
    model.compile("adam", loss="mse")
    return model


@contextlib.contextmanager
def full_disk():
    """Files become no larger than 300 bytes: what is written beyond fails, as on a full disk.

    Not a fixture: pytest writes its report, which may be a file, before fixtures end.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("model", lambda model, path: model.save(path)),
        ("x.safetensors", lambda model, path: model.save_weights(path)),
        ("x.orbax", lambda model, path: model.save_weights(path)),
        ("exported", lambda model, path: model.export(path)),
    ],
)
def test_a_full_disk_names_the_path(model, tmp_path, name, save):
    with full_disk(), pytest.raises(WriteError, match="was not written: File too large") as error:
        save(model, tmp_path / name)
    assert str(tmp_path / name) in error.value.summary and "free space" in error.value.fix
    assert isinstance(error.value, OSError) and error.value.errno == errno.EFBIG
    assert error.value.filename.startswith(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("d.safetensors", lambda model, path: model.save_weights(path)),
        ("d.safetensors", lambda model, path: model.save_weights(path, max_shard_size=1e-8)),
        ("d.weights.h5", lambda model, path: model.save_weights(path)),
        ("d.keras", lambda model, path: model.save(path)),
        ("d.h5", lambda model, path: model.save(path)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*format of Keras 2")
def test_a_folder_in_the_place_of_a_file_is_named(name, save, model, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(KerasDistError, match=f"no file can be written at '.*{name}'") as caught:
        save(model, tmp_path / name)
    assert (caught.value.given, caught.value.fix) == (
        "a folder is there",
        "choose another path, or move the folder away",
    )


@pytest.mark.parametrize("place", ["file", "file/x"])
@pytest.mark.parametrize("name", ["m.keras", "m.h5", "m.weights.h5", "m.safetensors", "program"])
@pytest.mark.filterwarnings("ignore:.*format of Keras 2")
def test_a_file_in_the_place_of_a_folder_is_named(place, name, model, tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / place / name
    save = {"m.keras": model.save, "m.h5": model.save, "program": model.export}.get(name, model.save_weights)
    with pytest.raises(WriteError, match="/file' is a file, not a folder") as caught:
        save(path)
    assert caught.value.fix == "choose another path, or move away the file that is in the place of a folder"
    assert "make" not in str(caught.value) and "room" not in str(caught.value)


READ_ONLY = "/sys/kernel"
"""A folder in which not even root makes files."""

X, Y = np.ones((4, 64), "f4"), np.ones((4, 500), "f4")


def fit(model, *callbacks):
    model.fit(X, Y, verbose=0, callbacks=callbacks)


WRITERS = {
    "save": lambda model: model.save(f"{READ_ONLY}/model"),
    "save of a .keras file": lambda model: model.save(f"{READ_ONLY}/model.keras"),
    "save of a folder of Keras": lambda model: model.save(f"{READ_ONLY}/model", zipped=False),
    "save of an .h5 file": lambda model: model.save(f"{READ_ONLY}/model.h5"),
    "safetensors": lambda model: model.save_weights(f"{READ_ONLY}/m.safetensors"),
    "safetensors in shards": lambda model: model.save_weights(f"{READ_ONLY}/m.safetensors", max_shard_size=1e-5),
    "orbax": lambda model: model.save_weights(f"{READ_ONLY}/m.orbax"),
    "h5": lambda model: model.save_weights(f"{READ_ONLY}/m.weights.h5"),
    "h5 in shards": lambda model: model.save_weights(f"{READ_ONLY}/m.weights.h5", max_shard_size=1e-5),
    "export": lambda model: model.export(f"{READ_ONLY}/exported"),
    "CheckpointManager": lambda model: kd.checkpoint.CheckpointManager(model, f"{READ_ONLY}/states"),
    "BackupAndRestore": lambda model: fit(model, kd.callbacks.BackupAndRestore(f"{READ_ONLY}/backup")),
    "OrbaxCheckpoint": lambda model: fit(model, kd.callbacks.OrbaxCheckpoint(f"{READ_ONLY}/states")),
    "ModelCheckpoint": lambda model: fit(model, kd.callbacks.ModelCheckpoint(f"{READ_ONLY}/a/m.keras")),
    "CSVLogger": lambda model: fit(model, kd.callbacks.CSVLogger(f"{READ_ONLY}/log.csv")),
    "TensorBoard": lambda model: fit(model, kd.callbacks.TensorBoard(f"{READ_ONLY}/logs")),
    "to_html": lambda model: model.plan(X, Y).to_html(f"{READ_ONLY}/plan.html"),
    "golden plan": lambda model: kd.planner.assert_plan(model.plan(X, Y), f"{READ_ONLY}/plan.json", update=True),
    "plot_history": lambda model: kd.visualization.plot_history({"loss": [1.0]}, f"{READ_ONLY}/loss.png"),
    "plot_model": lambda model: kd.utils.plot_model(model, f"{READ_ONLY}/model.dot"),
    "save_img": lambda model: kd.utils.save_img(f"{READ_ONLY}/x.png", np.ones((2, 2, 3))),
    "use_compilation_cache": lambda model: kd.use_compilation_cache(f"{READ_ONLY}/programs"),
    "save_assets": lambda model: vocabulary().save_assets(READ_ONLY),
    "dtensor": lambda model: checkpoint().save(f"{READ_ONLY}/tensors"),
}


def vocabulary():
    layer = kd.layers.StringLookup()
    layer.adapt(["a", "b"])
    return layer


def checkpoint():
    mesh = dtensor.create_mesh([("x", 8)])
    return dtensor.DTensorCheckpoint(mesh, w=dtensor.DVariable(np.ones(8), layout=dtensor.Layout(["x"], mesh)))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.filterwarnings("ignore:save. .*format of Keras 2")
def test_a_read_only_folder_is_named_everywhere(model, name):
    with pytest.raises(WriteError) as error:
        WRITERS[name](model)
    assert READ_ONLY in f"{error.value.summary} {error.value.given}" and isinstance(error.value, OSError)
    assert "folder" in error.value.fix or "permissions" in error.value.fix
