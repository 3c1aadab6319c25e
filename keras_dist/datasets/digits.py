"""Real handwritten digits, without a network and without TensorFlow.

The images come with scikit-learn. A `tensorflow-datasets` builder writes them once, as `array_record` files, to
`$TFDS_DATA_DIR/sklearn_digits` (`~/tensorflow_datasets` when the variable is not set), from where they are read like
any other tfds data set::

    from keras_dist.datasets import digits

    (x_train, y_train), (x_test, y_test) = digits.load_data()      # numpy
    source = digits.builder().as_data_source("train")              # random access, one dict for each image
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

    A row is `{"image": uint8 (8, 8), "label": int 0..9}`. The splits, `train` (1,437 rows) and `test` (360),
    cut one fixed permutation in two. To tfds the data set is `sklearn_digits`.

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
        sklearn = import_extra(
            "sklearn.datasets", "datasets", "keras_dist.datasets.digits"
        )  # 0.7 s, for preparing only
        images, labels = sklearn.load_digits(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(images))  # RandomState: the same in every numpy
        for key in rows:
            image = images[order[key]].reshape(8, 8).astype(np.uint8)
            yield key, {"image": image, "label": int(labels[order[key]])}


def builder(data_dir: Folder = None) -> Digits:
    """Return the tfds builder of the digits, with its files written and checked.

    Several processes may call this at once. Damaged files, as left by a crash or an incomplete copy, are written again.

    Args:
        data_dir: folder that holds tfds data sets. Default: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.

    Returns:
        A builder of which `as_data_source("train")` and `as_data_source("test")` give rows by index.

    Raises:
        DataError: the folder is not local, or does not hold the digits yet and cannot be written to.
    """
    root = resolve_root(Digits, data_dir)
    read(Digits, root)
    return Digits(data_dir=root)


def load_data(data_dir: Folder = None) -> tuple[Arrays, Arrays]:
    """Return the digits as numpy arrays, `(x_train, y_train), (x_test, y_test)`.

    Like `keras.datasets.mnist.load_data`: values are raw, so divide `x` by 16 to scale it to 0..1.

    Args:
        data_dir: as for `builder`.

    Returns:
        `x`: images uint8 (1437, 8, 8) and (360, 8, 8), 0 (background) to 16 (ink).
        `y`: labels uint8 (1437,) and (360,), 0 to 9.

    Raises:
        DataError: the folder is not local, or does not hold the digits yet and cannot be written to.

    Example:
        >>> (x_train, y_train), (x_test, y_test) = load_data()
        >>> x_train.shape, y_test.shape
        ((1437, 8, 8), (360,))
    """
    splits = read(Digits, resolve_root(Digits, data_dir))
    return splits["train"], splits["test"]
