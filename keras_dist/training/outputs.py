"""The outputs of a model by name, and what belongs to each of them: targets, weights, losses, metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.distribution.variables import leaf_paths
from keras_dist.errors import ModelError


class Outputs:
    """The arrays that a model returned, by name.

    Names are the keys of a dict (`"a/b"` in nested ones), the `names` given for a list or tuple, else `"output_1"` and
    so on; a lone array has the name given or `""`.
    """

    def __init__(self, y_pred: PyTree, names: Sequence[str] | None = None) -> None:
        leaves, self.structure = jax.tree.flatten(y_pred)
        self._is_sequence = isinstance(y_pred, list | tuple)
        self.arrays = dict(zip(_names(y_pred, leaves, names), leaves, strict=True))

    @property
    def names(self) -> list[str]:
        """In the order of the tree."""
        return list(self.arrays)

    def fits(self, value: PyTree) -> bool:
        """Whether `value` has an array for each output, in the same place."""
        if self._is_sequence and isinstance(value, list | tuple):
            return len(jax.tree.leaves(value)) == len(self.arrays)
        return jax.tree.structure(value) == self.structure

    def match(self, argument: str, value: PyTree, needed: Collection[str]) -> dict[str, Any]:
        """Return the arrays in `value` by output; a list is in the order of `names` or of `needed`."""
        leaves = jax.tree.leaves(value)
        if not leaves:
            return {}
        if self.fits(value) or (len(self.arrays) == len(leaves) == 1):
            return dict(zip(self.arrays, leaves, strict=True))
        found: dict[str, Any] = {}
        if isinstance(value, Mapping):
            found = dict(zip(leaf_paths(value), leaves, strict=True))
        else:
            items = value if isinstance(value, list | tuple) else [value]
            for names in (self.names, list(needed)):
                if len(names) == len(items):
                    found = {name: item for name, item in zip(names, items, strict=True) if item is not None}
                    break
        if not found or not set(found) <= set(self.arrays) or not set(needed) <= set(found):
            expected, fix = "one array", f"pass {argument} as one array, or a loss (y_true, y_pred) that takes it apart"
            if len(self.arrays) > 1:
                expected = f"one array for each of {_listed(needed or self.names)}"
                fix = f"pass a dict by output: {argument}={{{next(iter(needed or self.names), '')!r}: ..., ...}}"
            summary = f"`{argument}` does not match the outputs of the model"
            raise ModelError(summary, given=_describe(value), expected=expected, fix=fix)
        return found

    def match_weights(self, argument: str, value: PyTree) -> dict[str, Any]:
        """As `match`, but a lone array belongs to every output, and none is needed."""
        if jax.tree_util.treedef_is_leaf(jax.tree.structure(value)):
            return dict.fromkeys(self.arrays, value)
        return self.match(argument, value, ())

    def assign(self, argument: str, given: PyTree, one_for_all: bool) -> dict[str, Any]:
        """Return what was given by output: a dict, a list in their order, or one for all of them."""
        names = self.names
        if isinstance(given, Mapping):
            given = {_without_list(path, names, given): item for path, item in given.items()}
            if names == [""] and len(given) == 1:
                return {"": next(iter(given.values()))}
            # as in Keras: those of a list are told apart by names alone, so that none may be missing
            missing = [name for name in names if name not in given] if self._is_sequence and argument == "loss" else []
            if missing and set(given) <= set(names):
                summary = f"`loss` has no entry for {_listed(missing)} of the model"
                fix = f"compile(..., loss={{..., {missing[0]!r}: None}}), or a loss for it"
                raise ModelError(summary, given=_described_spec(given), fix=fix)
            if set(given) <= set(names):
                return {name: given[name] for name in names if name in given}
        elif isinstance(given, list | tuple):
            if len(given) == len(names):
                return dict(zip(names, given, strict=True))
        elif one_for_all:
            return dict.fromkeys(names, given)
        summary, fix = f"`{argument}` does not match the outputs of the model", f"compile(..., {argument}=...)"
        expected = f"a single one of `{argument}`, for the model has one output" + (f", {names[0]!r}" * bool(names[0]))
        if len(names) > 1:
            expected = f"a dict by output, or a list of {len(names)}, for {_listed(names)}"
            fix = f"compile(..., {argument}={{{names[0]!r}: ...}})"
        raise ModelError(summary, given=_described_spec(given), expected=expected, fix=fix)


def _without_list(path: str, names: Sequence[str], given: Mapping[str, Any]) -> str:
    """The name of the output that a list of one thing is given for, whose path is `name/0`."""
    name, _, index = path.rpartition("/")
    return name if index == "0" and name in names and f"{name}/1" not in given and path not in names else path


def _names(y_pred: PyTree, leaves: list[Any], given: Sequence[str] | None) -> list[str]:
    paths = leaf_paths(y_pred)
    if isinstance(y_pred, Mapping) or (paths == [""] and not given):
        return paths
    if not given:
        is_flat = isinstance(y_pred, list | tuple) and len(y_pred) == len(leaves)
        return [f"output_{number}" for number in range(1, len(leaves) + 1)] if is_flat else paths
    if len(given) != len(leaves):
        summary = "the model has other outputs than names for them"
        fix = "give each output one name"
        raise ModelError(summary, given=f"{len(leaves)} outputs, names {_listed(given)}", fix=fix)
    return list(given)


def _listed(names: Collection[str]) -> str:
    return f"the outputs {', '.join(map(repr, names))}"


def _describe(value: PyTree) -> str:
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(repr, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"one array of shape {np.shape(value)}"


def _described_spec(given: PyTree) -> str:
    return _describe(given) if isinstance(given, Mapping | list | tuple) else f"{given!r} alone"
