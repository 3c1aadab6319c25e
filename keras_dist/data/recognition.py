"""What is given as data -> the source that reads it, recognised by what it can do: no library is imported for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from keras_dist.data.arrays import ArraySource
from keras_dist.data.lookup import LookupSource
from keras_dist.data.openers import Again, Numbered, Once
from keras_dist.data.rows import RowSource
from keras_dist.data.streams import StreamSource
from keras_dist.errors import DataError, shorten

Source = RowSource | StreamSource

TAKEN = (
    "arrays, tables, sparse matrices, lists of numbers, and dicts, lists and tuples of them; a PyDataset, a "
    "tf.data.Dataset, a torch or grain DataLoader, a generator or another iterable of batches; or examples by number, "
    "with __len__ and __getitem__"
)


def source_of(x: Any, y: Any = None, sample_weight: Any = None, name: str = "") -> Source:
    """The source that reads what was given to `fit`, `evaluate` or `predict`.

    Args:
        x: inputs, or a data set, which holds targets and weights itself.
        y: targets of inputs, or None.
        sample_weight: weights of inputs, or None.
        name: how errors call what it holds, such as `"validation "`.

    Raises:
        DataError: it cannot be used.
    """
    kind = _data_set(x)
    if kind is None:
        if not isinstance(x, dict | list | tuple) and x is not None and not _is_array(x):
            raise DataError(
                f"{name}x is nothing that holds examples",
                given=f"{shorten(x)} of type {type(x).__name__}",
                expected=TAKEN,
                fix="make an array of it, or a class with __iter__ that gives batches",
            )
        return ArraySource(x, y, sample_weight, name)
    for argument, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise DataError(
                f"`{argument}` cannot be given beside a data set",
                given=f"{name}x={shorten(x)}, and {argument}",
                expected=f"a data set that gives {argument} itself",
                fix="let it give (x, y) or (x, y, sample_weight), or pass x as an array",
            )
    return LookupSource(x, name) if kind is LookupSource else StreamSource(kind(x), name)


def is_data_set(x: Any) -> bool:
    """Whether `x` holds targets and weights itself, and is no array or pytree of arrays."""
    return _data_set(x) is not None


def _data_set(x: Any) -> Any:
    """The class that reads `x`; None for arrays, and for what `ArraySource` refuses."""
    if isinstance(x, dict | list | tuple | str | bytes | type) or x is None or _is_array(x):
        return None
    if hasattr(x, "num_batches") and not callable(x.num_batches) and hasattr(x, "__getitem__"):
        return Numbered
    if isinstance(x, Iterator):
        return Once
    is_numbered = hasattr(x, "__getitem__") and hasattr(x, "__len__")
    if is_numbered and (hasattr(x, "__getitems__") or not isinstance(x, Iterable)):
        return LookupSource
    return Again if isinstance(x, Iterable) else None


def _is_array(x: Any) -> bool:
    """Whether it is an array, a tensor, a table or a matrix."""
    return hasattr(x, "shape") and any(hasattr(x, name) for name in ("dtype", "to_numpy", "tocsr"))
