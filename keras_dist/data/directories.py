"""`image_dataset_from_directory` and `text_dataset_from_directory`: files in one folder for each class."""

from __future__ import annotations

import functools
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_dist._support.arguments import argument_error, check_number, check_option, check_sizes
from keras_dist._support.types import PyTree
from keras_dist.config.settings import check_data_format
from keras_dist.data.batched import BatchedDataset
from keras_dist.data.image_files import INTERPOLATIONS, read_image
from keras_dist.errors import DataError, DataFileMissingError, cause, shorten, unreadable
from keras_dist.files.regular_files import read_regular
from keras_dist.jobs.job import print_message

_IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


def image_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: Any = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
    data_format: str | None = None,
    format: str = "tf",
    verbose: bool = True,
) -> Any:
    """Return a dataset of the images in a folder, labelled by subfolder.

    Files are read by Pillow in threads, when a batch is needed: `pip install pillow`.

    Args:
        directory: the folder.
        labels: `"inferred"` from the subfolders, None, or a list with the label of each file, in the order of paths.
        label_mode: `"int"`, `"categorical"` for vectors, `"binary"` for 0.0 and 1.0 of shape (batch, 1), or None.
        class_names: the subfolders to read, in the order of their labels; by default all, sorted.
        color_mode: `"rgb"`, `"rgba"` or `"grayscale"`.
        batch_size: number of images in a batch; None for single images.
        image_size: height and width.
        shuffle: whether to shuffle files; `fit` shuffles them in each epoch.
        seed: seed of the first order.
        validation_split: fraction of the files for validation.
        subset: `"training"`, `"validation"`, or `"both"` for two datasets.
        interpolation: `"bilinear"`, `"nearest"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        follow_links: whether to read folders that are links, each once.
        crop_to_aspect_ratio: whether to crop images to the ratio of `image_size`, around their center.
        pad_to_aspect_ratio: whether to pad images to that ratio.
        data_format: `"channels_last"`, the default, or `"channels_first"`.
        format: `"tf"` or `"grain"`; the result is the same.
        verbose: whether to print the number of files.

    Returns:
        A `BatchedDataset` with `class_names` and `file_paths`, whose batches are `(images, labels)`: images float32
        from 0 to 255, (batch, height, width, channels). For `subset="both"` a list of two.

    Raises:
        DataFileMissingError: the folder does not exist. It is a `FileNotFoundError`, as in Keras.
        DataError: the folder has no such files, or an argument is invalid; when a broken file is read, which is named.

    Source: `keras.utils.image_dataset_from_directory`, with `format="grain"`.
    """
    check_option("format", format, ("tf", "grain"), error=DataError)
    check_option("color_mode", color_mode, ("rgb", "rgba", "grayscale"), error=DataError)
    check_option("interpolation", interpolation, INTERPOLATIONS, error=DataError)
    if crop_to_aspect_ratio and pad_to_aspect_ratio:
        summary = "`crop_to_aspect_ratio` and `pad_to_aspect_ratio` cannot be used together"
        raise DataError(summary, given="both are True", fix="leave one of them out")
    size = check_sizes("image_size", image_size, 2)
    read_file = functools.partial(
        read_image,
        color_mode=color_mode,
        size=(size[0], size[1]),
        interpolation=interpolation,
        crop_to_aspect_ratio=crop_to_aspect_ratio,
        pad_to_aspect_ratio=pad_to_aspect_ratio,
    )
    is_first = check_data_format(data_format, "image_dataset_from_directory") == "channels_first"

    def read(paths: list[str]) -> np.ndarray:
        images = np.stack([read_file(path) for path in paths])
        return np.moveaxis(images, -1, 1) if is_first else images

    found = _Files(directory, labels, label_mode, class_names, _IMAGES, shuffle, seed, follow_links, verbose)
    return found.datasets(read, batch_size, validation_split, subset, seed)


def text_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    format: str = "tf",
    verbose: bool = True,
) -> Any:
    """Return a dataset of the `.txt` files in a folder, labelled by subfolder.

    Args:
        directory, labels, label_mode, class_names: as in `image_dataset_from_directory`.
        batch_size: number of texts in a batch; None for single texts.
        max_length: maximum number of characters of a text; by default unlimited.
        shuffle, seed, validation_split, subset, follow_links, format, verbose: as in `image_dataset_from_directory`.

    Returns:
        A `BatchedDataset` with `class_names`, whose batches are `(texts, labels)`, texts an array of `str`. Map it by a
        `TextVectorization`, or pass it to a model that begins with one.

    Raises:
        DataFileMissingError: the folder does not exist.
        DataError: the folder has no such files, an argument is invalid, or a file is not text in UTF-8.

    Source: `keras.utils.text_dataset_from_directory`, with `format="grain"`.
    """
    check_option("format", format, ("tf", "grain"), error=DataError)

    def read(paths: list[str]) -> np.ndarray:
        texts = np.empty(len(paths), object)
        texts[:] = [_text(path)[:max_length] for path in paths]
        return texts

    found = _Files(directory, labels, label_mode, class_names, (".txt",), shuffle, seed, follow_links, verbose)
    return found.datasets(read, batch_size, validation_split, subset, seed)


def _text(path: str) -> str:
    try:
        return read_regular(pathlib.Path(path), True).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = "remove the file, or convert it"
        raise unreadable(error)(f"{shorten(path)} must be a text file in UTF-8", given=cause(error), fix=fix) from error


class _Files:
    """The files of a folder with their labels, in the order in which they are read; for the arguments see above."""

    def __init__(
        self,
        directory: Any,
        labels: Any,
        label_mode: str | None,
        class_names: Sequence[str] | None,
        endings: tuple[str, ...],
        shuffle: bool,
        seed: int | None,
        follow_links: bool,
        verbose: bool,
    ) -> None:
        self._directory, self._shuffle, self._endings = os.fspath(directory), bool(shuffle), endings
        check_option("label_mode", label_mode, ("int", "categorical", "binary", None), error=DataError)
        self._mode = None if labels is None else label_mode
        inferred = isinstance(labels, str) and labels == "inferred" and label_mode is not None
        if not inferred and self._mode is not None and not isinstance(labels, list | tuple | np.ndarray):
            raise argument_error("labels", labels, '"inferred", None, or a list of integers', error=DataError)
        if not os.path.isdir(self._directory):
            raise argument_error("directory", directory, "a folder", error=DataFileMissingError)
        folders = self._folders(class_names) if inferred else [""]
        if not inferred and class_names is not None:
            raise argument_error("class_names", class_names, 'None without labels="inferred"', error=DataError)
        found = [
            (path, number)
            for number, folder in enumerate(folders)
            for path in self._paths(os.path.join(self._directory, folder), follow_links)
        ]
        self._paths_in_order = [path for path, _ in found]
        self._labels = np.array([number for _, number in found], "int32")
        self.class_names = list(folders) if inferred else None
        if self._mode is not None and not inferred:
            self._labels = np.asarray(labels, "int32")
            if len(self._labels) != len(found):
                raise argument_error("labels", labels, f"a label for each of {len(found)} files", error=DataError)
            self.class_names = [str(label) for label in sorted(set(self._labels.tolist()))]
        if self._mode == "binary" and len(self.class_names or ()) != 2:
            raise argument_error("label_mode", "binary", f"two classes, not {self.class_names}", error=DataError)
        if verbose:
            classes = "" if self.class_names is None else f" belonging to {len(self.class_names)} classes"
            print_message(f"Found {len(found)} files{classes}.")
        order = np.arange(len(found))
        if shuffle:
            np.random.RandomState(secrets.randbelow(10**6) if seed is None else seed).shuffle(order)
        self._order = order

    def datasets(
        self,
        read: Callable[[list[str]], np.ndarray],
        batch_size: int | None,
        validation_split: float | None,
        subset: str | None,
        seed: int | None,
    ) -> Any:
        """Return one dataset, or two for `subset="both"`."""
        check_option("subset", subset, ("training", "validation", "both", None), error=DataError)
        if validation_split is not None:
            check_number("validation_split", validation_split, above=0, below=1, example=0.2, error=DataError)
        if (validation_split is None) != (subset is None):
            given = f"subset={subset!r}, validation_split={validation_split!r}"
            fix = "give both, or neither"
            raise DataError("`subset` and `validation_split` must be given together", given=given, fix=fix)
        if validation_split is not None and self._shuffle and seed is None:
            raise argument_error("seed", seed, "an integer, so that both subsets have other files", error=DataError)
        at = len(self._order) - int((validation_split or 0) * len(self._order))
        parts = {"training": self._order[:at], "validation": self._order[at:]}
        if subset == "both":
            shuffles = {"training": self._shuffle, "validation": False}
            return [self._dataset(read, parts[name], batch_size, shuffles[name]) for name in parts]
        return self._dataset(read, self._order if subset is None else parts[subset], batch_size, self._shuffle)

    def _dataset(
        self, read: Callable[[list[str]], np.ndarray], numbers: np.ndarray, batch_size: int | None, shuffles: bool
    ) -> BatchedDataset:
        if not len(numbers):
            given = f"{self._directory}, of which {len(self._order)} files are used in all"
            fix = f"check the folder: each subset needs a file that ends in {', '.join(self._endings)}"
            raise DataError("the folder must have at least one file", given=given, fix=fix)
        paths, labels, mode = self._paths_in_order, self._labels, self._mode
        count = len(self.class_names or ())

        def batch(wanted: np.ndarray) -> PyTree:
            x = read([paths[number] for number in wanted])
            if mode is None:
                return x
            y = labels[wanted]
            if mode == "binary":
                return x, y.astype("float32")[:, None]
            return x, (np.eye(count, dtype="float32")[y] if mode == "categorical" else y)

        files = [paths[number] for number in numbers]
        return BatchedDataset(batch, numbers, batch_size, shuffles, class_names=self.class_names, file_paths=files)

    def _folders(self, class_names: Sequence[str] | None) -> list[str]:
        with os.scandir(self._directory) as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        if class_names is None:
            return folders
        if not set(class_names) <= set(folders):
            raise argument_error("class_names", class_names, f"some of the subfolders {folders}", error=DataError)
        return list(class_names)

    def _paths(self, top: str, follow_links: bool) -> Iterator[str]:
        """Yield the files below a folder, sorted by folder and name; a folder behind several links once."""
        seen: set[str] = set()
        found: list[tuple[str, list[str]]] = []
        for folder, below, files in os.walk(top, followlinks=follow_links):
            real = os.path.realpath(folder)
            if real in seen:
                below.clear()
                continue
            seen.add(real)
            found.append((folder, files))
        for folder, files in sorted(found):
            yield from (os.path.join(folder, name) for name in sorted(files) if name.lower().endswith(self._endings))
