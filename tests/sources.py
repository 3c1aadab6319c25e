"""Data sets of every kind over given rows: real ones of grain, and what acts like those of torch and TensorFlow."""

from collections.abc import Callable, Iterator
from typing import Any

import grain
import jax
import numpy as np

from keras_dist.data import PyDataset


def cut(arrays: Any, size: int) -> list[Any]:
    """Arrays in batches."""
    rows = len(jax.tree.leaves(arrays)[0])
    return [
        jax.tree.map(lambda leaf, part=slice(start, start + size): leaf[part], arrays) for start in range(0, rows, size)
    ]


class TorchTensor:
    """One of `torch` that needs gradients: numpy's own functions cannot read it."""

    def __init__(self, array: Any, is_detached: bool = False, is_on_host: bool = False) -> None:
        self._array, self._is_detached, self._is_on_host = np.asarray(array), is_detached, is_on_host
        self.shape, self.dtype = self._array.shape, f"torch.{self._array.dtype}"

    def detach(self) -> "TorchTensor":
        return TorchTensor(self._array, True, self._is_on_host)

    def cpu(self) -> "TorchTensor":
        return TorchTensor(self._array, self._is_detached, True)

    def numpy(self) -> np.ndarray:
        if not (self._is_detached and self._is_on_host):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self._array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    def __len__(self) -> int:
        return len(self._array)


class TFTensor:
    """One of TensorFlow, which numpy can read."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)
        self.shape, self.dtype = self._array.shape, f"<dtype: {self._array.dtype.name!r}>"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self._array, dtype)


class TorchLoader:
    """A `torch.utils.data.DataLoader`: lists of tensors."""

    def __init__(self, arrays: Any, size: int) -> None:
        self.batches, self.passes, self.drawn = cut(arrays, size), 0, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        for batch in self.batches:
            self.drawn += 1
            yield jax.tree.map(TorchTensor, list(batch) if isinstance(batch, tuple) else batch)


class TFDataset:
    """A `tf.data.Dataset`, which may repeat for ever."""

    def __init__(self, arrays: Any, size: int, cardinality: int | None = None) -> None:
        self._batches = cut(arrays, size)
        self._cardinality = len(self._batches) if cardinality is None else cardinality

    def cardinality(self) -> Any:
        return np.int64(self._cardinality)

    def __len__(self) -> int:
        raise TypeError("The dataset is infinite." if self._cardinality == -1 else "The dataset length is unknown.")

    def __iter__(self) -> Iterator[Any]:
        yield from jax.tree.map(TFTensor, self._batches)
        while self._cardinality == -1:
            yield from jax.tree.map(TFTensor, self._batches)


class Refilled:
    """Gives the same memory again and again, and spoils it before it gives it again."""

    def __init__(self, arrays: Any, size: int) -> None:
        self._batches = cut(arrays, size)

    def __iter__(self) -> Iterator[Any]:
        buffer = jax.tree.map(np.empty_like, self._batches[0])
        for batch in self._batches:
            given = jax.tree.map(lambda place, leaf: place[: len(leaf)], buffer, batch)
            jax.tree.map(np.copyto, given, batch)
            yield given
            jax.tree.map(lambda place: place.fill(99), buffer)


class Batches(PyDataset):
    """A `PyDataset` that remembers what it was asked for."""

    def __init__(self, arrays: Any, size: int, **options: Any) -> None:
        super().__init__(**options)
        self.batches, self.log = cut(arrays, size), []

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        self.log.append(index)
        return self.batches[index]

    def on_epoch_begin(self) -> None:
        self.log.append("begin")

    def on_epoch_end(self) -> None:
        self.log.append("end")


class Endless(PyDataset):
    """A `PyDataset` without a length."""

    def __init__(self, arrays: Any, size: int) -> None:
        super().__init__()
        self.batches = cut(arrays, size)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index % len(self.batches)]


class Examples:
    """Examples by number, as a `torch.utils.data.Dataset` gives them: numbers of numpy, and arrays."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.arrays)[0])

    def __getitem__(self, index: int) -> Any:
        if not isinstance(index, int):
            raise TypeError("an index must be an int")
        return jax.tree.map(lambda leaf: leaf[index], self.arrays)


class RefilledExamples(Examples):
    """They all come in the same memory."""

    def __init__(self, arrays: Any) -> None:
        super().__init__(arrays)
        self._buffer = jax.tree.map(lambda leaf: np.empty_like(leaf[0]), arrays)

    def __getitem__(self, index: int) -> Any:
        jax.tree.map(lambda place, leaf: np.copyto(place, leaf[index]), self._buffer, self.arrays)
        return self._buffer


class Fetched(Examples):
    """Several at once, as Hugging Face's and tfds's."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [super(Fetched, self).__getitem__(index) for index in indices]


class Listed(grain.samplers.SequentialSampler):
    """For grain: all rows in order."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, shard_options=grain.sharding.NoSharding())


def grain_map(arrays: Any, size: int) -> Any:
    return grain.MapDataset.source(Examples(arrays)).batch(size)


def grain_loader(arrays: Any, size: int) -> Any:
    examples = Examples(arrays)
    return grain.DataLoader(
        data_source=examples,  # type: ignore[arg-type]
        sampler=Listed(len(examples)),
        operations=[grain.transforms.Batch(size)],
        worker_count=0,
    )


BATCHED: dict[str, Callable[[Any, int], Any]] = {
    "generator": lambda arrays, size: (batch for batch in cut(arrays, size)),
    "iterator": lambda arrays, size: iter(cut(arrays, size)),
    "torch": TorchLoader,
    "tf.data": TFDataset,
    "tf.data of unknown length": lambda arrays, size: TFDataset(arrays, size, cardinality=-2),
    "refilled": Refilled,
    "PyDataset": Batches,
    "PyDataset with workers": lambda arrays, size: Batches(arrays, size, workers=2, max_queue_size=3),
    "grain map": grain_map,
    "grain iter": lambda arrays, size: grain_map(arrays, size).to_iter_dataset(),
    "grain loader": grain_loader,
}
"""Data sets that make batches of so many rows; the last one is shorter."""

ONCE = ("generator", "iterator")

BY_NUMBER: dict[str, Callable[[Any], Any]] = {
    "examples": Examples,
    "refilled examples": RefilledExamples,
    "fetched": Fetched,
}
