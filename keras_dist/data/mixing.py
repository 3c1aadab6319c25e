"""`mix`: examples of several sources in exact proportion.

The draws repeat a pattern with as many draws of each source as its weight, so that each draw is known by its number:
nothing but that number must be saved, and any process reads any draw. grain's own mixtures cut weights to hundredths of
the smallest one (0.2.18: weights 3 and 7 become 100 and 233), so that a long run drifts from the proportion.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from keras_dist._support.arguments import argument_error, check_int, check_option, is_int, is_number
from keras_dist._support.types import PyTree
from keras_dist.data.conversion import noting
from keras_dist.data.cursor import check_fields, check_same
from keras_dist.data.resumable import ResumableIterator, check_source, is_numbered
from keras_dist.errors import DataError, shorten

_LONGEST_PATTERN = 2**20


def mix(
    sources: Mapping[str, Any],
    weights: Sequence[float] | Mapping[str, float] | None = None,
    *,
    seed: int | None = 0,
    until: str = "first",
) -> MixedExamples | MixedStream:
    """Mix the examples of several sources in exact proportion.

    For whole weights without a common divisor, each block of `sum(weights)` draws has `weights[i]` examples of source
    i, spread evenly. Weights count examples: to fix the proportion of tokens, mix datasets that `pack` returned.

    Args:
        sources: sources by name. Each is a list, an array or another object with `__len__` and `__getitem__`; an
            iterable; or a function that returns an iterable for each pass.
        weights: a positive number for each source, in their order or by name; by default equal. Proportions of
            whole numbers with a sum of up to 1,048,576 are exact; others are rounded to parts of this number.
        seed: seeds the order in which the examples of a source are drawn, which differs in each of its passes. None
            keeps the order of the source. Iterables always keep their order.
        until: "first" ends the mixture when the first source is exhausted; "all", when every example was drawn, where
            shorter sources repeat. Mixtures with iterables end with the first.

    Returns:
        If all sources have lengths, examples by number, as `fit` and `pack` take them; `counts` has the number of draws
        of each source. Each epoch has the same draws: to see all of a source that is larger than its share, use
        `until="all"` with `steps_per_epoch`. Otherwise an iterable, whose iterators have `get_state` and `set_state`.

    Raises:
        DataError: an argument is invalid, or a source is empty.

    Example:
        >>> from keras_dist.data import mix
        >>> mixed = mix({"code": [1, 2, 3], "web": [10, 20, 30, 40, 50, 60, 70]}, weights=(1, 2), seed=None)
        >>> [mixed[draw] for draw in range(len(mixed))], mixed.counts
        ([10, 1, 20, 30, 2, 40, 50, 3, 60, 70], {'code': 3, 'web': 7})
    """
    if not isinstance(sources, Mapping) or not sources:
        example = {"code": "a", "web": "b"}
        raise argument_error("sources", sources, "a dict of sources by name", example=example, error=DataError)
    for name, source in sources.items():
        check_source(f"sources[{name!r}]", source, "examples")
    if seed is not None:
        check_int("seed", seed, 0, error=DataError)
    check_option("until", until, ("first", "all"), error=DataError)
    pattern = _Pattern(_whole(weights, [*sources]))
    read = {
        name: _Shuffled(name, source, None if seed is None else (seed, index)) if is_numbered(source) else source
        for index, (name, source) in enumerate(sources.items())
    }
    pattern.note(seed, {name: len(source) if isinstance(source, _Shuffled) else None for name, source in read.items()})
    iterated = [name for name, source in read.items() if not isinstance(source, _Shuffled)]
    if not iterated:
        return MixedExamples(read, pattern, until)
    if until != "first":
        fix = "leave it out, or give each source a __len__ and __getitem__"
        given = f"until={until!r}, iterables {', '.join(iterated)}"
        raise DataError("`until` must be 'first' for mixtures with iterables", given=given, fix=fix)
    return MixedStream(read, pattern)


def _whole(weights: Any, names: list[str]) -> list[int]:
    """Return the smallest whole numbers in the proportion of `weights`."""
    given = [1] * len(names) if weights is None else weights
    if isinstance(weights, Mapping):
        given = [weights[name] for name in names] if {*weights} == {*names} else []
    items = [*given] if isinstance(given, Sequence | np.ndarray | jax.Array) and not isinstance(given, str) else []
    if len(items) != len(names) or not all(is_number(one) and one > 0 for one in items):
        expected = f"a positive number for each source: {', '.join(names)}"
        raise argument_error("weights", weights, expected, example=(1,) * len(names), error=DataError)
    items = [float(one) for one in items]  # also of arrays
    fractions = [Fraction(one).limit_denominator(1_000_000) for one in items]
    common = math.lcm(*(one.denominator for one in fractions))
    whole = [int(one * common) for one in fractions]
    if 0 in whole or sum(whole) // math.gcd(*whole) > _LONGEST_PATTERN:
        total = sum(map(Fraction, items))
        whole = [round(Fraction(one) / total * _LONGEST_PATTERN) for one in items]
    if 0 in whole:
        expected = f"positive numbers, each at least {1 / _LONGEST_PATTERN:.1g} of their sum"
        raise argument_error("weights", weights, expected, example=(1, 3), error=DataError)
    return [one // math.gcd(*whole) for one in whole]


class _Pattern:
    """The sources of successive draws, over and over; `weights` are whole numbers."""

    def __init__(self, weights: list[int]) -> None:
        self._weights = np.array(weights)
        source = np.repeat(np.arange(len(weights)), weights)
        rank = np.concatenate([np.arange(weight) for weight in weights])
        # a source has the centers of equal parts of the pattern; equal fractions are equal floats, and keep their order
        order = np.lexsort((source, (2 * rank + 1) / (2 * self._weights[source])))
        self._sources, self._ranks = source[order], rank[order]
        self._places = [np.flatnonzero(self._sources == index) for index in range(len(weights))]

    def note(self, seed: int | None, sizes: Mapping[str, int | None]) -> None:
        """Note what must be equal to resume in this mixture; the sizes of iterables are None."""
        weights = {f"weight of source {i} ({name})": int(self._weights[i]) for i, name in enumerate(sizes)}
        self.resumes_with = {"seed": seed, **weights, **{f"examples of {name}": size for name, size in sizes.items()}}

    def at(self, draw: int) -> tuple[int, int]:
        """Return the source of a draw, and how many draws of this source precede it."""
        turn, place = divmod(draw, len(self._sources))
        index = int(self._sources[place])
        return index, turn * int(self._weights[index]) + int(self._ranks[place])

    def draw_of(self, index: int, number: int) -> int:
        """Return the draw that takes example `number` of a source: the inverse of `at`."""
        turn, rank = divmod(number, int(self._weights[index]))
        return turn * len(self._sources) + int(self._places[index][rank])

    def counts(self, draws: int) -> list[int]:
        """Return how many of the first draws each source has."""
        turns, left = divmod(draws, len(self._sources))
        return (turns * self._weights + np.bincount(self._sources[:left], minlength=len(self._weights))).tolist()


class _Shuffled:
    """Examples by number, in another order in each pass; numbers from `len` on belong to further passes."""

    def __init__(self, name: str, source: Any, seed: tuple[int, ...] | None) -> None:
        from grain.experimental import index_shuffle  # takes 0.25 s  # noqa: PLC0415

        if not len(source):
            fix = "leave it out, or check the path or filter that made it"
            raise DataError(f"sources[{name!r}] has no example", given=shorten(source), fix=fix)
        self._source, self._seed, self._shuffle = source, seed, index_shuffle

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> PyTree:
        turn, place = divmod(number, len(self._source))
        if self._seed is not None:  # a permutation of which one place can be computed
            place = self._shuffle(place, max_index=len(self._source) - 1, seed=_seed_of(*self._seed, turn), rounds=4)
        return self._source[place]


@functools.lru_cache(maxsize=1024)
def _seed_of(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


class MixedExamples:
    """The examples of a mixture, by number of the draw."""

    def __init__(self, sources: dict[str, Any], pattern: _Pattern, until: str) -> None:
        self._names, self._sources, self._pattern = [*sources], [*sources.values()], pattern
        self.resumes_with = pattern.resumes_with
        sizes = [len(source) for source in self._sources]
        if until == "first":
            self._length = min(pattern.draw_of(index, size) for index, size in enumerate(sizes))
        else:
            self._length = 1 + max(pattern.draw_of(index, size - 1) for index, size in enumerate(sizes))

    @property
    def counts(self) -> dict[str, int]:
        """Number of draws of each source, by name."""
        return dict(zip(self._names, self._pattern.counts(self._length), strict=True))

    def __len__(self) -> int:
        """Return the number of draws."""
        return self._length

    def __getitem__(self, draw: int) -> PyTree:
        """Return the example of a draw."""
        if not is_int(draw, 0, self._length - 1):
            raise IndexError(f"draw {draw!r} of {self._length}")
        index, number = self._pattern.at(int(draw))
        with noting(f"source {self._names[index]!r}"):
            return self._sources[index][number]

    def __repr__(self) -> str:
        return f"<mixture of {self._length} draws: {shorten(self.counts)}>"


class MixedStream:
    """Examples of a mixture of iterables, which ends with the first of them."""

    def __init__(self, sources: dict[str, Any], pattern: _Pattern) -> None:
        self._sources, self._pattern, self.resumes_with = sources, pattern, pattern.resumes_with

    def __iter__(self) -> MixedIterator:
        """Iterate over one pass of each source."""
        return MixedIterator(self._sources, self._pattern)

    def __repr__(self) -> str:
        return f"<mixture of {', '.join(self._sources)}>"


class MixedIterator(Iterator[PyTree]):
    """One pass over a mixture of iterables."""

    def __init__(self, sources: dict[str, Any], pattern: _Pattern) -> None:
        self._iterators = {name: ResumableIterator(source, name) for name, source in sources.items()}
        self._names, self._pattern, self._draw = [*sources], pattern, 0

    def __next__(self) -> PyTree:
        name = self._names[self._pattern.at(self._draw)[0]]
        with noting(f"source {name!r}"):
            example = next(self._iterators[name])
        self._draw += 1
        return example

    def get_state(self) -> dict[str, Any]:
        """Return the position, as JSON if the states of the sources are."""
        states = {name: one.get_state() for name, one in self._iterators.items()}
        return {"draw": self._draw, "mixture": {**self._pattern.resumes_with}, "sources": states}

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to a position; raises `DataError` if it is of other sources, weights or another seed."""
        check_fields(state, ("draw", "mixture", "sources"), ("draw",))
        check_same(self._pattern.resumes_with, state["mixture"])
        check_fields(state["sources"], self._names)
        counts = dict(zip(self._names, self._pattern.counts(state["draw"]), strict=True))
        counted = {name: count for name, count in counts.items() if not self._iterators[name].has_state}
        check_same(counted, {name: state["sources"][name] for name in counted})
        self._draw = state["draw"]
        for name, iterator in self._iterators.items():
            iterator.set_state(state["sources"][name])
