"""Real handwritten digits, without a network and without TensorFlow.

The images come with scikit-learn. A `tensorflow-datasets` builder writes them once, as `array_record` files, to
`$TFDS_DATA_DIR/sklearn_digits` (`~/tensorflow_datasets` when the variable is not set), from where they are read like
any other tfds data set::

    from keras_dist.datasets import digits

    (x_train, y_train), (x_test, y_test) = digits.load_data()      # numpy
    source = digits.builder().as_data_source("train")              # random access, one dict for each image
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds
from etils import epy
from tensorflow_datasets.core.utils import tqdm_utils

from keras_dist.errors import DataError

with epy.lazy_imports():  # 0.7 s, for preparing only
    from sklearn import datasets as sklearn_datasets

Arrays = tuple[np.ndarray, np.ndarray]

_ROWS = {"train": range(1437), "test": range(1437, 1797)}
_FIX = "pass data_dir=, or set TFDS_DATA_DIR, to such a folder"


class Digits(tfds.core.GeneratorBasedBuilder):
    """1,797 grey images of handwritten digits, 8 x 8 pixels of 0 (background) to 16 (ink), by 13 writers.

    A row is `{"image": uint8 (8, 8), "label": int 0..9}`. The splits, `train` (1,437 rows) and `test` (360),
    cut one fixed permutation in two. To tfds the data set is `sklearn_digits`.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (its test set), UCI Machine Learning
    Repository, 1998, as found in `sklearn.datasets.load_digits`.
    """

    name = "sklearn_digits"
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "The first."}

    def _info(self) -> tfds.core.DatasetInfo:
        info = _LocalInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Tensor(shape=(8, 8), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # the permutation below is the order
        )
        info.set_file_format("array_record")
        return info

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[tuple[int, Any]]]:
        return {split: self._generate_examples(rows) for split, rows in _ROWS.items()}

    def _generate_examples(self, rows: range) -> Iterator[tuple[int, Any]]:
        images, labels = sklearn_datasets.load_digits(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(images))  # RandomState: the same in every numpy
        for key in rows:
            image = images[order[key]].reshape(8, 8).astype(np.uint8)
            yield key, {"image": image, "label": int(labels[order[key]])}

    def _log_download_bytes(self) -> None:
        """Says nothing: there is no download."""

    def _log_download_done(self) -> None:
        """Says nothing: there was no download."""


class _LocalInfo(tfds.core.DatasetInfo):
    """Never asks tfds's bucket for statistics: a network call that would load TensorFlow where it is installed."""

    def initialize_from_bucket(self) -> None:
        """Does nothing."""


def builder(data_dir: str | os.PathLike[str] | None = None) -> Digits:
    """The tfds builder of the digits, its files prepared and found readable.

    Several processes may call this at once. Files that a crash or a half-done copy left damaged are made anew.

    Args:
        data_dir: folder that holds tfds data sets. Default: `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`.

    Returns:
        A builder of which `as_data_source("train")` and `as_data_source("test")` give rows by index.

    Raises:
        DataError: the folder is not local, or does not hold the digits yet and cannot be written to.
    """
    root = _resolve_root(data_dir)
    if not _is_whole(root):
        try:
            _prepare(root)
        except OSError as error:
            raise DataError(
                f"cannot write the digits data set to {str(root)!r}",
                given=str(error),
                expected="a folder that can be written to, with about 1 MB free",
                fix=_FIX,
            ) from error
    return Digits(data_dir=root)


def load_data(data_dir: str | os.PathLike[str] | None = None) -> tuple[Arrays, Arrays]:
    """The digits as numpy arrays, `(x_train, y_train), (x_test, y_test)`.

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
    digits = builder(data_dir)
    return _arrays(_rows(digits, "train")), _arrays(_rows(digits, "test"))


def _resolve_root(data_dir: str | os.PathLike[str] | None) -> Path:
    chosen = os.fspath(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    if "://" in chosen:
        raise DataError("the digits data set is kept on disk", given=chosen, expected="a local folder", fix=_FIX)
    return Path(chosen).expanduser().absolute()


def _rows(digits: Digits, split: str) -> Sequence[Any]:
    source: Any = digits.as_data_source(split)  # pyright: ignore[reportCallIssue]: tfds's decorator hides its arguments
    return source.__getitems__(range(len(_ROWS[split])))


def _arrays(rows: Sequence[Any]) -> Arrays:
    return np.stack([row["image"] for row in rows]), np.array([row["label"] for row in rows], np.uint8)


def _is_whole(root: Path) -> bool:
    """Whether every row of the files under `root` can be read."""
    try:
        return all(len(_rows(Digits(data_dir=root), split)) == len(_ROWS[split]) for split in _ROWS)
    except Exception:  # a damaged file makes json, protobuf, tfds and array_record raise each their own
        return False


def _prepare(root: Path) -> None:
    """Writes the files beside their place, then moves them there in one step: they are there whole, or not at all."""
    place = root / Digits.name / str(Digits.VERSION)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=place.parent) as scratch:
        fresh = Digits(data_dir=scratch)
        with _undisturbed():
            fresh.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
        try:
            if place.exists() and not _is_whole(root):
                place.rename(Path(scratch) / "damaged")
            Path(fresh.data_dir).rename(place)
        except OSError:
            if not _is_whole(root):  # else another process was faster
                raise


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hides tfds's progress bars, and gives Python's random numbers back, of which tfds takes some for a name."""
    shown, numbers = tqdm_utils._active, random.getstate()
    tfds.disable_progress_bar()
    try:
        yield
    finally:
        tfds.display_progress_bar(shown)
        random.setstate(numbers)
