"""Handwritten digits of scikit-learn, without network and without TensorFlow.

A `tensorflow-datasets` builder writes them once, as `array_record` files, to `$TFDS_DATA_DIR/sklearn_digits`, by
default in `~/tensorflow_datasets`::

    from keras_dist.datasets import digits

    (x_train, y_train), (x_test, y_test) = digits.load_data()      # numpy
    source = digits.builder().as_data_source("train")              # random access, one dict per image
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from keras_dist._support.extras import import_extra
from keras_dist.datasets.local import Arrays, Folder, LocalBuilder, read, resolve_root, tfds

_ROWS = {"train": range(1437), "test": range(1437, 1797)}


class Digits(LocalBuilder):
    """1,797 grey images of handwritten digits, 8 x 8 pixels of 0 (background) to 16 (ink), by 13 writers.

    A row is `{"image": uint8 (8, 8), "label": int 0..9}`. The splits `train` (1,437 rows) and `test` (360) are parts of
    one fixed permutation. Its name in tfds is `sklearn_digits`.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (its test set), UCI Machine Learning
    Repository, 1998, as found in `sklearn.datasets.load_digits`.
    """

    name = "sklearn_digits"
    title = "digits"
    image_shape = (8, 8)
    size_mb = 1
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "The first."}

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[tuple[int, Any]]]:
        return {split: self._generate_examples(rows) for split, rows in _ROWS.items()}

    def _generate_examples(self, rows: range) -> Iterator[tuple[int, Any]]:
        sklearn = import_extra("sklearn.datasets", "datasets", "keras_dist.datasets.digits")  # takes 0.7 s
        images, labels = sklearn.load_digits(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(images))  # RandomState is the same in every NumPy version
        for key in rows:
            image = images[order[key]].reshape(8, 8).astype(np.uint8)
            yield key, {"image": image, "label": int(labels[order[key]])}


def builder(data_dir: Folder = None) -> Digits:
    """Return the tfds builder of the digits, with its files written and checked.

    Several processes may call it at once. Damaged files are written again.

    Args:
        data_dir: folder of tfds datasets. Default: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.

    Returns:
        A builder; its `as_data_source("train")` and `as_data_source("test")` return rows by index.

    Raises:
        DataError: the folder is not local, or the digits cannot be written there.
    """
    root = resolve_root(Digits, data_dir)
    read(Digits, root)
    return Digits(data_dir=root)


def load_data(data_dir: Folder = None) -> tuple[Arrays, Arrays]:
    """Return the digits as numpy arrays, `(x_train, y_train), (x_test, y_test)`.

    Values are not scaled; divide `x` by 16 for values from 0 to 1.

    Args:
        data_dir: as for `builder`.

    Returns:
        `x`: uint8 images, `(1437, 8, 8)` and `(360, 8, 8)`, 0 (background) to 16 (ink).
        `y`: uint8 labels, `(1437,)` and `(360,)`, 0 to 9.

    Raises:
        DataError: as for `builder`.

    Example:
        >>> (x_train, y_train), (x_test, y_test) = load_data()
        >>> x_train.shape, y_test.shape
        ((1437, 8, 8), (360,))
    """
    splits = read(Digits, resolve_root(Digits, data_dir))
    return splits["train"], splits["test"]
