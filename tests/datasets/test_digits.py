import collections
import hashlib
import os
import pwd
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tensorflow_datasets.core.utils import tqdm_utils

import keras_dist as kd
from keras_dist.datasets import digits
from keras_dist.errors import DataError, WriteError

FILES = [
    "dataset_info.json",
    "features.json",
    "sklearn_digits-test.array_record-00000-of-00001",
    "sklearn_digits-train.array_record-00000-of-00001",
]


@pytest.fixture
def prepared(tmp_path: Path, data_dir: str) -> Path:
    """A data folder of this test alone, with the digits in it."""
    digits.builder()
    return Path(shutil.copytree(data_dir, tmp_path / "prepared"))


def rows(x: np.ndarray, y: np.ndarray) -> list[tuple[bytes, int]]:
    return [(image.astype(np.uint8).tobytes(), int(label)) for image, label in zip(x, y, strict=True)]


def assert_digits_load(data_dir: Path | str | None = None) -> None:
    (x_train, y_train), (x_test, y_test) = digits.load_data(data_dir)
    images, labels = load_digits(return_X_y=True)
    assert collections.Counter(rows(x_train, y_train) + rows(x_test, y_test)) == collections.Counter(
        rows(images, labels)
    )
    assert (len(x_train), len(x_test)) == (1437, 360)


def test_they_are_scikit_learns_digits_and_the_splits_never_change():
    assert_digits_load()
    (x_train, y_train), (x_test, y_test) = digits.load_data()
    assert x_train.shape == (1437, 8, 8) and y_train.shape == (1437,)
    assert x_train.dtype == y_train.dtype == x_test.dtype == y_test.dtype == np.uint8
    content = b"".join(array.tobytes() for array in (x_train, y_train, x_test, y_test))
    assert hashlib.sha256(content).hexdigest() == "25bb209edf45b4003a539309c103e25e19c4f663e9b7887c34213131060a2cfc"


def test_the_builder_gives_rows_by_index():
    source = digits.builder().as_data_source("test")  # pyright: ignore[reportCallIssue]
    _, (x_test, y_test) = digits.load_data()
    assert len(source) == 360
    np.testing.assert_array_equal(source[7]["image"], x_test[7])
    assert source[7]["label"] == y_test[7]


def test_nothing_else_is_disturbed(tmp_path: Path):
    random.seed(1337)
    expected = random.random()
    random.seed(1337)
    digits.builder(tmp_path)
    assert random.random() == expected
    assert tqdm_utils._active


PROGRAM = """
import os, pathlib, signal, sys, warnings
import sklearn.datasets  # once, in the process that is forked
from keras_dist.datasets import digits


def start(run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of forks
        pid = os.fork()
    if pid:
        return pid
    try:
        run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def killed():
    digits.tfds.core.DatasetInfo.write_to_directory = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
    digits.builder()


def loads():
    assert len(digits.load_data()[0][0]) == 1437
    assert not {"tensorflow", "torch", "keras"} & set(sys.modules), sorted(sys.modules)


assert os.waitpid(start(killed), 0)[1] == signal.SIGKILL
assert not pathlib.Path(os.environ["TFDS_DATA_DIR"], "sklearn_digits", "1.0.0").exists()
for pid in [start(loads) for _ in range(2)]:
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.multiprocess
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_after_one_was_killed_two_processes_prepare_at_once_without_tensorflow_and_silent(tmp_path: Path):
    (tmp_path / "tensorflow.py").write_text("raise AssertionError('imported')")
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=os.environ | {"TFDS_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert_digits_load(tmp_path / "data")


@pytest.mark.parametrize(("name", "damage"), [(FILES[0], "missing"), (FILES[0], "cut off"), (FILES[3], "cut off")])
def test_damaged_files_are_made_anew(prepared: Path, name: str, damage: str):
    file = prepared / "sklearn_digits" / "1.0.0" / name
    if damage == "missing":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 4)
    assert_digits_load(prepared)
    assert sorted(path.name for path in file.parent.iterdir()) == FILES
    assert [path.name for path in file.parent.parent.iterdir()] == ["1.0.0"]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    with pytest.raises(DataError) as caught:
        digits.load_data(folder)
    assert str(caught.value) == (
        f"cannot write the digits dataset to '{folder}'\n"
        f"  given:    [Errno 20] Not a directory: '{folder}/sklearn_digits'\n"
        "  expected: a writable folder with about 1 MB free\n"
        "  fix:      pass data_dir=, or set TFDS_DATA_DIR, to such a folder"
    )


def test_a_folder_in_a_bucket(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TFDS_DATA_DIR", "gs://bucket/data")
    with pytest.raises(DataError, match="a local folder"):
        digits.load_data()


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch):
    for name in ("HOME", "TFDS_DATA_DIR", "KERAS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # KeyError: containers give users that have no name
    with pytest.raises(DataError, match="the digits dataset has no folder") as caught:
        digits.load_data()
    assert "TFDS_DATA_DIR" in caught.value.fix
    with pytest.raises(DataError, match=r"'x\.npz' does not exist"):
        kd.utils.get_file("x.npz")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    with pytest.raises(WriteError, match="cannot be kept there") as refused:
        kd.use_compilation_cache()
    assert "name a folder" in refused.value.fix
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(WriteError, match="cannot be kept there"):
        kd.use_compilation_cache()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path: Path, prepared: Path):
    tmp_path.chmod(0o555)
    with pytest.raises(DataError, match="Permission denied"):
        digits.load_data(tmp_path)
    assert_digits_load(prepared)
