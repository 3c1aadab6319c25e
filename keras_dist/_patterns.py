"""Regular expressions whose matching ends soon, whatever they are: rules may come from others, in a config file.

Python's `re` tries one way to match after the other, and for rules such as `(a+)+b` there are exponentially many. Where
there may be many, all places of the text that can be reached are followed at once, as the bits of an integer: that
takes time in the length of the rule times the square of that of the text. The door to Python's parser of expressions.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_FEW = 4
"""Choices for which `re` tries at most the fourth power of the length of the text divided by 24."""

_MOST_GROUPS = 100
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_ONE_CHARACTER = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_ASSERTIONS = (_constants.ASSERT, _constants.ASSERT_NOT)
_FOLLOWED = (*_REPEATS, *_ONE_CHARACTER, *_ASSERTIONS, _constants.AT, _constants.BRANCH, _constants.SUBPATTERN)


class Pattern:
    """A regular expression, as `re.compile` takes it.

    Raises:
        re.error: it is none; or it may take `re` for ever, and refers back to its groups or forbids to go back.
    """

    def __init__(self, rule: str) -> None:
        try:
            self._fast = re.compile(rule)
            self._tree = _parser.parse(rule)
            self._is_followed = _choices(self._tree) > _FEW
        except (RecursionError, OverflowError) as error:
            raise re.error(str(error), rule) from error
        if self._is_followed and (rule.count("(") > _MOST_GROUPS or not _is_followable(self._tree)):
            raise re.error(
                "it may match in too many ways, and has too many groups, (?P=name), \\1, (?(1)...), (?>...) or a++; "
                "use fewer of *, +, ? and |",
                rule,
            )

    def fullmatch(self, text: str) -> bool:
        """Whether it matches the whole text."""
        if not self._is_followed:
            return self._fast.fullmatch(text) is not None
        return bool(_Places(text).after(self._tree, 1, self._tree.state.flags) >> len(text))

    def match(self, text: str) -> bool:
        """Whether it matches at the beginning of the text."""
        if not self._is_followed:
            return self._fast.match(text) is not None
        return bool(_Places(text).after(self._tree, 1, self._tree.state.flags))

    def search(self, text: str) -> tuple[int, int] | None:
        """Where it matches first, as the longest piece of the text that begins there; None if nowhere."""
        if not self._is_followed:
            found = self._fast.search(text)
            return None if found is None else found.span()
        places = _Places(text)
        ends = (places.after(self._tree, 1 << start, self._tree.state.flags) for start in range(len(text) + 1))
        return next(((start, end.bit_length() - 1) for start, end in enumerate(ends) if end), None)


pattern = functools.lru_cache(1024)(Pattern)
"""The pattern of a rule, which is made once."""


class _Places:
    """Places of a text, before, between and after its characters, as the bits of an integer."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._letters: dict[int, int] = {}
        for place, letter in enumerate(map(ord, text)):
            self._letters[letter] = self._letters.get(letter, 0) | 1 << place
        self._reached: dict[tuple[int, int], int] = {}
        self._fitting: dict[tuple[Any, ...], int] = {}

    def after(self, tree: Any, places: int, flags: int) -> int:
        """Where the parts of an expression end, one after the other, that begin at these places."""
        for kind, value in tree:
            if kind in _ONE_CHARACTER:
                places = (places & self._fit(kind, value, flags)) << 1
            elif kind is _constants.AT:
                places &= self._fit(kind, value, flags)
            elif kind is _constants.SUBPATTERN:
                places = self.after(value[3], places, (flags | value[1]) & ~value[2])
            elif kind is _constants.BRANCH:
                places = functools.reduce(int.__or__, [self.after(one, places, flags) for one in value[1]])
            elif kind in _ASSERTIONS:
                direction, inner = value
                kept = sum(place for place in _bits(places) if self._holds(direction, inner, place, flags))
                places = kept if kind is _constants.ASSERT else places & ~kept
            else:
                least, most, inner = value
                places = self._repeated(least, most, inner, places, flags)
        return places

    def _fit(self, kind: Any, value: Any, flags: int) -> int:
        """The places before a character that fits, or those that an anchor fits."""
        if kind is _constants.LITERAL and not flags & re.IGNORECASE:
            return self._letters.get(value, 0)
        key = (kind, tuple(value) if isinstance(value, list) else value, flags)
        if key not in self._fitting:
            fits = _matcher(*key)
            self._fitting[key] = sum(1 << place for place in range(len(self._text) + 1) if fits(self._text, place))
        return self._fitting[key]

    def _holds(self, direction: int, tree: Any, place: int, flags: int) -> bool:
        if direction > 0:
            return bool(self._after_each(tree, place, flags))
        return bool(self._after_each(tree, place >> tree.getwidth()[0], flags) & place)

    def _repeated(self, least: int, most: int, tree: Any, places: int, flags: int) -> int:
        before = None
        while least and places != before:
            before, places = places, self._after_each(tree, places, flags)
            least, most = least - 1, most - 1
        reached, most = places, most - least
        if most > len(self._text) and _is_one_character(tree):
            ((kind, value),) = tree
            fit = self._fit(kind, value, flags)
            return places | ((places & fit) + fit ^ fit)  # the carry runs to the end of each row of ones
        while places and most:
            places = self._after_each(tree, places, flags) & ~reached
            reached, most = reached | places, most - 1
        return reached

    def _after_each(self, tree: Any, places: int, flags: int) -> int:
        """As `after`; what was found for a place is kept, so that repetitions in repetitions take no longer."""
        if _is_one_character(tree):
            return self.after(tree, places, flags)
        for place in _bits(places):
            if (id(tree), place) not in self._reached:
                self._reached[id(tree), place] = self.after(tree, place, flags)
        return functools.reduce(int.__or__, (self._reached[id(tree), place] for place in _bits(places)), 0)


@functools.lru_cache(1024)
def _matcher(kind: Any, value: Any, flags: int) -> Any:
    """`match(text, place)` for one character or anchor."""
    state = _parser.State()
    state.flags = flags
    part = _parser.SubPattern(state, [(kind, list(value) if isinstance(value, tuple) else value)])
    return _compiler.compile(part, flags).match


def _bits(places: int) -> Iterator[int]:
    while places:
        place = places & -places
        places ^= place
        yield place


def _is_one_character(tree: Any) -> bool:
    return len(tree) == 1 and tree[0][0] in _ONE_CHARACTER


def _choices(tree: Any) -> float:
    """At how many points there are several ways to match; without end, if they are repeated."""
    total = 0.0
    for kind, value in tree:
        inner = sum(map(_choices, _trees_in(value)))
        if kind in (*_REPEATS, _constants.POSSESSIVE_REPEAT):
            least, most, _ = value
            inner = math.inf if inner and most > 1 else inner + (least != most)
        total += inner + (kind is _constants.BRANCH)
    return total


def _is_followable(tree: Any) -> bool:
    return all(kind in _FOLLOWED and all(map(_is_followable, _trees_in(value))) for kind, value in tree)


def _trees_in(value: Any) -> list[Any]:
    """The expressions in a part of one."""
    if isinstance(value, _parser.SubPattern):
        return [value]
    return [tree for one in value for tree in _trees_in(one)] if isinstance(value, tuple | list) else []
