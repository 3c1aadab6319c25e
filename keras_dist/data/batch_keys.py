"""`BatchKeys`: which entries of batches that are dicts are inputs, targets and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax

from keras_dist._support.arguments import argument_error
from keras_dist._support.types import PyTree
from keras_dist.errors import DataError, unknown_name_error

_PARTS = ("x", "y", "sample_weight")


@dataclasses.dataclass(frozen=True)
class BatchKeys:
    """Keys of inputs, targets and weights in batches that are dicts, as `compile(batch_keys=...)` has them.

    Attributes:
        x: a key, or a tuple, list or dict of keys.
        y: the same for targets; None for no targets.
        sample_weight: the same for weights; None for no weights.
    """

    x: PyTree
    y: PyTree = None
    sample_weight: PyTree = None

    def of_inputs(self) -> Self:
        """Return the keys of inputs alone."""
        return dataclasses.replace(self, y=None, sample_weight=None)

    def parts(self, batch: PyTree, name: str, convert: Callable[[Any, str], Any] | None = None) -> PyTree:
        """Return `(x, y, sample_weight)` of a batch or example that is a dict; anything else as it is.

        Args:
            batch: an element of a data set.
            name: of the batch in error messages.
            convert: called with each entry and its name.

        Raises:
            DataError: a key is missing.
        """
        if isinstance(batch, tuple) and all(part is None for part in batch[1:]):  # (x, None, None) of a DataLoader
            batch = batch[0] if batch and isinstance(batch[0], Mapping) else batch
        if not isinstance(batch, Mapping):
            return batch

        def entry(key: str) -> Any:
            if key not in batch:
                fix = f"let the dataset give {key!r}, or name another key in compile(..., batch_keys=...)"
                raise unknown_name_error(f"{name} has no key", key, map(str, batch), fix=fix, error=DataError)
            return batch[key] if convert is None else convert(batch[key], repr(key))

        return jax.tree.map(entry, self._keys())

    def _keys(self) -> tuple[PyTree, PyTree, PyTree]:
        return self.x, self.y, self.sample_weight


def check_batch_keys(given: Any) -> BatchKeys | None:
    """Return `batch_keys` of `compile`, checked.

    Raises:
        ModelError: it is not a dict of `x`, `y` and `sample_weight` with strings, or structures of strings.
    """
    if given is None:
        return None
    is_dict = isinstance(given, Mapping) and "x" in given and set(given) <= {*_PARTS}
    keys = [key for part in given.values() for key in (jax.tree.leaves(part) or [part])] if is_dict else [None]
    if not all(isinstance(key, str) for key in keys):
        fix = 'for example batch_keys=dict(x="input_ids", y="labels", sample_weight="attention_mask")'
        expected = "a dict of 'x', 'y' and 'sample_weight', each a key or a structure of keys; 'x' is needed"
        raise argument_error("batch_keys", given, expected, fix=fix)
    return BatchKeys(**given)
