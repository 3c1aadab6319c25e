"""Datasets of tfds on a local disk, written once and read without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_dist._support.extras import import_extra
from keras_dist.errors import DataError

if TYPE_CHECKING:
    import tensorflow_datasets as tfds
else:
    import_extra("array_record", "datasets", "keras_dist.datasets")  # the file format
    tfds = import_extra("tensorflow_datasets", "datasets", "keras_dist.datasets")

Arrays = tuple[np.ndarray, np.ndarray]
Folder = str | os.PathLike[str] | None

_FIX = "pass data_dir=, or set TFDS_DATA_DIR, to such a folder"


class LocalBuilder(tfds.core.GeneratorBasedBuilder):
    """Builder of small grey images with labels 0 to 9, in splits `train` and `test`, as `array_record` files."""

    title: str  # in errors
    image_shape: tuple[int, int]
    size_mb: int
    manual_dir: Path  # of files downloaded by hand; set during preparation

    def _info(self) -> tfds.core.DatasetInfo:
        info = _LocalInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Tensor(shape=self.image_shape, dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # the rows have an order already
        )
        info.set_file_format("array_record")
        return info

    def _log_download_bytes(self) -> None:
        pass

    def _log_download_done(self) -> None:
        pass


class _LocalInfo(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Do nothing: a request to tfds's bucket would load TensorFlow if it is installed."""


def resolve_root(builder_class: type[LocalBuilder], data_dir: Folder) -> Path:
    """Return the folder of tfds datasets: `data_dir`, else `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`."""
    chosen = os.fspath(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    if "://" in chosen:
        raise DataError(f"the {builder_class.title} dataset must be in a local folder", given=chosen, fix=_FIX)
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError as error:  # the system names no home
        summary = f"the {builder_class.title} dataset has no folder"
        raise DataError(summary, given=str(error), expected="a local folder", fix=_FIX) from error


def read(builder_class: type[LocalBuilder], root: Path) -> dict[str, Arrays]:
    """Return the images and labels of each split from files under `root`; write missing and damaged files again."""
    found = _read_whole(builder_class, root)
    if found is not None:
        return found
    try:
        prepare(builder_class, root)
    except OSError as error:
        summary = f"cannot write the {builder_class.title} dataset to {str(root)!r}"
        expected = f"a writable folder with about {builder_class.size_mb} MB free"
        raise DataError(summary, given=str(error), expected=expected, fix=_FIX) from error
    return _read(builder_class, root)


def prepare(builder_class: type[LocalBuilder], root: Path) -> None:
    """Write the files to a scratch folder, and move them to their place in one step."""
    place = root / builder_class.name / str(builder_class.VERSION)
    place.parent.mkdir(parents=True, exist_ok=True)
    # other threads may still write after a failed download
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=place.parent, ignore_cleanup_errors=True) as scratch:
        fresh = builder_class(data_dir=scratch)
        fresh.manual_dir = root / "downloads" / "manual"
        config = tfds.download.DownloadConfig(try_download_gcs=False, manual_dir=fresh.manual_dir)
        with _undisturbed():
            fresh.download_and_prepare(download_config=config)
        try:
            if place.exists() and _read_whole(builder_class, root) is None:
                place.rename(Path(scratch) / "damaged")
            Path(fresh.data_dir).rename(place)
        except OSError:
            if _read_whole(builder_class, root) is None:  # not written by another process
                raise


def _read_whole(builder_class: type[LocalBuilder], root: Path) -> dict[str, Arrays] | None:
    """Return the result of `_read`, or None for damaged files."""
    try:
        return _read(builder_class, root)
    except Exception:  # damaged files raise errors of json, protobuf, tfds and array_record
        return None


def _read(builder_class: type[LocalBuilder], root: Path) -> dict[str, Arrays]:
    builder = builder_class(data_dir=root)
    splits: Mapping[str, Any] = builder.info.splits
    return {split: _arrays(builder, split, splits[split].num_examples) for split in ("train", "test")}


def _arrays(builder: LocalBuilder, split: str, count: int) -> Arrays:
    source: Any = builder.as_data_source(split)  # pyright: ignore[reportCallIssue]: tfds's decorator hides its arguments
    rows = source.__getitems__(range(count))
    return np.stack([row["image"] for row in rows]), np.array([row["label"] for row in rows], np.uint8)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hide tfds's progress bars, and restore Python's random state, which tfds uses for a name."""
    shown, numbers = tfds.core.utils.tqdm_utils._active, random.getstate()  # pyright: ignore[reportAttributeAccessIssue]
    tfds.disable_progress_bar()
    try:
        yield
    finally:
        tfds.display_progress_bar(shown)
        random.setstate(numbers)
