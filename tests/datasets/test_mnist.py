import contextlib
import functools
import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import downloader
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.units import Size

from keras_dist.datasets import mnist
from keras_dist.errors import DataError

ROWS = {"train": 5, "t10k": 3}
NOWHERE = "http://127.0.0.1:1"


def images_of(name: str) -> np.ndarray:
    return np.random.default_rng(ROWS[name]).integers(0, 256, (ROWS[name], 28, 28)).astype(np.uint8)


def labels_of(name: str) -> np.ndarray:
    return np.arange(ROWS[name], dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the four files of a small MNIST."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ROWS:
        images, labels = images_of(name).tobytes(), labels_of(name).tobytes()
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels))
    return folder


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The files of a folder at an address on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def expect_at(address: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files at `address` are those of MNIST."""
    infos = {
        f"{address}/{file.name}": UrlInfo(
            Size(file.stat().st_size), hashlib.sha256(file.read_bytes()).hexdigest(), file.name
        )
        for file in files.iterdir()
    }
    monkeypatch.setattr(mnist.Mnist, "url_infos", infos)


@pytest.fixture(autouse=True)
def no_network(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for outside of this machine."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    expect_at(NOWHERE, files, monkeypatch)


def assert_small_mnist(data_dir: Path) -> None:
    train, test = mnist.load_data(data_dir)
    for (x, y), name in ((train, "train"), (test, "t10k")):
        assert x.dtype == y.dtype == np.uint8
        np.testing.assert_array_equal(x, images_of(name))
        np.testing.assert_array_equal(y, labels_of(name))


def test_downloads_once(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch):
    with served(files) as address:
        expect_at(address, files, monkeypatch)
        assert_small_mnist(tmp_path / "data")
    assert_small_mnist(tmp_path / "data")
    row = mnist.builder(tmp_path / "data").as_data_source("test")[1]
    np.testing.assert_array_equal(row["image"], images_of("t10k")[1])
    assert row["label"] == labels_of("t10k")[1]
    assert [path.name for path in (tmp_path / "data" / "mnist_arrays").iterdir()] == ["1.0.0"]


def test_files_that_were_downloaded_by_hand(tmp_path: Path, files: Path):
    (tmp_path / "data" / "downloads").mkdir(parents=True)
    files.rename(tmp_path / "data" / "downloads" / "manual")
    assert_small_mnist(tmp_path / "data")


def test_without_a_network(tmp_path: Path):
    with pytest.raises(DataError, match="cannot download MNIST") as caught:
        mnist.load_data(tmp_path / "data")
    assert NOWHERE.removeprefix("http://").split(":")[0] in caught.value.given
    assert "train-images-idx3-ubyte.gz" in caught.value.summary
    assert str(tmp_path / "data" / "downloads" / "manual") in caught.value.fix
    assert "digits.load_data()" in caught.value.fix
    assert downloader.MAX_RETRIES > 4


def test_other_files_than_those_of_mnist(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch):
    with served(files) as address:
        expect_at(address, files, monkeypatch)
        (files / "t10k-labels-idx1-ubyte.gz").write_bytes(b"something else")
        with pytest.raises(DataError, match="cannot download MNIST") as caught:
            mnist.load_data(tmp_path / "data")
    assert "wrong checksum" in caught.value.given


def test_the_files_are_those_that_tfds_knows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    wanted = {f"{name}-{kind}-ubyte.gz" for name in ROWS for kind in ("images-idx3", "labels-idx1")}
    known = tfds.builder_cls("mnist").url_infos
    assert {info.filename for info in known.values()} == wanted
    assert mnist.Mnist(data_dir="nowhere").url_infos == known
