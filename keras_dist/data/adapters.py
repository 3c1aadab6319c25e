"""`source_of`: finds the source that reads the data of a user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batch import BatchKeys, unpack
from keras_dist.data.conversion import Arrays, is_array
from keras_dist.data.lookup import LookupSource, list_as_array
from keras_dist.data.source import RowSource, registered
from keras_dist.data.streams import StreamSource
from keras_dist.errors import DataError, cause, shorten, with_type

Source = RowSource | StreamSource

TAKEN = (
    "arrays, tables, sparse matrices, lists of numbers, and dicts, lists and tuples of them; a PyDataset, a "
    "tf.data.Dataset, a torch or grain DataLoader, a generator or another iterable of batches; or examples by number, "
    "with __len__ and __getitem__"
)


def source_of(
    x: PyTree,
    y: PyTree = None,
    sample_weight: PyTree = None,
    name: str = "",
    prepare: Callable[[PyTree], PyTree] | None = None,
    keys: BatchKeys | None = None,
) -> Source:
    """Return the source that reads the data given to `fit`, `evaluate` or `predict`.

    `x` may be a dataset that includes targets and weights. `name` is the prefix of the data's name in errors, such as
    `"validation "`. `prepare` converts inputs to numbers: all arrays or lists at once, other data by batch. `keys` are
    the keys in batches, examples and arrays that are dicts.
    """
    kind = _kind_of(x)
    if kind is None and keys is not None and y is None and sample_weight is None:
        x, y, sample_weight = unpack_or_inputs(x, keys, f"{name}x")
    if kind is None:
        if isinstance(x, dict | list | tuple | None) or is_array(x):
            return ArraySource(x if prepare is None else prepare(x), y, sample_weight, name)
        fix = "convert it to an array, or define a class whose __iter__ yields batches"
        raise DataError(f"{name}x must be {TAKEN}", given=with_type(x), fix=fix)
    for argument, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            given = f"{name}x={shorten(x)}, and {argument}"
            fix = "let the dataset yield (x, y) or (x, y, sample_weight), or pass x as an array"
            raise DataError(f"`{argument}` cannot be used with a dataset as x", given=given, fix=fix)
    if prepare is None and keys is None:
        return kind(x, name=name)
    if kind is LookupSource:
        if keys is not None:
            x = mapped(x, lambda example: keys.parts(example, "the example", list_as_array))
        return LookupSource(x if prepare is None else mapped(x, lambda one: _prepared(one, prepare)), name=name)
    source = kind(x, name=name)
    if isinstance(source, ArraySource):
        inputs, *others = source.arrays
        if keys is not None and others == [None, None]:
            inputs, *others = unpack_or_inputs(inputs, keys, f"{name}x")
        return ArraySource(inputs if prepare is None else prepare(inputs), *others, name=name)
    source.prepare, source.keys = prepare, keys
    return source


def unpack_or_inputs(x: PyTree, keys: BatchKeys, name: str) -> Arrays:
    """Return `(x, y, sample_weight)` of a dict with these keys; treat anything else as inputs."""
    return keys.parts(x, name) if isinstance(x, Mapping) else (x, None, None)


def mapped(examples: Any, change: Callable[[PyTree], PyTree]) -> _MappedExamples:
    """Return an indexable dataset with a function applied to each example."""
    return (_ListsOfExamples if hasattr(examples, "__getitems__") else _MappedExamples)(examples, change)


class _MappedExamples:
    """Examples by number, each changed by a function."""

    def __init__(self, examples: Any, change: Callable[[PyTree], PyTree]) -> None:
        self._examples, self._change = examples, change

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> PyTree:
        return self._change(self._examples[number])

    def __repr__(self) -> str:
        return repr(self._examples)


class _ListsOfExamples(_MappedExamples):
    """Changed examples of which several are read at once."""

    def __getitems__(self, numbers: list[int]) -> list[PyTree]:
        return [self._change(example) for example in self._examples.__getitems__(numbers)]


def _prepared(example: PyTree, prepare: Callable[[PyTree], PyTree]) -> PyTree:
    """Convert the inputs of an example to numbers."""
    x, *others = unpack(example, "the example")
    lifted = jax.tree.map(lambda leaf: np.asarray(leaf)[None], x)
    return (jax.tree.map(lambda leaf: leaf[0], prepare(lifted)), *others)


def is_data_set(x: PyTree) -> bool:
    """Return whether `x` is a dataset that includes targets and weights, not an array or a pytree of arrays."""
    return _kind_of(x) is not None


def _kind_of(x: PyTree) -> Callable[..., Any] | None:
    for kind in registered:
        try:
            if kind.recognises(x):
                return kind
        except Exception as error:
            summary = f"{kind.__name__}.recognises(x) must return True or False for any x"
            fix = f"let {kind.__name__}.recognises check the type of x first"
            raise DataError(summary, given=f"x={with_type(x)}: {cause(error)}", fix=fix) from error
    return None
