"""Small arrays in the place of what guides download, and of readers of other frameworks that they make batches with."""

import itertools
import math
import os
import pathlib
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import keras_dist as kd

ROWS = 512
PICTURES = 12


class Tensor(np.ndarray):
    """An array that says what it is in numpy, as those of TensorFlow do."""

    def numpy(self) -> np.ndarray:
        """As numpy has it."""
        return np.asarray(self)


class Dataset:
    """What guides use of `tf.data.Dataset`, on arrays.

    Args:
        batches: makes an iterator of what it holds.
        length: how many there are; `math.inf` where there is no end.
    """

    def __init__(self, batches: Callable[[], Iterator[Any]], length: float) -> None:
        self._batches, self._length = batches, length

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> "Dataset":
        """A row each."""
        leaves, structure = jax.tree.flatten(tensors)
        rows = len(leaves[0])
        return cls(lambda: (structure.unflatten([leaf[i] for leaf in leaves]) for i in range(rows)), rows)

    def __iter__(self) -> Iterator[Any]:
        return self._batches()

    def __len__(self) -> int:
        if self._length == math.inf:
            raise TypeError("the data set is infinite")
        return int(self._length)

    def cardinality(self) -> int:
        """How many there are; -1 where there is no end."""
        return -1 if self._length == math.inf else len(self)

    def shuffle(self, *args: Any, **kwargs: Any) -> "Dataset":
        """The same: nothing that guides print depends on the order."""
        return self

    cache = prefetch = with_options = shuffle

    def repeat(self, count: int | None = None) -> "Dataset":
        """So many times; without a number, or with -1, without end."""
        if count is None or count < 0:
            return type(self)(lambda: (one for _ in itertools.count() for one in self), math.inf)
        return type(self)(lambda: (one for _ in range(count) for one in self), count * self._length)

    def batch(self, size: int, drop_remainder: bool = False) -> "Dataset":
        """Some rows each."""

        def batches() -> Iterator[Any]:
            rows = []
            for row in self:
                rows.append(row)
                if len(rows) == size:
                    yield jax.tree.map(lambda *of: np.stack(of).view(Tensor), *rows)
                    rows = []
            if rows and not drop_remainder:
                yield jax.tree.map(lambda *of: np.stack(of).view(Tensor), *rows)

        length = self._length / size
        return type(self)(
            batches, length if length == math.inf else (math.floor if drop_remainder else math.ceil)(length)
        )

    def map(self, function: Callable[..., Any], **kwargs: Any) -> "Dataset":
        """What a function gives for each."""

        def batches() -> Iterator[Any]:
            return (function(*one) if isinstance(one, tuple) else function(one) for one in self)

        return type(self)(batches, self._length)

    def take(self, count: int) -> "Dataset":
        """The first ones."""
        return type(self)(lambda: (one for one, _ in zip(self, range(count), strict=False)), min(count, self._length))

    def skip(self, count: int) -> "Dataset":
        """All but the first ones."""
        return type(self)(lambda: (one for i, one in enumerate(self) if i >= count), max(self._length - count, 0))

    def as_numpy_iterator(self) -> Iterator[Any]:
        """As NumPy arrays."""
        return iter(self)


class TensorDataset:
    """What guides use of torch's: rows of arrays."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, i: int) -> Any:
        return tuple(array[i] for array in self.arrays)


def data_loader(dataset: Any, batch_size: int = 1, shuffle: bool = False, **kwargs: Any) -> Any:
    """Batches of rows, which are asked for by number."""
    return Dataset(lambda: (dataset[i] for i in range(len(dataset))), len(dataset)).batch(batch_size)


def digits(shape: tuple[int, ...], classes: int = 10) -> Callable[..., Any]:
    """A function in the place of `load_data`."""

    def load_data(*args: Any, **kwargs: Any) -> Any:
        draw = np.random.default_rng(0)

        def examples() -> Any:
            y = draw.integers(0, classes, (ROWS,) if len(shape) == 2 else (ROWS, 1)).astype("uint8")
            return draw.integers(0, 256, (ROWS, *shape)).astype("uint8"), y

        return examples(), examples()

    return load_data


def load(name: str, *args: Any, split: Any = None, **kwargs: Any) -> Any:
    """Pictures of two kinds, in the place of `tfds.load`."""
    draw = np.random.default_rng(0)

    def examples(rows: int) -> Dataset:
        pictures = [draw.integers(0, 256, (180 + 10 * (i % 3), 200, 3)).astype("uint8") for i in range(rows)]
        labels = draw.integers(0, 2, rows)
        return Dataset(lambda: iter(zip(pictures, labels, strict=True)), rows)

    return [examples(PICTURES) for _ in split] if isinstance(split, list | tuple) else examples(PICTURES)


def module(name: str, **values: Any) -> types.ModuleType:
    """A module that is imported under a name."""
    made = types.ModuleType(name)
    vars(made).update(values)
    sys.modules[name] = made
    return made


def install() -> None:
    """Put the arrays in the place of downloads; the working directory is one that may be written to."""
    if shutil.which("dot") is None:
        drawing(pathlib.Path.cwd() / "programs")
    shapes = {"mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3)}
    for name, shape in shapes.items():
        loader = module(f"keras_dist.datasets.{name}", load_data=digits(shape))
        setattr(kd.datasets, name, loader)
    data = types.SimpleNamespace(Dataset=Dataset, AUTOTUNE=-1, Options=types.SimpleNamespace)
    tensorflow = module("tensorflow", data=data)
    tensorflow.__getattr__ = _needs("TensorFlow")  # type: ignore[method-assign]
    module("tensorflow_datasets", load=load, disable_progress_bar=lambda: None)
    loaders = module("torch.utils.data", Dataset=object, TensorDataset=TensorDataset, DataLoader=data_loader)
    utils = module("torch.utils", data=loaders)
    torch = module("torch", utils=utils, Tensor=np.ndarray, from_numpy=lambda array: array, as_tensor=np.asarray)
    torch.__getattr__ = _needs("torch")  # type: ignore[method-assign]


def drawing(folder: pathlib.Path) -> None:
    """Put a program in the place of Graphviz's `dot`, which is no package: it reads a graph and draws nothing."""
    folder.mkdir()
    dot = folder / "dot"
    dot.write_text("#!/bin/sh\ncat > /dev/null\necho picture\n")
    dot.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def _needs(library: str) -> Callable[[str], Any]:
    def missing(name: str) -> Any:
        raise AttributeError(f"it needs {library}: {name}")

    return missing
