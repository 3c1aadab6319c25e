"""The arrays in a file that make each weight, where the file has other names and shapes.

Functions of `transform` get arrays that are mapped from the file: what they return as a view is read by slices.
Transposing and splitting need no notation of our own; for joining, shapes determine the dim.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from keras_dist._support.safe_patterns import Patterns, pattern
from keras_dist.data.conversion import noting
from keras_dist.errors import ModelError, shorten
from keras_dist.saving.tensor_files import TensorReader
from keras_dist.training.graph import compile_rule

NameMap = Mapping[str, str | Sequence[str]]
"""From regular expressions for whole paths of weights to names in a file, or lists of names to be joined."""

Transforms = Mapping[str, Callable[[np.ndarray], np.ndarray]]
"""From regular expressions for whole paths of weights to functions of each array in the file that it is made of."""


class Parts:
    """Arrays to join to `shape` along a dim, or to stack as rows. Only what is asked for is copied."""

    def __init__(self, arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> None:
        self._arrays = arrays
        self._dim: int | None = None
        self.shape = arrays[0].shape
        self.is_complex = any(map(np.iscomplexobj, arrays))
        if len(arrays) > 1 or self.shape != shape:
            if len(shape) == len(self.shape) + 1:
                self._arrays = [array[None] for array in arrays]
            dims = [dim for dim in range(len(shape)) if _joined_shape(self._arrays, dim) == shape]
            self._dim = dims[0] if dims else None
            self.shape = shape if dims else self.shape

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        if self._dim is None:
            return self._arrays[0][index]
        start, stop, _ = index[self._dim].indices(self.shape[self._dim])
        found, begin = [], 0
        for array in self._arrays:
            size = array.shape[self._dim]
            inside = slice(max(start - begin, 0), max(min(stop - begin, size), 0))
            if inside.start < inside.stop:
                found.append(array[(*index[: self._dim], inside, *index[self._dim + 1 :])])
            begin += size
        return np.concatenate(found, axis=self._dim)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The arrays of a file that make a weight, and the transform of each; `is_joined` of a list of names."""

    names: tuple[str, ...]
    is_joined: bool = False
    transform: Callable[[np.ndarray], np.ndarray] | None = None

    def of(self, reader: TensorReader, path: str, shape: tuple[int, ...]) -> Parts:
        """Return a lazy array that reads requested slices only; all of the weight if a transform needs elements."""
        arrays = [self._transformed(reader.view(name), name, path) for name in self.names]
        return Parts(arrays, shape if self.is_joined else arrays[0].shape)

    def _transformed(self, array: np.ndarray, name: str, path: str) -> np.ndarray:
        if self.transform is None:
            return array
        with noting(f"load_weights: the transform of {name!r} for the weight {path!r}"):
            found = np.asarray(self.transform(array))
        if found.dtype != np.bool_ and not jnp.issubdtype(found.dtype, jnp.number):
            summary = f"load_weights: the transform of {name!r} for the weight {path!r} gives no numbers"
            fix = "for example transform={'.*/kernel': lambda kernel: kernel.T}"
            raise ModelError(summary, given=f"an array of {found.dtype}", fix=fix)
        return found


def origins_of(
    paths: Iterable[str], name_map: NameMap | None = None, transform: Transforms | None = None
) -> tuple[dict[str, Origin], tuple[str, ...]]:
    """Return the origins of the weights, and the rules that match none, as `name_map['...']`."""
    named = _checked("name_map", name_map, _are_names, "a name, or a list of names")
    transforms = _checked("transform", transform, callable, "a function of an array")
    unused = {("name_map", rule) for rule in named} | {("transform", rule) for rule in transforms}
    found: dict[str, Origin] = {}
    naming_rules, changing_rules = _Rules("name_map", named), _Rules("transform", transforms)
    for path in paths:
        naming, changing = naming_rules.rule_for(path), changing_rules.rule_for(path)
        unused -= {("name_map", naming), ("transform", changing)}
        given = path if naming is None else named[naming]
        names = (given,) if isinstance(given, str) else tuple(given)
        if naming is not None:
            names = tuple(_expanded(naming, path, name) for name in names)
        found[path] = Origin(names, not isinstance(given, str), None if changing is None else transforms[changing])
    return found, tuple(f"{argument}[{rule!r}]" for argument, rule in sorted(unused))


def _checked(argument: str, rules: Any, is_fine: Callable[[Any], bool], expected: str) -> Mapping[str, Any]:
    rules = {} if rules is None else rules
    wrong = (
        [rules]
        if not isinstance(rules, Mapping)
        else [{rule: value} for rule, value in rules.items() if not isinstance(rule, str) or not is_fine(value)]
    )
    if wrong:
        example = {
            "name_map": r"{r'blocks/(\d+)/mlp/kernel': r'model.layers.\1.mlp.weight'}",
            "transform": "{'.*/kernel': lambda kernel: kernel.T}",
        }
        summary = f"load_weights: `{argument}` must be a dict from regular expressions for paths to {expected}"
        raise ModelError(summary, given=shorten(wrong[0]), fix=f"for example {argument}={example[argument]}")
    return rules


def _are_names(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Sequence) and bool(value) and all(isinstance(name, str) for name in value)
    )


class _Rules:
    """The rules of an argument, each a regular expression for whole paths."""

    def __init__(self, argument: str, rules: Iterable[str]) -> None:
        self._argument = argument
        self._rules = frozenset(rules)
        for rule in rules:
            compile_rule(rule, argument)
        self._patterns = Patterns(rules)

    def rule_for(self, path: str) -> str | None:
        """Return the rule for a path: the path itself, else the regular expression that matches it."""
        if path in self._rules:
            return path
        found = self._patterns.matching(path)
        if len(found) > 1:
            summary = f"load_weights: the weight {path!r} matches several rules of `{self._argument}`"
            raise ModelError(summary, given=", ".join(map(repr, found)), fix="make the regular expressions narrower")
        return found[0] if found else None


def _expanded(rule: str, path: str, name: str) -> str:
    match = None if rule == path else pattern(rule).fullmatch(path)
    try:
        return name if match is None else match.expand(name)
    except (re.error, IndexError) as error:
        summary = f"load_weights: a name in `name_map` asks for what its rule does not have: {error}"
        fix = "put parentheses around what the name repeats, and write the name as a raw string"
        raise ModelError(summary, given=f"{name!r} for {rule!r}", fix=fix) from error


def _joined_shape(arrays: Sequence[np.ndarray], dim: int) -> tuple[int, ...] | None:
    """The shape of arrays joined along a dim; None if they cannot be."""
    first = arrays[0].shape
    if any(array.ndim != len(first) for array in arrays) or dim >= len(first):
        return None
    rests = {(*array.shape[:dim], *array.shape[dim + 1 :]) for array in arrays}
    return (*first[:dim], sum(array.shape[dim] for array in arrays), *first[dim + 1 :]) if len(rests) == 1 else None
