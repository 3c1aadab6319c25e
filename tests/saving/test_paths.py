"""Arguments that name files and folders, and disks that are full."""

import errno
import pathlib
import resource

import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import KerasDistError, ModelError, WriteError
from keras_dist.saving.drafts import writing_to


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
        with pytest.raises(kd.errors.ConfigError, match="`path` is no path"):
            kd.distribution_from_config(value)


@pytest.fixture(scope="module")
def model():
    model = kd.Sequential([kd.Input((64,)), kd.layers.Dense(500, name="d1")])
    model.compile("adam", loss="mse")
    return model


@pytest.fixture
def full_disk():
    """Files become no larger than 300 bytes: what is written beyond fails, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    yield
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
def test_a_full_disk_names_the_path(model, tmp_path, full_disk, name, save):
    with pytest.raises(WriteError, match="was not written: File too large") as error:
        save(model, tmp_path / name)
    assert str(tmp_path / name) in error.value.summary and "free space" in error.value.fix
    assert isinstance(error.value, OSError) and error.value.errno == errno.EFBIG
    assert error.value.filename.startswith(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["gs://bucket/exported", pathlib.Path("s3://bucket/exported")])
def test_programs_are_not_exported_to_buckets(model, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="bucket/exported' cannot hold an exported program"):
        model.export(path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_names_the_path_in_a_manager(model, tmp_path, full_disk):
    with (
        kd.checkpoint.CheckpointManager(model, tmp_path) as manager,
        pytest.raises(kd.errors.CheckpointError, match="step_00000000' was not written"),
    ):
        manager.save()


def test_a_full_disk_names_the_path_of_logs(model):
    logger = kd.callbacks.CSVLogger("/dev/full")
    logger.on_train_begin()
    with pytest.raises(WriteError, match="'/dev/full' was not written: No space left on device"):
        logger.on_epoch_end(0, {"loss": 0.5})


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
        (ValueError("OUT_OF_RANGE: Error writing: Failed to write 3 bytes [os_error_code='28']"), errno.ENOSPC),
        (ValueError("Error writing [OS error 28: ENOSPC No space left on device]"), errno.ENOSPC),
        (RuntimeError("I/O error: File too large (os error 27)"), errno.EFBIG),
    ],
)
def test_what_libraries_make_of_errors_of_the_system(error, number):
    with pytest.raises(WriteError) as found, writing_to("x"):
        raise error
    assert (found.value.errno, found.value.filename, found.value.__cause__) == (number, "x", error)


@pytest.mark.parametrize("error", [ValueError("28"), FileNotFoundError(errno.ENOENT, "none", "y"), KeyError("x")])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as found, writing_to("x"):
        raise error
    assert found.value is error
