"""MNIST, downloaded once through `tensorflow-datasets`, without TensorFlow.

It is stored as `array_record` files in `$TFDS_DATA_DIR/mnist_arrays`, by default in `~/tensorflow_datasets`. The first
call needs a network, or the four files of MNIST in the folder `downloads/manual` there. `keras_dist.datasets.digits`
needs neither::

    from keras_dist.datasets import mnist

    (x_train, y_train), (x_test, y_test) = mnist.load_data()       # numpy
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_dist._support.extras import import_extra
from keras_dist.datasets.local import Arrays, Folder, LocalBuilder, read, resolve_root, tfds
from keras_dist.errors import DataError

_DOWNLOAD = "tensorflow_datasets.core.download"
downloader = import_extra(f"{_DOWNLOAD}.downloader", "datasets", "keras_dist.datasets.mnist")
download_manager = import_extra(f"{_DOWNLOAD}.download_manager", "datasets", "keras_dist.datasets.mnist")

_FILES = {"train": "train", "test": "t10k"}
_HEADER_BYTES = {"images-idx3": 16, "labels-idx1": 8}


class Mnist(LocalBuilder):
    """70,000 grey images of handwritten digits, 28 x 28 pixels of 0 (background) to 255 (ink).

    A row is `{"image": uint8 (28, 28), "label": int 0..9}`, in the original order. The splits are `train` (60,000 rows)
    and `test` (10,000). Addresses and checksums are from tfds's `mnist`, which itself needs TensorFlow.

    Source: Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits", 1998.
    """

    name = "mnist_arrays"
    title = "MNIST"
    image_shape = (28, 28)
    size_mb = 100
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "The first."}

    @property
    def url_infos(self) -> dict[str, Any]:
        """Checksum and name of each file, by address."""
        return tfds.builder_cls("mnist").url_infos or {}

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[tuple[int, Any]]]:
        urls = {info.filename: url for url, info in self.url_infos.items()}
        try:
            with _few_retries():
                files: Any = dl_manager.download(urls)
        except (OSError, tfds.download.DownloadError, download_manager.NonMatchingChecksumError) as error:
            fix = f"call it with a network, copy them to {str(self.manual_dir)!r}, or use datasets.digits.load_data()"
            raise DataError(f"cannot download MNIST, the files {', '.join(urls)}", given=f"{error}", fix=fix) from error
        return {split: self._generate_examples(files, name) for split, name in _FILES.items()}

    def _generate_examples(self, files: Mapping[str, Any], name: str) -> Iterator[tuple[int, Any]]:
        images, labels = (
            np.frombuffer(gzip.decompress(Path(files[f"{name}-{kind}-ubyte.gz"]).read_bytes()), np.uint8, offset=offset)
            for kind, offset in _HEADER_BYTES.items()
        )
        for key, (image, label) in enumerate(zip(images.reshape(-1, *self.image_shape), labels, strict=True)):
            yield key, {"image": image, "label": int(label)}


def builder(data_dir: Folder = None) -> Mnist:
    """Return the tfds builder of MNIST, with its files written and checked.

    Args:
        data_dir: as for `load_data`.

    Returns:
        A builder; its `as_data_source("train")` and `as_data_source("test")` return rows by index.

    Raises:
        DataError: as for `load_data`.
    """
    root = resolve_root(Mnist, data_dir)
    read(Mnist, root)
    return Mnist(data_dir=root)


def load_data(data_dir: Folder = None) -> tuple[Arrays, Arrays]:
    """Return MNIST as numpy arrays, `(x_train, y_train), (x_test, y_test)`.

    The first call downloads 12 MB. Values are not scaled; divide `x` by 255 for values from 0 to 1.

    Args:
        data_dir: folder of tfds datasets. Default: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.

    Returns:
        `x`: uint8 images, `(60000, 28, 28)` and `(10000, 28, 28)`, 0 (background) to 255 (ink).
        `y`: uint8 labels, `(60000,)` and `(10000,)`, 0 to 9.

    Raises:
        DataError: the folder is not local, the download failed, or the folder cannot be written.

    Differs from Keras: the argument is a folder, not the name of a file in a fixed folder.

    Source: `keras.datasets.mnist.load_data`.
    """
    splits = read(Mnist, resolve_root(Mnist, data_dir))
    return splits["train"], splits["test"]


@contextlib.contextmanager
def _few_retries() -> Iterator[None]:
    """Limit retries: without a network, tfds tries for more than three minutes."""
    usual, downloader.MAX_RETRIES = downloader.MAX_RETRIES, 4
    try:
        yield
    finally:
        downloader.MAX_RETRIES = usual
