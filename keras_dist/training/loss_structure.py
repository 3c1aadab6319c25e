"""Losses in a structure of their own: several on one output, and some on several outputs together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from keras_dist._support.types import PyTree
from keras_dist.losses import Loss


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A loss, its weight in the sum, and the names of its outputs, in the structure in which the model returns them."""

    name: str
    loss: Loss
    weight: float | None
    outputs: PyTree


def is_structured(losses: PyTree) -> bool:
    """Whether there are lists in what is given for the outputs: those are losses of a part, or one for each of it."""
    if isinstance(losses, list | tuple):
        return any(_size(item) != 1 for item in losses if isinstance(item, list | tuple)) or any(
            isinstance(item, Mapping) for item in losses
        )
    if isinstance(losses, Mapping):
        return any(
            (isinstance(item, list | tuple) and len(item) != 1) or is_structured(item) for item in losses.values()
        )
    return False


def parts_of(losses: PyTree, weights: PyTree, outputs: PyTree, labels: Mapping[str, str]) -> list[Part] | None:
    """Which loss is of which outputs; None where the structures do not fit.

    As in Keras: a list of losses with as many losses as a part of the outputs has arrays gives one to each; in another
    list than the outputs are, or where they are none, all are of this part.

    Args:
        losses: of outputs, or of parts of them; None in there for those without a loss. A single one is of each output.
        weights: one for each, in the same order; a number for all, or None.
        outputs: the names of the outputs, in the structure in which the model returns these.
        labels: what outputs in lists are called, by their names.
    """
    if isinstance(losses, Mapping) and not isinstance(outputs, Mapping):
        by_label = {labels[name]: name for name in jax.tree.leaves(outputs)}
        if set(by_label) != set(losses):
            return None
        outputs = by_label
    if isinstance(losses, Loss):
        losses = jax.tree.map(lambda name: losses, outputs)
    leaves, structure = jax.tree.flatten(losses, is_leaf=_is_none)
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
    except (LookupError, TypeError):  # of `_placed`: something is not among the outputs
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
    return jax.tree.leaves(tree, is_leaf=_is_none)


def _is_none(node: Any) -> bool:
    return node is None


def _size(item: Any) -> int:
    return len(_leaves(item))
