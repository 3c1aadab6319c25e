"""The outputs of a model by name, matched with targets, weights, losses and metrics.

Outputs of `predict` stay where XLA computes them and are gathered by the host: asked for whole outputs, XLA gathers the
last kernel instead. Outputs without rows are stacked over batches, also where there is one batch, so that their shape
does not depend on the number of batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_dist._support.types import PyTree
from keras_dist.distribution.variables import leaf_paths
from keras_dist.errors import ModelError
from keras_dist.losses import Loss


class Outputs:
    """The outputs of a model by name: keys of dicts (`"a/b"`), the given names, `"output_1"` ..., or `""` for one."""

    def __init__(self, y_pred: PyTree, names: Sequence[str] | None = None) -> None:
        leaves, self.structure = jax.tree.flatten(y_pred)
        self._is_sequence = isinstance(y_pred, list | tuple)
        self.arrays = dict(zip(_names(y_pred, leaves, names), leaves, strict=True))

    @property
    def names(self) -> list[str]:
        """The names in flattening order."""
        return list(self.arrays)

    def fits(self, value: PyTree) -> bool:
        """Whether `value` has an array for each output, in the same structure."""
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
            expected, fix = "one array", f"pass {argument} as one array, or a loss (y_true, y_pred) that splits it"
            if len(self.arrays) > 1:
                expected = f"one array for each of {_listed(needed or self.names)}"
                fix = f"pass a dict by output: {argument}={{{next(iter(needed or self.names), '')!r}: ..., ...}}"
            summary = f"`{argument}` does not match the outputs of the model"
            raise ModelError(summary, given=_describe(value), expected=expected, fix=fix)
        return found

    def match_weights(self, argument: str, value: PyTree) -> dict[str, Any]:
        """Match weights as `match` does, but an array belongs to every output, and none is needed."""
        if jax.tree_util.treedef_is_leaf(jax.tree.structure(value)):
            return dict.fromkeys(self.arrays, value)
        return self.match(argument, value, ())

    def assign(self, argument: str, given: PyTree, one_for_all: bool) -> dict[str, Any]:
        """Return an argument by output: it is a dict, a list in flattening order, or one value for all outputs."""
        names = self.names
        if isinstance(given, Mapping):
            given = {_without_list(path, names, given): item for path, item in given.items()}
            if names == [""] and len(given) == 1:
                return {"": next(iter(given.values()))}
            # as in Keras: losses for a list of outputs are matched by name, so that none may be missing
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
    """Return the output of an entry that is a list of one, whose path is `name/0`."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A loss, its weight in the sum, and the names of its outputs, structured as the model returns them."""

    name: str
    loss: Loss
    weight: float | None
    outputs: PyTree


def is_structured(losses: PyTree) -> bool:
    """Whether the losses contain lists, as for nested outputs."""
    if isinstance(losses, list | tuple):
        lists = [item for item in losses if isinstance(item, list | tuple)]
        return any(len(_leaves(item)) != 1 for item in lists) or any(isinstance(item, Mapping) for item in losses)
    if isinstance(losses, Mapping):
        return any(
            (isinstance(item, list | tuple) and len(item) != 1) or is_structured(item) for item in losses.values()
        )
    return False


def parts_of(losses: PyTree, weights: PyTree, outputs: PyTree, labels: Mapping[str, str]) -> list[Part] | None:
    """Match losses and weights with outputs, given by name as the model returns them; None if the structures differ.

    As in Keras, a list with as many losses as a part of the outputs has arrays gives one to each; otherwise, unless the
    part is such a list, all losses are of this part. `labels` are the names of outputs in lists.
    """
    if isinstance(losses, Mapping) and not isinstance(outputs, Mapping):
        by_label = {labels[name]: name for name in jax.tree.leaves(outputs)}
        if set(by_label) != set(losses):
            return None
        outputs = by_label
    if isinstance(losses, Loss):
        losses = jax.tree.map(lambda name: losses, outputs)
    leaves, structure = jax.tree.flatten(losses, is_leaf=lambda node: node is None)
    factors = [weights] * len(leaves) if weights is None or isinstance(weights, float) else _leaves(weights)
    if len(factors) != len(leaves):
        return None
    pairs = list(zip(leaves, factors, strict=True))
    numbers = jax.tree.unflatten(structure, [None if loss is None else index for index, loss in enumerate(leaves)])
    try:
        return [
            Part(_name(place, path, pairs[number][0], labels), *pairs[number], place)
            for number, place, path in _placed(numbers, outputs, ())
        ]
    except (LookupError, TypeError):  # of `_placed`: a name is not among the outputs
        return None


def _placed(numbers: PyTree, outputs: PyTree, path: tuple[Any, ...]) -> Iterator[tuple[int, PyTree, tuple[Any, ...]]]:
    """Yield each loss number with its part of the outputs and the path to it."""
    if isinstance(numbers, list | tuple):
        count = len(jax.tree.leaves(outputs))
        if len(numbers) == count and not any(isinstance(item, list | tuple | Mapping) for item in numbers):
            numbers = jax.tree.unflatten(jax.tree.structure(outputs), numbers)
        elif not isinstance(outputs, type(numbers)):
            for item in numbers:
                yield from _placed(item, outputs, path)
            return
    if numbers is None:
        return
    if isinstance(numbers, int):
        yield numbers, outputs, path
        return
    if isinstance(outputs, str) or isinstance(numbers, Mapping) != isinstance(outputs, Mapping):
        raise TypeError(outputs)
    for key, item in numbers.items() if isinstance(numbers, Mapping) else enumerate(numbers):
        if item is not None:
            yield from _placed(item, outputs[key], (*path, key))


def _name(place: PyTree, path: Sequence[Any], loss: Loss, labels: Mapping[str, str]) -> str:
    if isinstance(place, str):
        if not path or isinstance(path[-1], int):
            path = [*path[:-1], labels[place].rpartition("/")[2] or loss.name]
    elif not path:
        path = ["_".join(place if isinstance(place, Mapping) else (labels[name] for name in _leaves(place)))]
    return "/".join(map(str, path))


def _leaves(tree: PyTree) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda node: node is None)
