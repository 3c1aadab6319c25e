"""Arguments that name files and folders, and disks that are full."""

import contextlib
import errno
import pathlib
import resource
import types

import numpy as np
import pytest

import keras_dist as kd
from keras_dist import dtensor
from keras_dist.assembly.runs import _SavedConfig
from keras_dist.errors import KerasDistError, WriteError
from keras_dist.files.drafts import write_file
from keras_dist.training.throughput import Timing


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
    for variable in (*model.weights, *model.optimizer.variables):
        variable.numpy()  # created before the disk is full, which JAX's compilation cache would warn about
    return model


@contextlib.contextmanager
def full_disk(most_bytes=300):
    """Files become no larger: what is written beyond fails, as on a full disk.

    Not a fixture: pytest writes its report, which may be a file, before fixtures end.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
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
    ],
)
def test_a_folder_in_the_place_of_a_file_is_named(name, save, model, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(KerasDistError, match=f"no file can be written at '.*{name}'") as caught:
        save(model, tmp_path / name)
    assert (caught.value.given, caught.value.fix) == (
        "a folder is there",
        "choose another path, or move the folder away",
    )


@pytest.mark.parametrize("place", ["file", "file/x"])
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5", "m.safetensors", "program"])
def test_a_file_in_the_place_of_a_folder_is_named(place, name, model, tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / place / name
    save = {"m.keras": model.save, "program": model.export}.get(name, model.save_weights)
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
    "save": lambda model, place: model.save(f"{place}/model"),
    "save of a .keras file": lambda model, place: model.save(f"{place}/model.keras"),
    "save of a folder of Keras": lambda model, place: model.save(f"{place}/model", zipped=False),
    "safetensors": lambda model, place: model.save_weights(f"{place}/m.safetensors"),
    "safetensors in shards": lambda model, place: model.save_weights(f"{place}/m.safetensors", max_shard_size=1e-5),
    "orbax": lambda model, place: model.save_weights(f"{place}/m.orbax"),
    "h5": lambda model, place: model.save_weights(f"{place}/m.weights.h5"),
    "h5 in shards": lambda model, place: model.save_weights(f"{place}/m.weights.h5", max_shard_size=1e-5),
    "export": lambda model, place: model.export(f"{place}/exported"),
    "CheckpointManager": lambda model, place: kd.checkpoint.CheckpointManager(model, f"{place}/states"),
    "BackupAndRestore": lambda model, place: fit(model, kd.callbacks.BackupAndRestore(f"{place}/backup")),
    "OrbaxCheckpoint": lambda model, place: fit(model, kd.callbacks.OrbaxCheckpoint(f"{place}/states")),
    "ModelCheckpoint": lambda model, place: fit(model, kd.callbacks.ModelCheckpoint(f"{place}/a/m.keras")),
    "CSVLogger": lambda model, place: fit(model, kd.callbacks.CSVLogger(f"{place}/log.csv")),
    "TensorBoard": lambda model, place: fit(model, kd.callbacks.TensorBoard(f"{place}/logs")),
    "to_html": lambda model, place: model.plan(X, Y).to_html(f"{place}/plan.html"),
    "golden plan": lambda model, place: kd.planner.assert_plan(model.plan(X, Y), f"{place}/plan.json", update=True),
    "plot_history": lambda model, place: kd.visualization.plot_history({"loss": [1.0]}, f"{place}/loss.png"),
    "plot_model": lambda model, place: kd.utils.plot_model(model, f"{place}/model.dot"),
    "save_img": lambda model, place: kd.utils.save_img(f"{place}/x.png", np.ones((2, 2, 3))),
    "use_compilation_cache": lambda model, place: kd.use_compilation_cache(f"{place}/programs"),
    "save_assets": lambda model, place: vocabulary().save_assets(place),
    "dtensor": lambda model, place: checkpoint().save(f"{place}/tensors"),
    "config of a run": lambda model, place: _SavedConfig(run(place)).on_epoch_begin(0),
    "Picture": lambda model, place: kd.visualization.plot_mesh(kd.DeviceMesh("batch=8")).save(f"{place}/plan.svg"),
    "calibrate": lambda model, place: calibrated(model, f"{place}/v5e.json"),
    "state of CSVLogger": lambda model, place: kd.callbacks.CSVLogger(f"{place}/a.csv").set_state(COLUMNS),
    "adapter": lambda model, place: adapted().save_adapter(f"{place}/adapter"),
}


COLUMNS = {"columns": ["epoch", "loss"], "text": "epoch,loss\n" * 50}


def vocabulary():
    layer = kd.layers.StringLookup()
    layer.adapt(["a" * 400, "b"])
    return layer


def run(place):
    return types.SimpleNamespace(checkpoint=types.SimpleNamespace(directory=str(place)), to_json=lambda: "{}\n" * 200)


def calibrated(model, path):
    history = types.SimpleNamespace(timing=Timing(3, 24, 1, 0.5, 0.6, 0.2, 0.2, 40.0, 0.1, {}))
    for _ in range(4):
        kd.planner.calibrate(history, model.plan(X, Y, target="cpu:1", compiles=False), path)


def adapted():
    model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(500, name="d1")])
    model.enable_lora(2, "d1")
    return model


def checkpoint():
    mesh = dtensor.create_mesh([("x", 8)])
    return dtensor.DTensorCheckpoint(mesh, w=dtensor.DVariable(np.ones(8), layout=dtensor.Layout(["x"], mesh)))


@pytest.mark.parametrize("name", WRITERS)
def test_a_read_only_folder_is_named_everywhere(model, name):
    with pytest.raises(WriteError) as error:
        WRITERS[name](model, READ_ONLY)
    assert READ_ONLY in f"{error.value.summary} {error.value.given}" and isinstance(error.value, OSError)
    assert "folder" in error.value.fix or "permissions" in error.value.fix


ADDS = ("BackupAndRestore", "CSVLogger", "CheckpointManager", "OrbaxCheckpoint", "TensorBoard", "use_compilation_cache")
"""What adds files, or empties its file before it trains, as in Keras."""


def content(folder):
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".draft-" not in str(path))
    return {path: path.read_bytes() for path in found}  # a thread of tensorstore may write to a draft that is deleted


@pytest.mark.parametrize("name", sorted({*WRITERS} - {*ADDS, "export"}))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_keeps_what_was_there(model, tmp_path, name):
    WRITERS[name](model, tmp_path)
    before = content(tmp_path)
    with pytest.raises(WriteError, match="untouched"), full_disk(max(map(len, before.values())) // 2):
        WRITERS[name](model, tmp_path)
    assert content(tmp_path) == before


@pytest.mark.filterwarnings("ignore:CSVLogger cannot log")
def test_a_full_disk_leaves_no_part_of_a_row(tmp_path):
    logger = kd.callbacks.CSVLogger(tmp_path / "log.csv")
    logger.on_train_begin()
    logger.on_epoch_end(0, {"loss": 1.0})
    with full_disk((tmp_path / "log.csv").stat().st_size + 3):
        logger.on_epoch_end(1, {"loss": 2.0})
    logger.on_epoch_end(2, {"loss": 3.0})
    assert (tmp_path / "log.csv").read_text().split() == ["epoch,loss,val_loss", "0,1.0,NA", "2,3.0,NA"]


def test_a_full_disk_keeps_both_files_of_an_adapter(tmp_path, monkeypatch):
    adapted().save_adapter(tmp_path)
    before = content(tmp_path)

    def full_now(path, text, encoding=None):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full_now)  # of the config, which is written after the arrays
    model = adapted()
    model.set_weights([weight + 1 for weight in model.get_weights()])
    with pytest.raises(WriteError, match="untouched"):
        model.save_adapter(tmp_path)
    assert content(tmp_path) == before


def test_files_that_are_replaced_keep_links_and_permissions(tmp_path):
    plain, link = tmp_path / "a.json", tmp_path / "link.json"
    plain.write_text("before")
    plain.chmod(0o640)
    link.symlink_to(plain)
    write_file(link, "after")
    assert plain.read_text() == "after" and link.is_symlink() and plain.stat().st_mode & 0o777 == 0o640
    write_file("/dev/null", "nothing")
